"""Progress of a queue in one shard: which offsets need no more work (sans-IO).

Jobs end out of order, so a single offset does not describe the progress.  Everything below ``floor`` is done, and above
it a bitmap in blocks of 4,096 offsets shows what is.  A job that is delayed for a week keeps the floor low; the blocks
above it that are done in full cost some bytes each, on the disk and in memory.

Events of the log that are no jobs of the queue count as done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

BLOCK: Final = 4096
BLOCK_BYTES: Final = BLOCK // 8
_FULL: Final = (1 << BLOCK) - 1


@final
class ShardProgress:
    """Progress of a queue in one shard: the jobs that are done.

    Args:
        floor: offset below which everything is done.
        blocks: bits of each block above the floor, by its number; an empty one is done in full.
    """

    __slots__ = ("_blocks", "changed", "floor")

    def __init__(self, floor: int, blocks: Mapping[int, bytes]) -> None:
        self.floor = floor
        self._blocks = {number: int.from_bytes(bits, "little") if bits else _FULL for number, bits in blocks.items()}
        self.changed: set[int] = set()
        """Blocks that differ from what was written last."""

    def is_done(self, offset: int) -> bool:
        """Return whether an offset is done."""
        if offset < self.floor:
            return True
        number, bit = divmod(offset, BLOCK)
        return bool(self._blocks.get(number, 0) >> bit & 1)

    def mark(self, first: int, end: int) -> None:
        """Count the offsets ``first`` up to but not including ``end`` as done."""
        first = max(first, self.floor)
        while first < end:
            number, bit = divmod(first, BLOCK)
            size = min(end - first, BLOCK - bit)
            self._blocks[number] = self._blocks.get(number, 0) | ((1 << size) - 1) << bit
            self.changed.add(number)
            first += size

    def advance(self) -> bool:
        """Raise the floor as far as everything is done; return whether it has moved."""
        before = self.floor
        while True:
            number, bit = divmod(self.floor, BLOCK)
            rest = self._blocks.get(number, 0) >> bit
            done = (~rest & (rest + 1)).bit_length() - 1  # ones at the low end
            self.floor += done
            if bit + done < BLOCK:
                return self.floor > before
            del self._blocks[number]
            self.changed.add(number)

    def next_open(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that is not done."""
        offset = max(offset, self.floor)
        while True:
            number, bit = divmod(offset, BLOCK)
            rest = self._blocks.get(number, 0) >> bit
            done = (~rest & (rest + 1)).bit_length() - 1
            offset += done
            if bit + done < BLOCK:
                return offset

    def block(self, number: int) -> bytes | None:
        """Return the bits of a block as they are written: empty if it is done in full, None if it is not needed."""
        bits = self._blocks.get(number)
        if bits is None:
            return None
        return b"" if bits == _FULL else bits.to_bytes(BLOCK_BYTES, "little")
