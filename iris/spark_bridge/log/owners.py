"""Owners: the clusters to which the names of groups and queries belong."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator
from typing import Final, final

from iris.kernel.names import account_of
from iris.spark_bridge.errors import QuotaExceeded
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.records import CURSORS, OWNERS, SINKS, Name, Owner
from iris.spark_bridge.log.transaction import Transaction

JOB_PREFIX: Final = "job-"
"""Prefix of the ids of Spark's batch jobs; a job never comes back, unlike a streaming query."""


@final
class Owners:
    """The owners of names, by kind: ``group`` or ``query``.  Every call blocks.

    Args:
        log: the log.
    """

    def __init__(self, log: OpenLog) -> None:
        self._log = log
        self._owned: Counter[tuple[str, str]] | None = None
        """Number of names by kind and cluster that owns them. None until they are counted."""
        self._cached: dict[Name, str] = {}
        """Owners that were asked for; each has a record in the log."""

    def claim(self, kind: str, name: str, owner: str, *, most: int, most_of_owner: int, now: int) -> str:
        """Return the owner of a name: ``owner`` from now on, if it had none.

        Args:
            kind: kind of the name.
            name: name of the group or query.
            owner: the cluster.
            most: names of this kind that may have an owner.
            most_of_owner: names of them that ``owner`` may have, or all clusters of its realm if that is another one.
            now: microseconds since 1970.

        Raises:
            QuotaExceeded: the name had no owner, and would be one too many.
            StoreFull: there is no room to write that down.
        """
        known = self._cached.get((kind, name))
        if known is not None:
            return known
        with self._log.writing:
            known = self.owner(kind, name)
            if known is not None:
                return known
            if self._owned is None:
                # Read in full, once, before a name counts as free: damage could hide its record.
                with self._log.index.read() as view:
                    self._owned = Counter((alike, account_of(one.cluster)) for (alike, _), one in view.items(OWNERS))
            account = account_of(owner)
            if self._owned[kind, account] >= most_of_owner:
                raise _too_many(kind, name, f"cluster {account!r}", most_of_owner)
            if sum(count for (alike, _), count in self._owned.items() if alike == kind) >= most:
                raise _too_many(kind, name, "all clusters together", most)
            with self._log.index.write() as view:
                view.put(OWNERS, (kind, name), Owner(now, owner))
            self._owned[kind, account] += 1
            self._cached[kind, name] = owner
        return owner

    def owner(self, kind: str, name: str) -> str | None:
        """Return the owner of a name; None if it has none."""
        cached = self._cached
        known = cached.get((kind, name))
        if known is None:
            with self._log.index.read() as view:
                found = view.get(OWNERS, (kind, name))
            if found is not None:
                known = cached[kind, name] = found.cluster
        return known

    def of_kind(self, kind: str) -> dict[str, str]:
        """Return the owner of each name of a kind that has one."""
        with self._log.index.read() as view:
            return {name: owner.cluster for (alike, name), owner in view.items(OWNERS) if alike == kind}

    @contextlib.contextmanager
    def changing(self) -> Generator[Transaction]:
        """Change owners in a transaction; who asks when it is over gets the new ones.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        with self._log.writing:
            try:
                with self._log.index.write() as view:
                    yield view
            finally:
                # Behind the commit: a reader that looked before it caches what it found in the dictionary that goes.
                self._cached, self._owned = {}, None

    def transfer(self, kind: str, name: str, owner: str, *, now: int) -> bool:
        """Let a name belong to another cluster; return whether it was known."""
        with self.changing() as view:
            known = view.get(OWNERS, (kind, name)) is not None
            if not known:
                used = view.find(CURSORS, name) if kind == "group" else view.find(SINKS, name)
                known = used is not None
            if known:
                view.put(OWNERS, (kind, name), Owner(now, owner))
            return known

    def drop_query(self, query: str) -> bool:
        """Forget a query, its last batch and whose it was; return whether it was known."""
        with self.changing() as view:
            owned = view.delete(OWNERS, ("query", query))
            return view.delete(SINKS, query) or owned

    @staticmethod
    def drop_jobs(view: Transaction, before: int) -> None:
        """Forget Spark's jobs from before a time, see ``changing``; streaming queries are remembered for ever."""
        for query in [query for query, last in view.items(SINKS) if _is_job(query) and last.timestamp < before]:
            view.delete(SINKS, query)
        old = [name for (kind, name), one in view.items(OWNERS) if kind == "query" and one.since < before]
        for name in filter(_is_job, old):
            view.delete(OWNERS, ("query", name))


def _is_job(query: str) -> bool:
    return query.startswith(JOB_PREFIX)


def _too_many(kind: str, name: str, whose: str, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{kind} {name!r} would be one too many: {whose} may have {most} at this bridge. 'iris bridge drop --{kind} "
        "NAME' forgets one that does not come back"
    )
