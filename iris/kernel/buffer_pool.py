"""Buffer pool: reused memory for large frames and their bodies.

New memory for a frame of 256 KiB is cleared before it is filled, and copied again by the code that changes a byte of it
or takes a part out.  A buffer of the pool saves both: 20 us each where other processes have used the caches meanwhile.

A buffer has one owner, who may give it back; who keeps what is in it for later copies it.
"""

from __future__ import annotations

from typing import Final

from iris.kernel.config import KIB

LARGE: Final = 32 * KIB
"""Smallest buffer that is worth borrowing, in bytes."""

_SIZE: Final = 384 * KIB
"""Size of one piece in bytes.  A larger buffer gets memory of its own."""

_KEPT: Final = 4
"""Pieces that are kept while nobody uses them: one is in use at a time, two where frames come inside of others."""

_SPARSE: Final = 4
"""Times that the size of a frame goes into its buffer, from which on a frame that has to wait is better copied."""

_free: Final[list[bytearray]] = []
"""Free pieces of the whole process: nodes in several threads, as Spark's drivers have them, share it."""


def borrow(size: int) -> memoryview:
    """Return a buffer of ``size`` bytes, with whatever stood there before."""
    if size > _SIZE:
        return memoryview(bytearray(size))
    try:
        memory = _free.pop()
    except IndexError:  # to look whether there is one does not help: another thread may take it
        memory = bytearray(_SIZE)
    return memoryview(memory)[:size]


def pooled_bytes() -> int:
    """Return the size of all pieces that are kept while nobody uses them, in bytes; for the whole process."""
    return len(_free) * _SIZE


def is_sparse(room: bytes | memoryview) -> bool:
    """Return whether most of a frame's buffer is not used: who keeps the frame copies it, and gives that back."""
    return type(room) is memoryview and room.obj is not None and len(room) * _SPARSE <= memoryview(room.obj).nbytes


def give_back(room: bytes | memoryview) -> None:
    """Return a buffer to the pool: nobody may look at it any more.  Not to call this only costs memory."""
    if type(room) is memoryview:
        memory = room.obj
        if isinstance(memory, bytearray) and len(memory) == _SIZE and len(_free) < _KEPT:
            _free.append(memory)
