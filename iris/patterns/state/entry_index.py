"""Entry index: the entries of a document, by dot in buckets, and by key."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, final

from iris.patterns.state.entries import (
    BUCKETS,
    COUNTER,
    SET,
    VALUE,
    WRITERS,
    Entry,
    Group,
    Kind,
    by_dot,
    encode,
)

_WRITES: Final = 8 * WRITERS

Cell = Entry | dict[int, Entry]
"""Entries of a key: one, or several by their dots, so that each comes and goes at the same cost."""


@final
class EntryIndex:
    """The entries of a document.

    Attributes:
        groups: cells by group and key.
        named: names of maps and of the document's own sets, with the number of their groups.
        buckets: entries by dot, in parts that are compared by a digest each; see ``bucket_of``.
        digests: digests of the buckets that have not changed since.
        bytes: size of each writer's entries, in bytes.
        own: dots of entries that this member has written since it opened the document.
        changed: entries that came or went since ``pop_changes``.
        came: dots of those with which a key or name came that no watcher had seen.
    """

    __slots__ = ("buckets", "bytes", "came", "changed", "digests", "groups", "named", "own", "size")

    def __init__(self) -> None:
        self.groups: dict[Group, dict[str, Cell]] = {}
        self.named: dict[Kind, Counter[str]] = {"map": Counter(), "set": Counter()}
        self.buckets: Final[list[dict[int, Entry]]] = [{} for _ in range(BUCKETS)]
        self.digests: dict[int, bytes] = {}
        self.bytes: Counter[int] = Counter()
        self.own: set[int] = set()
        self.size = 0
        self.changed: list[Entry] = []
        self.came: set[int] = set()

    def copy(self) -> EntryIndex:
        """Return a copy, whose changes are its own: some ms for a full document."""
        copy = EntryIndex()
        copy.size, copy.digests = self.size, self.digests.copy()
        copy.bytes, copy.own = self.bytes.copy(), self.own.copy()
        copy.named = {kind: names.copy() for kind, names in self.named.items()}
        copy.buckets[:] = [bucket.copy() for bucket in self.buckets]
        for group, cells in self.groups.items():
            copy.groups[group] = {key: cell.copy() if type(cell) is dict else cell for key, cell in cells.items()}
        return copy

    def keys(self, group: Group) -> list[str]:
        """Return the keys of a group, sorted."""
        return sorted(self.groups.get(group, ()))

    def count(self, group: Group) -> int:
        """Return how many keys a group has."""
        return len(self.groups.get(group, ()))

    def has(self, group: Group, key: str) -> bool:
        """Return whether a key is there."""
        return key in self.groups.get(group, ())

    def at(self, group: Group, key: str) -> tuple[Entry, ...]:
        """Return the entries of a key.  Several are there after writes at the same time, and for counters."""
        return _entries(self.groups.get(group, {}).get(key, {}))

    def all_of(self, group: Group) -> dict[str, tuple[Entry, ...]]:
        """Return the entries of all keys of a group, as they are now."""
        return {key: _entries(cell) for key, cell in self.groups.get(group, {}).items()}

    def names(self, kind: Kind) -> Collection[str]:
        """Return what a watcher sees of a kind: keys of values, and names of what is not in a map."""
        if kind in self.named:
            return self.named[kind]
        return self.groups.get((VALUE if kind == "value" else COUNTER, "", ""), ())

    def shows(self, kind: Kind, name: str) -> bool:
        """Return whether a watcher sees something of a name."""
        return name in self.names(kind)

    def find(self, dot: int) -> Entry | None:
        """Return the entry of a dot."""
        return self.buckets[bucket_of(dot)].get(dot)

    def insert(self, entries: Iterable[Entry]) -> None:
        """Put in entries with dots that are not there."""
        buckets, groups, came = self.buckets, self.groups, self.came
        for entry in entries:
            dot, key, size = entry.dot, entry.key, entry.size
            bucket = (dot // _WRITES + dot) % BUCKETS  # as in bucket_of
            buckets[bucket][dot] = entry
            if self.digests:
                self.digests.pop(bucket, None)
            self.bytes[dot % WRITERS] += size
            self.size += size
            self.changed.append(entry)
            cells = groups.get((entry.kind, entry.map, entry.name))
            if cells is None:
                cells = groups[entry.group] = {}
                if entry.map or entry.kind == SET:
                    kind, name = entry.shown
                    self.named[kind][name] += 1
                    if self.named[kind][name] == 1:
                        came.add(dot)
            cell = cells.get(key)
            if cell is None:
                cells[key] = entry
                if not entry.map and entry.kind != SET:
                    came.add(dot)
            elif isinstance(cell, dict):
                cell[dot] = entry
            else:
                cells[key] = {cell.dot: cell, dot: entry}

    def drop(self, entry: Entry) -> None:
        """Remove an entry that is there."""
        dot, group = entry.dot, entry.group
        bucket, size = bucket_of(dot), entry.size
        del self.buckets[bucket][dot]
        self.own.discard(dot)
        self.digests.pop(bucket, None)
        self.bytes[dot % WRITERS] -= size
        self.size -= size
        self.changed.append(entry)
        cells = self.groups[group]
        cell = cells[entry.key]
        if type(cell) is dict:
            del cell[dot]
        if type(cell) is not dict or not cell:
            del cells[entry.key]
            if not cells:
                del self.groups[group]
                if entry.map or entry.kind == SET:
                    kind, name = entry.shown
                    self.named[kind][name] -= 1
                    if not self.named[kind][name]:
                        del self.named[kind][name]

    def pop_changes(self) -> tuple[list[Entry], set[int]]:
        """Return what changed and what came since the last time."""
        taken = self.changed, self.came
        self.changed, self.came = [], set()
        return taken

    def digest(self, bucket: int) -> bytes:
        """Return the digest of a bucket: 16 bytes."""
        if bucket not in self.digests:
            entries = sorted(self.buckets[bucket].values(), key=by_dot)
            self.digests[bucket] = hashlib.blake2b(encode(entries), digest_size=16).digest()
        return self.digests[bucket]


def _entries(cell: Cell) -> tuple[Entry, ...]:
    return tuple(cell.values()) if isinstance(cell, dict) else (cell,)


def bucket_of(dot: int) -> int:
    """Return the bucket of a dot: eight writes of a writer, one after the other, are in one."""
    return (dot // _WRITES + dot) % BUCKETS
