"""Quota: what the index keeps for each cluster, in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, final

from iris.kernel.config import MIB
from iris.kernel.names import account_of
from iris.spark_bridge.log.records import KEY_COUNTS
from iris.spark_bridge.log.transaction import Transaction

QuotaKind = Literal["keys", "publishers", "retries"]
"""Kinds of records with a quota: idempotency keys with their outcomes, the numbers seen of publishers, and failed
attempts of jobs."""

_ONE: Final = 16
_ALL: Final = 4
"""Divisors of the room: one cluster may have a sixteenth, all together a quarter."""


@final
class Quota:
    """Use of one kind of record by each cluster, in bytes, counted in the transaction that changes it.

    A cluster may have a sixteenth of the room, and all clusters together a quarter; those of another realm count as
    one.  So what one of them fills up is refused, or forgotten, for that one: there is room for the others' things, and
    for events.

    Args:
        view: the transaction.
        kind: kind of the records.
    """

    def __init__(self, view: Transaction, kind: QuotaKind) -> None:
        self._view = view
        # Names of clusters have none of these characters: no count is mistaken for another one.
        self._total = kind.encode() + b"\1"
        self._prefix = kind.encode() + b"\0"

    def used(self, owner: str) -> int:
        """Return how many bytes are kept for a cluster."""
        return self._get(self._prefix + account_of(owner).encode())

    @property
    def total(self) -> int:
        """Use of all clusters together, in bytes."""
        return self._get(self._total)

    def excess(self, owner: str, more: int = 0) -> str | None:
        """Return who would be above its quota if a cluster used ``more`` bytes more; None: nobody."""
        used, total = self.used(owner), self.total
        room = self._view.room(total)
        if used + more > room // _ONE:
            return f"cluster {account_of(owner)!r} has {used / MIB:,.1f} of {room / _ONE / MIB:,.1f} MiB"
        if total + more > room // _ALL:
            return f"all clusters together have {total / MIB:,.1f} of {room / _ALL / MIB:,.1f} MiB"
        return None

    def surplus(self, owner: str) -> tuple[str, int] | None:
        """Return of which cluster how many bytes are to be forgotten, after some were added for one; None: of none.

        Where all together have too much it is the one that has most.  A quarter goes at a time.
        """
        used, total = self.used(owner), self.total
        room = self._view.room(total)
        if used > room // _ONE:
            return account_of(owner), used - room // _ONE * 3 // 4
        if total > room // _ALL:
            largest, most = max(self._owners(), key=lambda one: one[1])
            return largest, most // 4
        return None

    def add(self, owner: str, size: int) -> None:
        """Count so many bytes more for a cluster, or fewer."""
        for key in (self._prefix + account_of(owner).encode(), self._total):
            used = max(0, self._get(key) + size)
            if used:
                self._view.put(KEY_COUNTS, key, used)
            else:
                self._view.delete(KEY_COUNTS, key)

    def _owners(self) -> Iterator[tuple[str, int]]:
        for owner, used in self._view.under(KEY_COUNTS, self._prefix):
            yield owner.decode(), used

    def _get(self, key: bytes) -> int:
        return self._view.get(KEY_COUNTS, key) or 0
