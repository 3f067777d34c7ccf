"""Quota: how many bytes a log keeps for each cluster, besides events; counted in the transaction that changes them.

Of each kind of things a cluster may have a sixteenth of the room, and all clusters together a quarter.  So what one of
them fills up is refused, or forgotten, for that one: there is room for the others' things, and for events.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, Literal, final

from iris.kernel.config import MIB
from iris.spark_bridge.log.checked_table import CheckedTable

QuotaKind = Literal["keys", "publishers"]
"""What is counted: idempotency keys with their outcomes, and what is known of the numbers of publishers."""

_ONE: Final = 16
_ALL: Final = 4
"""Parts of the room that one cluster may have, and all together."""

_PAGE: Final = 4096
_RECORD: Final = 160
"""Bytes that the index takes for a record beside its value: key, checksum, and what its page has free."""

_SIZE: Final = struct.Struct(">Q")


def record_size(value: int) -> int:
    """Return how many bytes a record with a value of so many takes: a large one has pages of its own."""
    return _RECORD + (value if value <= _PAGE // 4 else -(-value // _PAGE) * _PAGE)


@final
class Quota:
    """What a log keeps of one kind, in one transaction.

    Args:
        table: has the counts.
        kind: what is counted.
        room: returns how many bytes there are for the log, given how many are used of this kind.
    """

    def __init__(self, table: CheckedTable, kind: QuotaKind, room: Callable[[int], int]) -> None:
        self._table = table
        # Names of clusters have none of these characters: no count is taken for another one.
        self._total = kind.encode() + b"\1"
        self._prefix = kind.encode() + b"\0"
        self._room = room

    def used(self, owner: str) -> int:
        """Return how many bytes are kept for a cluster."""
        return self._get(self._prefix + owner.encode())

    @property
    def total(self) -> int:
        """How many bytes are kept for all clusters."""
        return self._get(self._total)

    def excess(self, owner: str, more: int = 0) -> str | None:
        """Return who would have more than it may, with so many bytes more for a cluster; None: nobody."""
        used, total = self.used(owner), self.total
        room = self._room(total)
        if used + more > room // _ONE:
            return f"cluster {owner!r} has {used / MIB:,.1f} of {room / _ONE / MIB:,.1f} MiB"
        if total + more > room // _ALL:
            return f"all clusters together have {total / MIB:,.1f} of {room / _ALL / MIB:,.1f} MiB"
        return None

    def surplus(self, owner: str) -> tuple[str, int] | None:
        """Return of which cluster how many bytes are to be forgotten, after some were added for one; None: of none.

        Where all together have too much it is the one that has most.  A quarter goes at a time.
        """
        used, total = self.used(owner), self.total
        room = self._room(total)
        if used > room // _ONE:
            return owner, used - room // _ONE * 3 // 4
        if total > room // _ALL:
            largest, most = max(self._owners(), key=lambda one: one[1])
            return largest, most // 4
        return None

    def add(self, owner: str, size: int) -> None:
        """Count so many bytes more for a cluster, or fewer."""
        for key in (self._prefix + owner.encode(), self._total):
            used = max(0, self._get(key) + size)
            if used:
                self._table.put(key, _SIZE.pack(used))
            else:
                self._table.delete(key)

    def _owners(self) -> Iterator[tuple[str, int]]:
        for owner, value in self._table.records_of(self._prefix):
            yield owner.decode(), _SIZE.unpack(value)[0]

    def _get(self, key: bytes) -> int:
        value = self._table.get(key)
        return 0 if value is None else _SIZE.unpack(value)[0]
