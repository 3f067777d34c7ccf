"""A process of its own that listens at a URL and echoes every frame: ``python -m tests.support.remote_listener URL``.

It prints the URL really bound.  The first frame that it gets from somebody is a URL to send to; so are all that begin
with a scheme.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from iris.kernel.config import Config
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.port import OutgoingConnection
from tests.support.printing import open_printing
from tests.support.transports import ignore


@asynccontextmanager
async def open_far_listener(url: str) -> AsyncIterator[tuple[trio.Process, str]]:
    """Start the process; give it and its URL.  It is killed in the end."""
    async with open_printing("tests.support.remote_listener", url) as opened:
        yield opened


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
