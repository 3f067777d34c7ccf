"""Standard input, read in a thread: a read blocks for as long as a person thinks."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import AsyncGenerator

import trio

CHUNK = 64 * 1024


def input_size() -> int | None:
    """Return how many bytes standard input holds, if it is a file."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


async def read_chunks() -> AsyncGenerator[bytes]:
    """Yield standard input as it comes, in pieces of up to 64 KiB.  What cancellation interrupts may be lost."""
    descriptor = sys.stdin.fileno()
    while chunk := await trio.to_thread.run_sync(os.read, descriptor, CHUNK, abandon_on_cancel=True):
        yield chunk


async def read_lines() -> AsyncGenerator[bytes]:
    """Yield each line of standard input without its newline."""
    rest = b""
    async with contextlib.aclosing(read_chunks()) as chunks:
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
    if rest:
        yield rest
