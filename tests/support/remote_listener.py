"""A process of its own that listens at a URL and echoes every frame: ``python -m tests.support.remote_listener URL``.

It prints the URL really bound.  The first frame that it gets from somebody is a URL to send to; so are all that begin
with a scheme.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Final

import trio

from iris.kernel.config import Config
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.port import OutgoingConnection
from tests.support.transports import ignore

_ROOT: Final = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def open_far_listener(url: str) -> AsyncIterator[tuple[trio.Process, str]]:
    """Start the process; give it and its URL.  It is killed in the end."""
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.support.remote_listener", url], stdout=PIPE, cwd=_ROOT
        )
        try:
            assert process.stdout is not None
            bound = b""
            with trio.fail_after(60):
                while not bound.endswith(b"\n"):
                    bound += await process.stdout.receive_some(1000)
            yield process, bound.decode().strip()
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()
            nursery.cancel_scope.cancel()


async def _main(url: str) -> None:
    transport = NetworkTransport(Config())
    (bound,) = await transport.listen([url])
    print(bound, flush=True)  # noqa: T201 -- this is what the parent waits for
    back: OutgoingConnection | None = None
    while True:
        frame = transport.receive_nowait()
        if frame is None:
            await transport.wait_readable()
            continue
        frame = bytes(frame)
        if frame.startswith((b"tcp://", b"ipc://", b"ws://")):
            back = await transport.dial(frame.decode(), ignore)
        else:
            assert back is not None
            while not back.send_nowait(frame):
                await back.wait_writable()


if __name__ == "__main__":
    trio.run(_main, sys.argv[1])
