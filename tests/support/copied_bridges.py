"""A bridge and its copy as processes: when they are in step, and promoting the copy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Final

import trio

import iris
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import BridgeUnreachable
from tests.support.processes import Child

_PATIENCE: Final = 120.0

PROMOTE: Final = [sys.executable, "-m", "iris", "bridge", "promote", "bridge/0"]


def promote_copy(copy: Child) -> None:
    """Promote a copy, again and again if it was killed meanwhile, until it serves."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        done = subprocess.run(PROMOTE, capture_output=True, text=True, check=False)
        if done.returncode == 0 or "and no primary" not in done.stderr:
            try:
                copy.wait_ready("stores")
            except RuntimeError as error:
                error.add_note(f"the promotion said: {done.stderr}")
                raise
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the copy cannot be promoted: {done.stderr}")


async def wait_in_step() -> None:
    """Wait until a copy takes part in confirmations."""
    async with iris.open_node("observer") as node:
        client = BridgeClient(node, "bridge", patience=_PATIENCE)
        with trio.fail_after(_PATIENCE):
            while True:
                with contextlib.suppress(BridgeUnreachable):
                    copies = (await read_status(client)).copies.get("bridge", ())
                    if any(copy.state == "in step" and copy.behind is not None for copy in copies):
                        return
                await trio.sleep(0.05)
