"""Cursors: how far groups have read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Final, final

from iris.patterns.bridge_protocol import GROUP
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log.open_log import OpenLog
from iris.spark_bridge.log.owners import Owners
from iris.spark_bridge.log.records import CURSORS, OWNERS, Cursor, Owner

_SIGN_OF_LIFE: Final = 3_600_000_000
"""Microseconds after which it is written down again that a group is in use."""


@final
class Cursors:
    """The cursors of groups of readers.  Every call blocks.

    Args:
        log: the log.
        owners: owners of the groups.
    """

    def __init__(self, log: OpenLog, owners: Owners) -> None:
        self._log = log
        self._owners = owners

    def all(self) -> list[Cursor]:
        """Return every cursor by group."""
        with self._log.index.read() as view:
            return [cursor for _, cursor in view.items(CURSORS)]

    def pin(self, group: str, start: Mapping[str, int], *, now: int) -> Cursor:
        """Return the group's cursor; made with ``start`` if there is none."""
        with self._log.writing, self._log.index.write() as view:
            found = view.find(CURSORS, group)
            if found is None:
                found = Cursor(group=group, start=start, offsets=start, timestamp=now)
                view.put(CURSORS, group, found)
            return found

    def begin(self, group: str, start: Callable[[], Mapping[str, int]], *, now: int) -> Cursor:
        """Do the same, and ask for ``start`` only if there is none: where the group began may have been trimmed.

        Nobody waits meanwhile: ``start`` may read from a tier.
        """
        with self._log.index.read() as view:
            found = view.get(CURSORS, group)
        return found or self.pin(group, start(), now=now)

    def move(self, group: str, offsets: Mapping[str, int], *, now: int) -> None:
        """Record a group's progress; one without cursor gets one."""
        with self._log.writing, self._log.index.write() as view:
            found = view.find(CURSORS, group)
            start = offsets if found is None else found.start
            view.put(CURSORS, group, Cursor(group=group, start=start, offsets=offsets, timestamp=now))

    def claim(self, group: str, owner: str, *, most: int, most_of_owner: int, now: int) -> str:
        """Return the owner of a group: ``owner`` from now on, if it had none; that it is used is written down.

        Raises:
            QuotaExceeded: the group had no owner, and would be one too many; see ``Owners.claim``.
            StoreFull: there is no room to write that down.
        """
        known = self._owners.claim("group", group, owner, most=most, most_of_owner=most_of_owner, now=now)
        if known == owner and not group.startswith(GROUP):
            self._note_use(group, owner, now)
        return known

    def _note_use(self, group: str, owner: str, now: int) -> None:
        """Write down that its owner uses a group, unless that was noted within the hour."""
        with self._log.index.read() as view:
            cursor = view.get(CURSORS, group)
            since = view.get(OWNERS, ("group", group)) if cursor is None else None
        last = cursor.timestamp if cursor is not None else since.since if since is not None else 0
        if last >= now - _SIGN_OF_LIFE:
            return
        with contextlib.suppress(StoreFull), self._owners.changing() as view:
            cursor = view.get(CURSORS, group)
            if cursor is not None:
                view.put(CURSORS, group, dataclasses.replace(cursor, timestamp=now))
            else:  # it may have expired a moment ago
                view.put(OWNERS, ("group", group), Owner(now, owner))

    def expire(self, before: int, used: Collection[str], *, now: int) -> dict[str, str]:
        """Forget groups that were last used before ``before``; return them with their owners, "" if one had none.

        Those of queues stay.

        Args:
            before: microseconds since 1970.
            used: groups that are in use: they stay, and that is written down now and then.
            now: microseconds since 1970.

        Raises:
            StoreFull: there is no room; nothing was changed.
        """
        with self._owners.changing() as view:
            owners = {name: owner for (kind, name), owner in view.items(OWNERS) if kind == "group"}
            cursors = dict(view.items(CURSORS))
            last_used = {group: owner.since for group, owner in owners.items()}
            last_used |= {group: cursor.timestamp for group, cursor in cursors.items()}
            expired = {
                group: owners[group].cluster if group in owners else ""
                for group, timestamp in last_used.items()
                if timestamp < before and group not in used and not group.startswith(GROUP)
            }
            for cursor in cursors.values():
                if cursor.group in used and cursor.timestamp < now - _SIGN_OF_LIFE:
                    view.put(CURSORS, cursor.group, dataclasses.replace(cursor, timestamp=now))
            for group in expired:
                view.delete(OWNERS, ("group", group))
                view.delete(CURSORS, group)
        return expired

    def drop(self, group: str) -> bool:
        """Forget a group and whose it was; return whether it was known."""
        with self._owners.changing() as view:
            owned = view.delete(OWNERS, ("group", group))
            return view.delete(CURSORS, group) or owned
