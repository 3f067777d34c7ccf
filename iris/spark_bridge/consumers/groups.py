"""Groups of readers at one member of a bridge: which are in use, and which have expired.

A group that nobody uses keeps its place for a time, and expires then: its name is free, and retention keeps nothing for
it.  A group is used by a consumer for as long as its tunnel is open, and by each request of its owner that names it;
Spark's queries send one an hour at least.  So the log has a sign of life of a group in use that is never older than
that.  The groups of queues do not expire: their positions say which jobs are done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, final

import trio

from iris.kernel.tasks import run_in_thread
from iris.spark_bridge.log import Store

_log: Final = logging.getLogger("iris")

_DAY: Final = 86_400.0
_LEAVING: Final = 1.0
"""Seconds that consumers have to leave a group that is to be dropped."""


@final
class ReaderGroups:
    """The groups of one member.

    Args:
        store: log of the member, which has their positions.
        idle: seconds after which a group that nobody uses expires.
    """

    def __init__(self, store: Store, idle: float) -> None:
        self._store = store
        self._idle = idle
        self._consumers: Counter[str] = Counter()
        """Number of consumers that are here, by group."""
        self._left = trio.lowlevel.ParkingLot()
        """Tasks that wait for consumers to leave."""
        self.expired = 0
        """Groups that have expired since the member was started."""

    def __repr__(self) -> str:
        return f"<ReaderGroups, {len(self._consumers)} in use, {self.expired} expired>"

    @contextmanager
    def using(self, group: str) -> Iterator[None]:
        """Count a group as in use in a block."""
        self._consumers[group] += 1
        try:
            yield
        finally:
            self._consumers[group] -= 1
            if not self._consumers[group]:
                del self._consumers[group]
                self._left.unpark_all()

    async def wait_unused(self, group: str) -> bool:
        """Wait a second for the consumers of a group to leave, which may be on the way; return whether they have."""
        with trio.move_on_after(_LEAVING):
            while group in self._consumers:
                await self._left.park()
        return group not in self._consumers

    async def expire(self, now: int) -> Sequence[str]:
        """Forget the groups that nobody has used for too long, and note that those of consumers are in use.

        Args:
            now: microseconds since 1970.

        Raises:
            StoreFull: there is no room to write that down; nothing was changed.
        """
        before = now - int(self._idle * 1_000_000)
        expire = partial(self._store.cursors.expire, before, frozenset(self._consumers), now=now)
        expired = await run_in_thread(expire)
        self.expired += len(expired)
        for group, owner in expired.items():
            _log.warning(
                "group %s%s was not used for %g days, and its place is forgotten: a reader of that name is a new one",
                group,
                f" of cluster {owner}" if owner else "",
                self._idle / _DAY,
                extra={"cluster": owner or None},
            )
        return tuple(expired)
