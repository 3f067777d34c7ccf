"""Swarm: both ends of ``iris bench`` on one machine, members as processes of their own in a temporary realm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

import iris
from iris.bench.service import CLUSTER, LOOPBACK
from iris.kernel.tasks import open_background
from iris.security.files import open_local_realm

_PATIENCE: Final = 30.0
"""Seconds that processes may take to start."""

_GOODBYE: Final = 2.0


class SwarmFailed(iris.IrisError):
    """A member of the swarm did not start, or ended."""


@asynccontextmanager
async def open_swarm(members: int) -> AsyncGenerator[iris.Node]:
    """Start so many members in processes of their own, and open a node that is linked to them.

    They meet over loopback TCP: nodes of different machines have no other way.

    Raises:
        SwarmFailed: one of them did not start.
    """
    with tempfile.TemporaryDirectory(prefix="ib-") as name:  # short: paths of ipc sockets end at 107 bytes
        directory = Path(name)
        home = directory / "home"
        realm = await trio.to_thread.run_sync(partial(open_local_realm, home=home))
        credential = await trio.to_thread.run_sync(partial(realm.credential, CLUSTER, wall_now=_date()))
        async with open_background() as nursery:
            seeds = [await nursery.start(_run_member, directory, number) for number in range(members)]
            nowhere = iris.Environment(directory=None, lan=None)
            async with iris.open_node(credential=credential, listen=LOOPBACK, seeds=seeds, environment=nowhere) as node:
                await node.wait_for(CLUSTER, members=members, timeout=_PATIENCE)
                yield node


def _date() -> float:
    return time.time()  # noqa: TID251 - certificates are valid by date


async def _run_member(directory: Path, number: int, task_status: trio.TaskStatus[str]) -> None:
    """Run one member until it is cancelled; it ends with its standard input, also if this process is killed."""
    runtime, log = directory / f"{number}", directory / f"{number}.log"
    runtime.mkdir(mode=0o700)
    with log.open("wb") as errors:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "iris.bench.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "IRIS_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(runtime)},
            start_new_session=True,  # Ctrl-C is for the command
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = b""
        with trio.move_on_after(_PATIENCE):
            while not said.endswith(b"\n"):
                piece = await process.stdout.receive_some()
                if not piece:
                    break
                said += piece
        if not said.endswith(b"\n"):
            raise SwarmFailed(f"a process for the measurement did not start{_last_line(log)}")
        task_status.started(said.decode().strip())
        await process.wait()
        raise SwarmFailed(f"a process of the measurement ended{_last_line(log)}")
    finally:
        with trio.move_on_after(_GOODBYE, shield=True):
            await process.stdin.aclose()
            await process.wait()
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
