"""Local read: a reader on the member's machine reads its range from the segment file itself, without a session.

The member names the file of a range to a reader that may read it and that runs on the member's machine.  The reader
opens the file with its own rights.  Segments are their owner's alone, so local reads work for the processes of one user
(and for root), and give nobody what he could not read anyway.  The reader checks that the file is the one that the
member sees (device and inode, while this machine runs), and verifies each chunk as it does any other.  Whatever does
not fit ends the local read, and the rest comes by session; the member reports what is wrong with a log.

No lock holds the file for the reader.  A file that retention removes stays readable as long as it is open.  One that is
gone before it was opened is requested by session, and the reply names what was trimmed.

Files are read and not mapped: a block that the disk cannot read is an error here, and would be a signal that ends the
process there.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, final

import pyarrow as pa
from msgspec import Meta

from iris.patterns.bridge_protocol import Number, Offset
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk import MAX_DATA, Chunk, decode_frames

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """Chunks of one segment file that hold the wanted events of a range of offsets."""

    path: str
    device: Number
    inode: Number
    end: Offset
    """End of the range of offsets in which these chunks hold all wanted events."""
    pieces: Sequence[tuple[Offset, Number, Annotated[int, Meta(gt=0, le=2 * MAX_DATA)]]]
    """Pieces to read at a time, whole chunks each: offset of the first one, position and size in bytes.  Empty if no
    event of the range is wanted: there is no file then."""


@functools.cache
def machine() -> str | None:
    """Return an id of this boot of this machine; None: this system has no such thing."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def _is_it(found: FileRange, status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) == (found.device, found.inode)


def read_file_range(found: FileRange) -> Iterator[Chunk]:
    """Yield the chunks, verified; none if the file that has this path here is another one.

    Raises:
        OSError, ValueError, OverflowError: the file cannot be read, or the reported range makes no sense.
        LogDamaged: the file does not hold whole chunks, or not those that were reported.
    """
    if not found.pieces:
        return
    if not _is_it(found, os.lstat(found.path)):  # opening alone can do something, if it is no file
        return
    descriptor = os.open(found.path, _FLAGS)
    try:
        # Between the two checks another file may have taken the name; only the open one can change no more.
        if not _is_it(found, os.fstat(descriptor)):
            return
        for offset, position, size in found.pieces:
            # Arrow keeps the memory for the next piece; a new one of its own would have to be zeroed first.
            buffer = pa.allocate_buffer(size)
            if os.preadv(descriptor, [buffer], position) < size:
                raise LogDamaged(f"{found.path} ends before byte {position + size}")
            for chunk in decode_frames(memoryview(buffer)):
                # Only what the member has passed over is not there: no chunk may be missing in between.
                if chunk.first != offset:
                    raise LogDamaged(f"{found.path} holds offset {chunk.first} where {offset} should be")
                offset = chunk.end  # noqa: PLW2901 -- of the next chunk
                yield chunk
    finally:
        os.close(descriptor)
