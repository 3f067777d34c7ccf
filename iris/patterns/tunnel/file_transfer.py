"""File transfer over a tunnel: any size, constant memory, verified by SHA-256, and visible only when complete.

On the wire a file is ``["file", size]``, pieces of bytes, and ``["sha256", digest, size]``, all as ordinary messages:
others may come before and after.  The first size is what the sender expects, for progress; the last one is what it
sent.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import trio
from msgspec import Struct

from iris.kernel.errors import ConfigError, PayloadTooLarge
from iris.kernel.numerals import as_whole, shown
from iris.kernel.tasks import interruptible, run_in_thread

_PIECE: Final = 256 * 1024
"""Size of what is read, hashed and written in one visit to a worker thread, in bytes."""

Progress = Callable[[int, int], None]
"""Callback with the bytes done and the bytes expected in all."""

Send = Callable[[Any], Awaitable[None]]
"""``Tunnel.send``."""

Receive = Callable[[], Awaitable[Any]]
"""``Tunnel.receive``."""

Fail = Callable[[str], Exception]
"""Function that ends the tunnel for what the other end sent, and returns the error to raise."""

Abort = Callable[[str], None]
"""``Tunnel.abort``."""


@final
class FileSummary(Struct, frozen=True, kw_only=True):
    """Size and hash of a file that was transferred."""

    size: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the contents, in hexadecimal; the same at both ends."""


async def send_file(
    send: Send, path: str | PathLike[str], progress: Progress | None = None, *, max_piece: int, chunk: int
) -> FileSummary:
    """Send a file of any size, for ``receive_file`` at the other end.

    Returns when all of it is queued.  What the file holds at the moment of reading is sent: a file that grows
    meanwhile is sent with what it has grown by.

    Args:
        send: sends a message; nobody else may send meanwhile.
        path: path of the file.
        progress: called in this task after each piece, with the bytes done and the bytes expected.
        max_piece: bytes of the largest message.
        chunk: bytes of the largest chunk that messages are cut into: no part of one is left for the next.

    Raises:
        OSError: the file cannot be read.
        TunnelBroken, trio.ClosedResourceError: see ``Tunnel.send``.

    If it fails or is cancelled, the other end may be in the middle of a file: close the tunnel.
    """
    digest = hashlib.sha256()
    done = 0

    def read(file: BinaryIO) -> bytes:
        data = file.read(size)
        digest.update(data)
        return data

    with await run_in_thread(lambda: Path(path).open("rb", buffering=0)) as file:
        expected = os.fstat(file.fileno()).st_size
        await send(["file", expected])
        size = min(_PIECE, max_piece)
        size -= size % min(size, chunk)
        while data := await run_in_thread(read, file):
            await send(data)
            done += len(data)
            if progress is not None:
                _report(progress, done, expected)
        await send(["sha256", digest.hexdigest(), done])
    return FileSummary(size=done, sha256=digest.hexdigest())


async def receive_file(
    receive: Receive,
    path: str | PathLike[str],
    progress: Progress | None = None,
    *,
    max_bytes: int | None = None,
    fail: Fail,
    abort: Abort,
) -> FileSummary:
    """Receive what ``send_file`` sends at the other end, into ``path``.

    The file appears under its name at once, whole, checked and on disk; one that was there before is replaced.
    Until then it grows in the same directory under a hidden name, which is removed if anything fails.

    Args:
        receive: returns the next message; nobody else may receive meanwhile.
        path: path of the file to write.
        progress: called in this task after each piece, with the bytes done and the bytes expected.
        max_bytes: size of the largest file to accept.
        fail: called if something else than a file was sent, or its hash is wrong.
        abort: called with the reason if the file is too large.

    Raises:
        OSError: the file cannot be written.
        PayloadTooLarge: it is larger than ``max_bytes``; the tunnel is closed with an error.
        ConfigError: ``max_bytes`` is no whole number; nothing was received.
        TunnelBroken: see ``Tunnel.receive``; also if something else than a file was sent, or the hash is wrong.
        trio.EndOfChannel: the other end sent no file.

    If it fails or is cancelled, nothing is left at ``path`` or beside it; the tunnel is in the middle of a file.
    """
    most = None if max_bytes is None else as_whole(max_bytes)
    if max_bytes is not None and (most is None or most < 0):
        raise ConfigError(f"max_bytes is {shown(max_bytes)}: use a whole number, or None for any")
    target = Path(path)
    expected = _read_size(await receive(), fail)
    growing = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
    digest = hashlib.sha256()
    done = 0

    def write(file: BinaryIO, data: bytes) -> None:
        digest.update(data)
        file.write(data)

    def finish(file: BinaryIO) -> None:
        file.flush()
        # On disk before it gets its name: after a crash there is the whole file or none.
        os.fsync(file.fileno())
        file.close()
        growing.replace(target)

    if most is not None and expected > most:
        raise _too_large(expected, most, abort)
    file: BinaryIO = await run_in_thread(lambda: growing.open("xb"))
    try:
        while isinstance(piece := await _next_piece(receive, fail), bytes):
            done += len(piece)
            if most is not None and done > most:
                raise _too_large(done, most, abort)
            await run_in_thread(write, file, piece)
            if progress is not None:
                _report(progress, done, expected)
        # Only a file whose hash is right gets its name: a truncated transfer leaves nothing behind.
        if piece != ["sha256", digest.hexdigest(), done]:
            raise fail(f"the file that arrived is not the one that was sent: {done} bytes, or their hash, differ")
        await run_in_thread(finish, file)
    except BaseException:
        file.close()
        with trio.CancelScope(shield=True):
            await run_in_thread(lambda: growing.unlink(missing_ok=True), else_here=True)
        raise
    return FileSummary(size=done, sha256=digest.hexdigest())


async def _next_piece(receive: Receive, fail: Fail) -> object:
    try:
        piece: object = await receive()
    except trio.EndOfChannel:
        raise fail("the other end finished in the middle of a file") from None
    return piece


def _read_size(message: object, fail: Fail) -> int:
    match message:
        case ["file", int() as size] if size >= 0:
            return size
        case _:
            pass
    raise fail("something else than a file was sent")


def _too_large(size: int, limit: int, abort: Abort) -> PayloadTooLarge:
    reason = f"a file of at least {size} bytes: the receiver takes {limit}"
    abort(reason)
    return PayloadTooLarge(reason)


@interruptible
def _report(progress: Progress, done: int, expected: int) -> None:
    progress(done, max(done, expected))
