"""Replica: one copy of a document.  Writes, merges the edits of others, compares with other replicas.  Sans-IO.

A document is a set of entries, each left by one write, which a dot names: writer and number.  Of every write a replica
knows one of three things, and never goes back: nothing; the entry that it left; that this is gone.  The third needs no
tombstone: the number is counted in the vector, and no entry is there.  What two replicas know is joined dot by dot, so
replicas that were joined in any order and any number of times are equal (causal CRDTs: Almeida, Shoker and Baquero,
"Delta state replicated data types", 2018).

Where two entries have one dot, since two writers took one number or a member forges, the one with the greater hash
counts.  A writer that sees its number used by another one takes a free number, and writes anew what it lost by that.
The number of a write has a bound that grows with the date: nobody can use up all numbers.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final, Protocol, final

from msgspec.structs import replace

from iris.kernel.errors import Overloaded, RemoteProtocolError
from iris.patterns.state.entries import (
    BUCKETS,
    COUNTER,
    MAX_COUNT,
    OVERHEAD,
    WRITERS,
    Added,
    Edit,
    Entry,
    Group,
    Kind,
    Vector,
    dot_of,
    encode,
    read_added,
)

_TOLERANCE: Final = 2
"""Others may fill a document to twice its bound: each keeps to it, but several may write at once."""
_RESERVED: Final = 32
"""A writer may always keep its 32nd part of the bound, whatever others have filled."""
_AHEAD: Final = 86_400.0
"""Seconds that the clock of another member may be ahead of this one's, as far as the bound of numbers goes."""
_FEW: Final = 16
"""Entries of a key that are kept in a tuple."""
_WRITTEN_ANEW: Final = 64
"""Entries that a writer writes anew at a time when another one has used its number."""


class ReplicaObserver(Protocol):
    """Who follows a replica.  Its methods are called within a write, and must not wait or write."""

    def check_open(self) -> None:
        """Raise where nobody would get what is written."""
        ...

    def note_edit(self) -> None:
        """Note that there is an edit to send."""
        ...

    def note_change(self, kind: Kind, key: str) -> None:
        """Note that an entry has come or gone, of what a watcher sees so."""
        ...


@final
class Replica:
    """One copy of a document.

    Args:
        random: draws the writer's number.
        wall_clock: seconds since 1970; bounds the numbers of writes.
        max_bytes: of all entries; see ``Entry.size``.
        claimed: numbers of writers that other members use now.
    """

    def __init__(
        self,
        observer: ReplicaObserver,
        *,
        random: Random,
        wall_clock: Callable[[], float],
        max_bytes: int,
        claimed: Callable[[], Collection[int]],
    ) -> None:
        self.vector: Final[Vector] = {}
        self.size = 0
        """Bytes of all entries."""
        self.writer = -1
        """Number of this writer; -1 until it writes."""
        self._starts: dict[int, int] = {}
        """Numbers that this writer has used, each with a random number that tells who uses it, where several do."""
        self.evicted = 0
        """Entries that were removed because the document had more than twice its bytes."""
        self._observer = observer
        self._random = random
        self._wall_clock = wall_clock
        self._max_bytes = max_bytes
        self._claimed = claimed
        self._groups: dict[Group, dict[str, tuple[Entry, ...] | dict[int, Entry]]] = {}
        """Entries of each key: a tuple, or by dot where a member forges many: each comes and goes at the same cost."""
        self._maps: Counter[str] = Counter()
        """Entries of each map."""
        self._written: dict[int, dict[int, Entry]] = {}
        """Entries by writer and dot, in the order in which they came."""
        self._bytes: Counter[int] = Counter()
        """Bytes of the entries of each writer."""
        self._buckets: Final[list[set[int]]] = [set() for _ in range(BUCKETS)]
        self._digests: Final[dict[int, bytes]] = {}
        """Digests of the buckets that have not changed since they were computed."""
        self._outbox: list[Edit] = []
        self._sent = 0
        """Writes of this writer that edits were made of."""
        self._added: dict[int, Entry] = {}
        self._removed: list[int] = []
        self._seen: Vector = {}
        """What has come from others since the last edit."""
        self._lost: deque[tuple[Entry, int]] = deque()
        """What is to be written anew, of a counter with the number that is to be added."""
        self._lost_bytes = 0

    # -- reading --------------------------------------------------------------------------------------------

    def keys(self, group: Group) -> list[str]:
        """Return the keys of a group, sorted."""
        return sorted(self._groups.get(group, ()))

    def count(self, group: Group) -> int:
        """Return how many keys a group has."""
        return len(self._groups.get(group, ()))

    def has(self, group: Group, key: str) -> bool:
        """Tell whether a key is there."""
        return key in self._groups.get(group, ())

    def entries(self, group: Group, key: str) -> tuple[Entry, ...]:
        """Return the entries of a key.  Several are there after writes at the same time, and for counters."""
        found = self._groups.get(group, {}).get(key, ())
        return found if isinstance(found, tuple) else tuple(found.values())

    def has_map(self, name: str) -> bool:
        """Tell whether a map has anything."""
        return name in self._maps

    def groups(self) -> Iterator[Group]:
        """Iterate over the groups that have keys."""
        return iter(self._groups)

    # -- writing --------------------------------------------------------------------------------------------

    def write(self, group: Group, key: str, payload: bytes) -> None:
        """Set a key, in the place of what is there.

        Raises:
            Overloaded: the document is full.
        """
        self._observer.check_open()
        self._write(group, key, payload, self.entries(group, key))

    def add(self, group: Group, name: str, number: int) -> None:
        """Add to what this writer has added to a counter.

        Raises:
            OverflowError: that leaves 53 bits.
            Overloaded: the document is full.
        """
        self._observer.check_open()
        self._add(group, name, number)

    def _add(self, group: Group, name: str, number: int) -> None:
        self._choose_writer()
        start = self._starts[self.writer]
        own = self._counted(group, name, self.writer)
        last = read_added(own) if own is not None else Added(0, start, 0, 0, 0)
        if last.start == start:
            added = replace(last, total=last.total + number, own=last.own + number)
        else:
            added = Added(last.total + number, start, number, last.start, last.own)
        if max(abs(added.total), abs(added.own)) > MAX_COUNT:
            raise OverflowError
        self._write(group, name, encode(added), () if own is None else (own,))

    def _counted(self, group: Group, name: str, writer: int) -> Entry | None:
        """Return the entry of a counter that has a writer's number; of several, as a member may forge, the last."""
        own = [entry for entry in self.entries(group, name) if entry.dot % WRITERS == writer]
        return max(own, key=lambda entry: entry.dot, default=None)

    def remove(self, group: Group, key: str) -> None:
        """Remove a key, if it is there."""
        self._observer.check_open()
        entries = self.entries(group, key)
        if entries:
            self._choose_writer()
            self._remove(entries)
            self.vector[self.writer] = self.vector.get(self.writer, 0) + 1
            self._observer.note_edit()

    def _write(self, group: Group, key: str, payload: bytes, replaced: Sequence[Entry]) -> None:
        self._choose_writer()
        number = self.vector.get(self.writer, 0) + 1
        entry = Entry(dot_of(self.writer, number), *group, key, payload)
        growth = entry.size - sum(one.size for one in replaced)
        share = self._bytes[self.writer] + entry.size
        if growth > 0 and self.size + growth > self._max_bytes and share > self._max_bytes // _RESERVED:
            raise Overloaded(f"the document has {self.size} bytes: {self._max_bytes} are the most")
        self._remove(replaced)
        self._insert(entry)
        self._added[entry.dot] = entry
        self.vector[self.writer] = number
        self._observer.note_edit()

    def _remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.dot not in self._added:
                self._removed.append(entry.dot)
            self._drop(entry)

    def _choose_writer(self) -> None:
        """Take a number, if this writer has none: one that nobody has used, or if there is none, that nobody uses."""
        if self.writer < 0:
            claimed = {*self._claimed(), *self._starts}
            fresh = [one for one in range(WRITERS) if one not in self.vector and one not in claimed]
            free = fresh or [one for one in range(WRITERS) if one not in claimed]
            self.writer = self._random.choice(free or range(WRITERS))
            self._starts[self.writer] = self._random.getrandbits(53)
            self._sent = self.vector.get(self.writer, 0)

    def take_edits(self) -> list[Edit]:
        """Return what was written here and not taken yet: one edit, or more if this writer took another number.

        What was lost by that is written anew some at a time: there may be edits to take again.
        """
        self._finish_edit()
        edits, self._outbox = self._outbox, []
        self._write_anew()
        return edits

    def _finish_edit(self) -> None:
        number = self.vector.get(self.writer, 0)
        if self.writer >= 0 and number > self._sent:
            needs = {writer: count for writer, count in self._seen.items() if writer != self.writer}
            added, removed = list(self._added.values()), self._removed
            self._outbox.append(Edit(self.writer, self._sent + 1, number - self._sent, needs, added, removed))
            self._added, self._removed, self._seen, self._sent = {}, [], {}, number

    # -- merging --------------------------------------------------------------------------------------------

    def covers(self, vector: Mapping[int, int]) -> bool:
        """Tell whether everything that a vector counts is known."""
        known = self.vector
        return all(known.get(writer, 0) >= number for writer, number in vector.items())

    def apply(self, edit: Edit) -> bool:
        """Merge an edit of another member; False if something has to come before it.

        Raises:
            RemoteProtocolError: its numbers are beyond what the date allows.
        """
        if edit.first + edit.count > self._bound():
            raise RemoteProtocolError("a writer has more writes than microseconds have passed since 1970")
        known = self.vector.get(edit.writer, 0)
        if edit.first > known + 1 or not self.covers(edit.needs):
            return False
        last = edit.first + edit.count - 1
        used = self._is_used({edit.writer: last}, edit.added)
        lost = [one for entry in edit.added if (one := self._merge(entry, known)) is not None]
        for dot in edit.removed:
            entry = self._find(dot)
            if entry is not None:
                self._drop(entry)
                lost.append(entry)
        self._advance(edit.writer, last)
        self._finish(lost, used=used)
        return True

    def absorb(self, vector: Mapping[int, int], buckets: Iterable[int], entries: Mapping[int, Entry]) -> None:
        """Merge what another replica has in some buckets, by dot; the others have to be equal.

        Raises:
            RemoteProtocolError: an entry is not counted by its vector.
        """
        if any(dot // WRITERS > vector.get(dot % WRITERS, 0) for dot in entries):
            raise RemoteProtocolError("a replica has entries that its vector does not count")
        bound = self._bound()
        if max(vector.values(), default=0) > bound:  # a clock is ahead: what those have written waits for the date
            vector = {writer: number for writer, number in vector.items() if number <= bound}
            entries = {dot: entry for dot, entry in entries.items() if dot % WRITERS in vector}
        used = self._is_used(vector, entries.values())
        lost: list[Entry] = []
        for bucket in buckets:
            gone = [dot for dot in self._buckets[bucket] if dot not in entries]
            for dot in gone:
                if dot // WRITERS <= vector.get(dot % WRITERS, 0):
                    entry = self._written[dot % WRITERS][dot]
                    self._drop(entry)
                    lost.append(entry)
        known = self.vector
        for entry in entries.values():
            one = self._merge(entry, known.get(entry.dot % WRITERS, 0))
            if one is not None:
                lost.append(one)
        for writer, number in vector.items():
            self._advance(writer, number)
        self._finish(lost, used=used)

    def _bound(self) -> float:
        """Return how many writes a writer may have: as many as microseconds have passed since 1970, and of a day."""
        return (self._wall_clock() + _AHEAD) * 1e6

    def _advance(self, writer: int, number: int) -> None:
        if number > self.vector.get(writer, 0):
            self.vector[writer] = self._seen[writer] = number

    def _merge(self, entry: Entry, known: int) -> Entry | None:
        """Put in an entry, if it is new; return the one with the same dot that it replaces."""
        mine = self._find(entry.dot)
        if mine is None:
            if entry.dot // WRITERS > known:
                self._insert(entry)
        elif mine != entry and _hash(entry) > _hash(mine):
            self._drop(mine)
            self._insert(entry)
            return mine
        return None

    def _is_used(self, vector: Mapping[int, int], entries: Iterable[Entry]) -> bool:
        """Tell whether somebody else has written with this writer's number."""
        writer = self.writer
        if writer < 0 or vector.get(writer, 0) > self.vector.get(writer, 0):
            return writer >= 0
        own = (entry for entry in entries if entry.dot % WRITERS == writer)
        return any(mine != entry for entry in own if (mine := self._find(entry.dot)) is not None)

    def _finish(self, lost: list[Entry], *, used: bool) -> None:
        """Keep to the bound, and write anew what was lost because another one has used this writer's number."""
        self._evict()
        # Of a counter a writer has one entry: of several, as a member may forge, the last.
        last = {(entry.group, entry.key, entry.dot % WRITERS): entry.dot for entry in sorted(lost, key=_dot)}
        for entry in lost:
            writer = entry.dot % WRITERS
            if writer in self._starts and (entry.kind != COUNTER or last[entry.group, entry.key, writer] == entry.dot):
                number = self._missing(entry)
                again = number or (entry.kind != COUNTER and (used or self._find(entry.dot)))
                if again and self._lost_bytes + entry.size <= self._max_bytes:  # a member may forge without end
                    self._lost.append((entry, number))
                    self._lost_bytes += entry.size
        if used:
            self._finish_edit()
            self.writer = -1
        self._write_anew()

    def _write_anew(self) -> None:
        """Write anew some of what was lost: who forges many small entries has nobody write many large ones at once."""
        for _ in range(min(len(self._lost), _WRITTEN_ANEW)):
            entry, number = self._lost.popleft()
            self._lost_bytes -= entry.size
            with suppress(Overloaded, OverflowError):
                if number:
                    self._add(entry.group, entry.key, number)
                elif not self.has(entry.group, entry.key):
                    self._write(entry.group, entry.key, entry.payload, ())
        if self._lost:
            self._observer.note_edit()

    def _missing(self, entry: Entry) -> int:
        """Return what this one has added to a counter by an entry that is gone, and is in no other of its number."""
        writer = entry.dot % WRITERS
        start = self._starts[writer]
        if entry.kind != COUNTER or read_added(entry).start != start:
            return 0
        there = self._counted(entry.group, entry.key, writer)
        return read_added(entry).own - (0 if there is None else read_added(there).share_of(start))

    def _evict(self) -> None:
        """Remove the newest entries of whom most bytes are, where the document has more than it may."""
        while self.size > _TOLERANCE * self._max_bytes:
            writer = max(self._bytes, key=self._bytes.__getitem__)
            written = self._written[writer]
            for _ in range(min(len(written), 1 + self.size // (1000 * OVERHEAD))):
                self._drop(written[next(reversed(written))])
                self.evicted += 1

    # -- comparing ------------------------------------------------------------------------------------------

    def refresh(self, most: int) -> bool:
        """Compute digests of buckets that have changed, ``most`` of them; tell whether that were all."""
        changed = [bucket for bucket in range(BUCKETS) if bucket not in self._digests]
        for bucket in changed[:most]:
            digest = hashlib.blake2b(digest_size=16)
            for dot in sorted(self._buckets[bucket]):
                digest.update(encode(self._written[dot % WRITERS][dot]))
            self._digests[bucket] = digest.digest()
        return len(changed) <= most

    def digests(self) -> list[bytes]:
        """Return the digests of all buckets: equal ones have equal entries."""
        self.refresh(BUCKETS)
        return [self._digests[bucket] for bucket in range(BUCKETS)]

    def digest(self) -> bytes:
        """Return the digest of the document: 16 bytes.  Replicas with the same one know the same."""
        digest = hashlib.blake2b(encode(sorted(self.vector.items())), digest_size=16)
        for one in self.digests():
            digest.update(one)
        return digest.digest()

    def difference(self, digests: Sequence[bytes]) -> dict[int, list[Entry]]:
        """Return the buckets whose digests differ, with their entries."""
        mine = self.digests()
        return {
            bucket: [self._written[dot % WRITERS][dot] for dot in self._buckets[bucket]]
            for bucket in range(BUCKETS)
            if mine[bucket] != digests[bucket]
        }

    def all_entries(self) -> list[Entry]:
        """Return the entries of the whole document."""
        return [entry for written in self._written.values() for entry in written.values()]

    # -- entries --------------------------------------------------------------------------------------------

    def _find(self, dot: int) -> Entry | None:
        return self._written.get(dot % WRITERS, {}).get(dot)

    def _insert(self, entry: Entry) -> None:
        dot, size, bucket, group = entry.dot, entry.size, entry.bucket, entry.group
        writer = dot % WRITERS
        self._written.setdefault(writer, {})[dot] = entry
        self._maps[entry.map] += 1
        self._bytes[writer] += size
        self.size += size
        self._buckets[bucket].add(dot)
        self._digests.pop(bucket, None)
        keys = self._groups.setdefault(group, {})
        there = keys.get(entry.key, ())
        if isinstance(there, dict):
            there[dot] = entry
        elif len(there) < _FEW:
            keys[entry.key] = (*there, entry)
        else:
            keys[entry.key] = {one.dot: one for one in (*there, entry)}
        self._observer.note_change(*entry.shown)

    def _drop(self, entry: Entry) -> None:
        dot, size, bucket, group = entry.dot, entry.size, entry.bucket, entry.group
        writer = dot % WRITERS
        del self._written[writer][dot]
        if not self._written[writer]:
            del self._written[writer]
        self._maps[entry.map] -= 1
        if not self._maps[entry.map]:
            del self._maps[entry.map]
        self._bytes[writer] -= size
        if not self._bytes[writer]:
            del self._bytes[writer]
        self.size -= size
        self._buckets[bucket].discard(dot)
        self._digests.pop(bucket, None)
        self._added.pop(dot, None)
        keys = self._groups[group]
        there = keys[entry.key]
        if isinstance(there, dict):
            del there[dot]
        else:
            there = keys[entry.key] = tuple(one for one in there if one.dot != dot)
        if not there:
            del keys[entry.key]
            if not keys:
                del self._groups[group]
        self._observer.note_change(*entry.shown)


def _dot(entry: Entry) -> int:
    return entry.dot


def _hash(entry: Entry) -> bytes:
    return hashlib.blake2b(encode(entry), digest_size=16).digest()
