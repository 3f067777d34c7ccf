"""What verbs write on standard output: to a pipe as it is, to a terminal without what would command it.

Writing can block for as long as the reader of a pipe likes.  A node whose event loop is blocked is taken for dead, so
verbs that write on and on hand their lines to a thread.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from typing import Any, final

import click
import trio

from iris._command_payload import TOO_DEEP, as_text
from iris._command_printable import printable, printable_line

LINES = 1024
"""Lines that may wait for a slow reader before the verb waits for it, too."""


def write_payload(payload: Any) -> None:
    """Write one payload, the whole result of a verb: bytes as they are, so that they can be piped."""
    if isinstance(payload, bytes) and not sys.stdout.isatty():
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()
    else:
        click.echo(_shown(as_text(payload)))


def write_line(line: str) -> None:
    """Write one line of a verb whose lines are messages."""
    click.echo(printable_line(line) if sys.stdout.isatty() else line)


def write_object(fields: Mapping[str, Any]) -> None:
    """Write one JSON object on a line of its own."""
    click.echo(_as_json(fields))


def note(text: str) -> None:
    """Tell people something that does not belong to the output, in one line."""
    click.echo(f"iris: {printable(' '.join(text.split()))}", err=True)


@final
class Lines:
    """Standard output for a verb that goes on and on.  ``open_lines`` makes it."""

    def __init__(self, sender: trio.MemorySendChannel[bytes]) -> None:
        self._sender = sender
        self._terminal = sys.stdout.isatty()

    async def write(self, line: str) -> None:
        """Write ``line``; waits while 1,024 lines wait for the reader of a pipe."""
        line = printable_line(line) if self._terminal else line
        await self._sender.send(line.encode() + b"\n")

    async def write_object(self, fields: Mapping[str, Any]) -> None:
        """Write one JSON object on a line of its own."""
        await self.write(_as_json(fields))


@contextlib.asynccontextmanager
async def open_lines() -> AsyncGenerator[Lines]:
    """Open standard output for lines; what was written is out when the block ends, unless it was cancelled.

    Raises:
        BrokenPipeError: the reader has gone.
    """
    sender, receiver = trio.open_memory_channel[bytes](LINES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_out, receiver)
        async with sender:
            yield Lines(sender)


def write_chunk(data: bytes) -> None:
    """Write bytes of a stream; on a terminal as the text that they stand for.  May block, so call it on a thread."""
    _write_and_flush(_shown(data.decode(errors="backslashreplace")).encode() if sys.stdout.isatty() else data)


def _shown(text: str) -> str:
    return printable(text) if sys.stdout.isatty() else text


def _as_json(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields, separators=(",", ":"), default=as_text)
    except RecursionError:
        return json.dumps({**fields, "payload": TOO_DEEP}, separators=(",", ":"), default=as_text)


async def _write_out(receiver: trio.MemoryReceiveChannel[bytes]) -> None:
    async for line in receiver:
        lines = [line]
        with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                lines.append(receiver.receive_nowait())
        await trio.to_thread.run_sync(_write_and_flush, b"".join(lines), abandon_on_cancel=True)


def _write_and_flush(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
