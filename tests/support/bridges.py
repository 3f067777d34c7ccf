"""Bridges as processes of their own, and publishers to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import trio

import iris
import iris.aio
import iris.sync
from iris.spark_bridge.server.bridge import open_bridge
from iris.sync.crossing import Block
from tests.support.threads import inner_of, portal_of
from tests.support.verbs import Verbs

_VERBS: Final = Verbs("iris.spark_bridge.server.bridge", "iris.spark_bridge.tier")


class BridgeProcess:
    """``iris bridge`` on a directory; it is ready when the block is entered."""

    def __init__(self, directory: Path, *options: str, name: str = "bridge") -> None:
        self._arguments = ("bridge", "--topic", ">", "--name", name, "--data", str(directory), *options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it says that it serves."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = _VERBS.start(self._arguments, Path.cwd(), environment) or subprocess.Popen(
            [sys.executable, "-m", "iris", *self._arguments], stderr=subprocess.PIPE
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if b"stores" not in line:
            rest = self._process.stderr.read()
            self.kill()
            raise AssertionError((line + rest).decode())

    @property
    def maps(self) -> str:
        """Files that the process has mapped into its memory."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/maps").read_text()

    def kill(self) -> None:
        """End it without a chance to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(timeout=60)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


def publish(payloads: Iterable[bytes], *, topic: str = "a.b", bridge: str = "bridge", key: str | None = None) -> None:
    """Publish events one after the other; they are on the bridge's disk when it returns."""

    async def run() -> None:
        async with iris.open_node("publisher") as node:
            await node.wait_for(bridge, timeout=60)
            waiting = list(payloads)
            for payload in waiting[:-1]:
                await node.publish(topic, payload, key=key)
            # Links keep the order: when the last one is confirmed, all are stored.
            await node.publish_confirmed(topic, waiting[-1], key=key, timeout=60)

    trio.run(run)


def open_aio_bridge(node: iris.aio.Node, **options: Any) -> AbstractAsyncContextManager[object]:
    """Have a node of asyncio be a bridge."""
    return node._enter(partial(open_bridge, **options))


def open_sync_bridge(node: iris.sync.Node, **options: Any) -> AbstractContextManager[object]:
    """Have a node of threads be a bridge."""
    return Block(portal_of(node), partial(open_bridge, inner_of(node), **options), lambda opened, _: opened)
