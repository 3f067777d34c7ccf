"""Replica: one copy of a document.  Writes, merges the edits of others, compares with other replicas.  Sans-IO.

A document is a set of entries, each left by one write, which a dot names: writer and number.  Of every write a replica
knows one of three things, and never goes back: nothing; the entry that it left; that this is gone.  The third needs no
tombstone: the number is counted in the vector, and no entry is there.  What two replicas know is joined dot by dot, so
replicas that were joined in any order and any number of times are equal (causal CRDTs: Almeida, Shoker and Baquero,
"Delta state replicated data types", 2018).

Where two entries have one dot, since two writers took one number or a member forges, the one with the greater hash
counts.  A writer that sees its number used by another one takes a free number, and writes anew what it has written with
the old one.  The number of a write has a bound that grows with the date: nobody can use up all numbers.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from random import Random
from typing import Final, Protocol, TypeVar, final

from msgspec.structs import replace

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import Overloaded, RemoteProtocolError
from iris.patterns.state.entries import (
    AT_A_TIME,
    BUCKETS,
    COUNTER,
    MAX_COUNT,
    WRITERS,
    Added,
    Edit,
    Entry,
    Group,
    Vector,
    by_dot,
    dot_of,
    encode,
    read_added,
)
from iris.patterns.state.entry_index import EntryIndex

_T = TypeVar("_T")

_TOLERANCE: Final = 2
"""Others may fill a document to twice its bound: each keeps to it, but several may write at once."""
_RESERVED: Final = 32
"""A writer may always keep its 32nd part of the bound, whatever others have filled."""
_AHEAD: Final = 86_400.0
"""Seconds that the clock of another member may be ahead of this one's, as far as the bound of numbers goes."""
_WRITTEN_ANEW: Final = 64
"""Entries that a writer writes anew at a time when another one has used its number."""
_MOST_ANEW: Final = MIB
_ANEW_RATE: Final = 128 * KIB
"""Size that is written anew at once when others use numbers of this writer, in bytes, and rate a second after that."""
_LEFT: Final = 2**32
"""Writes by which a number is advanced, at least, when its writer leaves it: more than a member writes while it runs.

It becomes a multiple of this, so that all know that it was left, and that nobody has just written so much.  Where many
start at once, who looks for a number would else take one that somebody uses, again and again.
"""
_CROWDED: Final = 3
"""Numbers that a writer has left before it takes one that was left: all that start at once would take those few."""
_DIGESTS_AT_A_TIME: Final = 16
_MARGIN: Final = 64
"""Part of the bound, its 64th, that eviction removes beyond need, so that not each edit has to evict."""


def generation(vector: Vector, number: int) -> int:
    """Return a figure that grows whenever a number is left, by a vector: who used it before uses it no more."""
    return vector.get(number, 0) // _LEFT


class Document(Protocol):
    """The document of a replica.  Called within a write or a merge: nothing here may wait or write."""

    def check_open(self) -> None:
        """Raise where nobody would get what is written.  Called before each write."""
        ...

    def note_edit(self) -> None:
        """Note that there is an edit to send."""
        ...

    def note_changes(self, changed: list[Entry], came: set[int]) -> None:
        """Note entries that have come or gone; see ``EntryIndex``."""
        ...

    def wall_time(self) -> float:
        """Return seconds since 1970; they bound the numbers of writes."""
        ...

    def claimed_writers(self) -> Collection[int]:
        """Return the numbers of writers that other members use now."""
        ...


@final
class Replica:
    """One copy of a document.

    Args:
        document: the document that this is a copy of.
        random: draws the writer's number.
        max_bytes: of all entries; see ``Entry.size``.
    """

    def __init__(self, document: Document, random: Random, max_bytes: int) -> None:
        self.vector: Final[Vector] = {}
        self.contents = EntryIndex()
        """Entries that readers see; a merge may put another index in its place."""
        self.writer = -1
        """Number of this writer; -1 until it writes."""
        self.hidden = 0
        """Entries that were hidden by those of another one with this writer's number; they are written anew."""
        self.evicted = 0
        """Entries that were removed because the document had more than twice its bytes."""
        self._document = document
        self._random = random
        self._max_bytes = max_bytes
        self._noting: EntryIndex | None = None
        """What was seen before a long merge, until all of its changes are noted."""
        self._meanwhile: set[int] | None = None
        """Dots of what came or went while a merge works on a copy of the contents. None while none does."""
        self.starts: Final[dict[int, int]] = {}
        """Numbers that this writer has used, each with a random number that tells who uses it, where several do."""
        self._outbox: list[Edit] = []
        self._sent = 0
        """Writes of this writer that edits were made of."""
        self._last = 0
        """Number of the last write of this writer, or that its number had when it was chosen."""
        self._added: dict[int, Entry] = {}
        self._removed: list[int] = []
        self._seen: Vector = {}
        """Writes of others that came since the last edit."""
        self._lost: OrderedDict[object, tuple[Entry, int]] = OrderedDict()
        """Entries to be written anew by their keys, those of counters by dot, with the number that is to be added."""
        self._lost_bytes = 0
        self._found_lost: dict[object, Entry] = {}
        """Entries that a merge has found lost, by the same keys, until it has put them there."""
        self._left: dict[int, int] = {}
        """Numbers that others use as well, and the first bucket from which it is still to be written anew."""
        self._anew = 0.0
        """Size of what was written anew, in bytes, less what time has allowed since ``_anew_at``."""
        self._anew_at = 0.0

    @property
    def size(self) -> int:
        """Size of all entries, in bytes."""
        return self.contents.size

    def all_entries(self) -> list[Entry]:
        """Return the entries of the whole document."""
        return [entry for bucket in self.contents.buckets for entry in bucket.values()]

    # -- writing --------------------------------------------------------------------------------------------

    def write(self, group: Group, key: str, payload: bytes) -> None:
        """Set a key, in the place of what is there; raise Overloaded if the document is full."""
        self._document.check_open()
        self._write(group, key, payload, self.contents.at(group, key))

    def update(self, group: Group, payloads: Mapping[str, bytes]) -> None:
        """Set several keys, in the place of what is there: all or none.

        Raises:
            Overloaded: they do not fit into the document together.
        """
        self._document.check_open()
        replaced = {key: self.contents.at(group, key) for key in payloads}
        size = sum(Entry(0, *group, key, payload).size for key, payload in payloads.items())
        self._check_room(size, chain.from_iterable(replaced.values()))
        for key, payload in payloads.items():
            self._put(Entry(self._next_dot(), *group, key, payload), replaced[key])

    def add(self, group: Group, name: str, number: int) -> None:
        """Add to what this writer has added to a counter.

        Raises:
            OverflowError: that leaves 53 bits.
            Overloaded: the document is full.
        """
        self._document.check_open()
        self._add(group, name, number)

    def _add(self, group: Group, name: str, number: int) -> None:
        self._choose_writer()
        start = self.starts[self.writer]
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
        own = [entry for entry in self.contents.at(group, name) if entry.dot % WRITERS == writer]
        return max(own, key=by_dot, default=None)

    def remove(self, group: Group, key: str) -> bool:
        """Remove a key, if it is there or waits to be written anew; return whether it was seen."""
        self._document.check_open()
        self._forget((group, key))
        entries = self.contents.at(group, key)
        if entries:
            self._choose_writer()
            self._remove(entries)
            self._count()
        return bool(entries)

    def clear(self, group: Group) -> None:
        """Remove all keys of a group, those as well that wait to be written anew."""
        waiting = [*self._found_lost.values(), *(entry for entry, _ in self._lost.values())]
        for key in self.contents.keys(group) + [entry.key for entry in waiting if entry.group == group]:
            self.remove(group, key)

    def _write(self, group: Group, key: str, payload: bytes, replaced: Sequence[Entry]) -> None:
        entry = Entry(self._next_dot(), *group, key, payload)
        self._check_room(entry.size, replaced)
        self._put(entry, replaced)

    def _next_dot(self) -> int:
        self._choose_writer()
        return dot_of(self.writer, self.vector.get(self.writer, 0) + 1)

    def _check_room(self, size: int, replaced: Iterable[Entry]) -> None:
        growth = size - sum(one.size for one in replaced)
        share = self.contents.bytes[self.writer] + size
        if growth > 0 and self.size + growth > self._max_bytes and share > self._max_bytes // _RESERVED:
            raise Overloaded(f"the document has {self.size} bytes: {self._max_bytes} are the most")

    def _put(self, entry: Entry, replaced: Iterable[Entry]) -> None:
        self._remove(replaced)
        self._forget(_place(entry))
        self.contents.insert((entry,))
        self.contents.own.add(entry.dot)
        self._added[entry.dot] = entry
        self._count()

    def _count(self) -> None:
        """Count a write, which is done."""
        self.vector[self.writer] = self._last = self.vector.get(self.writer, 0) + 1
        self._note(*self.contents.pop_changes())
        self._document.note_edit()

    def _remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self._added.pop(entry.dot, None) is None:
                self._removed.append(entry.dot)
            self.contents.drop(entry)

    def _choose_writer(self) -> None:
        """Choose a number, if this writer has none: one that nobody has used, or else that nobody uses.

        Who has left some itself takes one that was left.
        """
        if self.writer < 0:
            claimed = {*self._document.claimed_writers(), *self.starts}
            free = [one for one in range(WRITERS) if one not in claimed]
            fresh = [one for one in free if one not in self.vector]
            crowded = len(self.starts) >= _CROWDED
            left = [one for one in free if crowded and self.vector.get(one, 0) % _LEFT == 0]
            self.writer = self._random.choice(fresh or left or free or range(WRITERS))
            self.starts[self.writer] = self._random.getrandbits(53)
            self._sent = self._last = self.vector.get(self.writer, 0)

    def pop_edits(self) -> list[Edit]:
        """Return what was written here and not taken yet: one edit, or more if this writer took another number.

        What was lost by that is written anew some at a time: there may be edits to take again.
        """
        self._finish_edit()
        edits, self._outbox = self._outbox, []
        self._write_anew()
        return edits

    def _finish_edit(self) -> None:
        number = self._last  # not what others have counted: they may have taken a number that this one leaves
        if self.writer >= 0 and number > self._sent:
            needs = {writer: count for writer, count in self._seen.items() if writer != self.writer}
            added = [entry for dot, entry in self._added.items() if self.contents.find(dot) is entry]
            removed = self._removed
            self._outbox.append(Edit(self.writer, self._sent + 1, number - self._sent, needs, added, removed))
            self._added, self._removed, self._seen, self._sent = {}, [], {}, number

    # -- merging --------------------------------------------------------------------------------------------

    @property
    def is_rewriting(self) -> bool:
        """True while entries wait to be written anew because another member has used this writer's number."""
        return bool(self._found_lost or self._lost or self._left)

    @property
    def is_noting(self) -> bool:
        """True while a long merge is seen, and not all of its changes are noted: watches wait until they are."""
        return self._noting is not None

    def covers(self, vector: Mapping[int, int]) -> bool:
        """Return whether everything that a vector counts is known."""
        known = self.vector
        return all(known.get(writer, 0) >= number for writer, number in vector.items())

    def apply(self, edit: Edit) -> bool:
        """Merge an edit of another member; False if something has to come before it.

        Raises:
            RemoteProtocolError: its numbers are beyond what the date allows.
        """
        if edit.first + edit.count > self._bound():
            raise RemoteProtocolError("a writer has more writes than microseconds have passed since 1970")
        if edit.first > self.vector.get(edit.writer, 0) + 1 or not self.covers(edit.needs):
            return False
        vector = {edit.writer: edit.first + edit.count - 1}
        added = {entry.dot: entry for entry in edit.added}
        deque(self._merge(self.contents, vector, edit.removed, added.values(), {edit.writer}), maxlen=0)
        return True

    def absorb(
        self,
        vector: Mapping[int, int],
        buckets: Collection[int],
        entries: Mapping[int, Entry],
        users: Collection[int] = (),
    ) -> Iterator[None]:
        """Merge what another replica has in some buckets, by dot; the others have to be equal.

        Each step takes some ms.  All is seen at once: where there are several steps, they change a copy, and what is
        written meanwhile is done to that as well.  Go through all steps, and absorb nothing else meanwhile.

        Args:
            vector: version vector of the other one.
            buckets: those that differ.
            entries: all that the other one has in them.
            users: numbers that other members write with.
        """
        bound = self._bound()  # if a clock is ahead, what its writers have written waits for the date
        theirs = {writer: number for writer, number in vector.items() if number <= bound}
        contents = self.contents
        there = {bucket: contents.buckets[bucket] for bucket in buckets}
        is_long = len(entries) + sum(map(len, there.values())) > AT_A_TIME
        if is_long:
            contents, self._meanwhile = contents.copy(), set()
        gone = (
            dot
            for bucket in there
            for dot in list(contents.buckets[bucket])
            if dot not in entries and dot // WRITERS <= theirs.get(dot % WRITERS, 0)
        )
        known = (entry for entry in entries.values() if entry.dot % WRITERS in theirs)
        steps = self._merge(contents, theirs, gone, known, users)
        if is_long:
            yield from steps
        else:
            deque(steps, maxlen=0)

    def _merge(
        self,
        contents: EntryIndex,
        vector: Mapping[int, int],
        gone: Iterable[int],
        entries: Iterable[Entry],
        users: Collection[int] = (),
    ) -> Iterator[None]:
        """Merge into contents, and have them be those of this replica, in steps of some ms.

        Args:
            contents: index of this replica, or a copy of it.
            vector: version vector of their writers.
            gone: dots of entries that were removed.
            entries: entries to merge, each dot once.
            users: numbers that others certainly write with.
        """
        live, known = self.contents, self.vector.copy()
        passed = {writer for writer, number in vector.items() if number > known.get(writer, 0)}
        writers, doubled, mine = {self.writer}, set[int](), list[Entry]()

        def remove(dots: Iterable[int]) -> None:
            for there in filter(None, map(contents.find, dots)):
                if there.dot in contents.own:
                    mine.append(there)
                contents.drop(there)

        def put(some: Sequence[Entry]) -> None:
            new = [entry for entry in some if entry.dot // WRITERS > known.get(entry.dot % WRITERS, 0)]
            contents.insert(new)
            for entry in some if len(new) < len(some) else ():
                there = contents.find(entry.dot)
                if there is not None and there != entry:
                    doubled.add(entry.dot % WRITERS)
                    if _hash(entry) > _hash(there):
                        remove([entry.dot])
                        contents.insert([entry])

        for dots in _parts(gone):
            remove(dots)
            yield
        for some in _parts(entries):
            put(some)
            yield
        yield from self._evict(contents)
        if contents is not live:
            known.update((writer, vector[writer]) for writer in passed)
            meanwhile = {dot: live.find(dot) for dot in self._meanwhile or ()}
            remove(dot for dot, entry in meanwhile.items() if entry is None)
            there = [entry for entry in meanwhile.values() if entry is not None]
            put(there)
            written = [entry for entry in there if entry.dot in live.own]
            contents.own.update(entry.dot for entry in written if contents.find(entry.dot) == entry)
            mine += written
            mine = [entry for entry in mine if live.find(entry.dot) == entry]  # else it was removed or hidden meanwhile
            self.contents, self._meanwhile = contents, None
        writers.add(self.writer)  # it may have been chosen meanwhile
        for writer in passed:
            if vector[writer] > self.vector.get(writer, 0):
                self.vector[writer] = self._seen[writer] = vector[writer]
        self._leave(writers & {*passed, *doubled, *users})
        lost = {_place(entry): entry for entry in self._lost_of(mine)}
        self._found_lost.update(lost)  # at once: what is written or removed from now on comes after it
        changed, came = contents.pop_changes()
        if contents is not live:
            self._noting = live
        for some in _parts(changed):
            self._note(some, came)
            yield
        if contents is not live:
            self._noting = None
            self._note([], came)
        for places in _parts(list(lost)):
            for place in places:
                if (entry := self._found_lost.pop(place, None)) is not None:
                    self._write_later(entry)
            yield
        self._write_anew()

    def _bound(self) -> float:
        """Return how many writes a writer may have: as many as microseconds have passed since 1970, and of a day."""
        return (self._document.wall_time() + _AHEAD) * 1e6

    def _note(self, changed: list[Entry], came: set[int]) -> None:
        if self._meanwhile is not None:
            self._meanwhile.update(entry.dot for entry in changed)
        if self._noting is not None:  # what watches have seen, whatever came and went since
            came.difference_update(entry.dot for entry in changed if self._noting.shows(*entry.shown))
        self._document.note_changes(changed, came)

    def leave(self, number: int) -> None:
        """Leave the number of this writer to another member, which uses it as well."""
        if number == self.writer >= 0:
            self._leave({number})
            self._write_anew()

    def _leave(self, used: set[int]) -> None:
        """Stop using numbers that others use as well, and write anew what this writer has written with them.

        What another user wrote with them is its own to write anew: a second write of it here would bring back what that
        one has overwritten or removed meanwhile.

        Members that received the other user's writes first presume these entries removed.  The number is advanced far,
        so that the other user notices, whatever it writes until then.  Rewriting has a rate, which a member that forges
        numbers cannot raise: entries beyond it stay as they were written.
        """
        now = self._document.wall_time()
        self._anew = max(self._anew - max(now - self._anew_at, 0) * _ANEW_RATE, 0)
        self._anew_at = now
        for number in used:
            if self._anew <= _MOST_ANEW:
                self._left[number] = 0
                self._anew += self.contents.bytes[number]
        if self.writer in used:
            number = self.vector.get(self.writer, 0)
            if number < self._last + _LEFT:  # else the other user has left it first, and who has it now may keep it
                self._last = max(number, min((number // _LEFT + 2) * _LEFT, int(self._bound()) - 8))
                self.vector[self.writer] = self._last
            self._finish_edit()
            # Who receives what is written anew removes what it replaces: the other user has to notice first.
            self._seen[self.writer] = self.vector[self.writer]
            self.writer = -1
            self._document.note_edit()

    def _lost_of(self, mine: list[Entry]) -> Collection[Entry]:
        """Return the entries of this writer that are to be written anew, of those that may be gone.

        Where another one uses its number, nobody can tell those that were removed from those that were never known.
        """
        last: dict[object, Entry] = {}
        for entry in sorted(mine, key=by_dot):
            now = self.contents.find(entry.dot)
            if entry.kind == COUNTER and now != entry:  # of several of one number, as a member may forge, the last
                last[entry.group, entry.key, entry.dot % WRITERS, read_added(entry).start] = entry
            elif now != entry and (now is not None or entry.dot % WRITERS in self._left):
                last[entry.dot] = entry
        return last.values()

    def _write_later(self, entry: Entry) -> None:
        number = self._missing(entry) if entry.kind == COUNTER else 0
        if (number or entry.kind != COUNTER) and self._lost_bytes + entry.size <= self._max_bytes:
            self._forget(_place(entry))
            self._lost[_place(entry)] = entry, number  # within bounds: a member may forge without end
            self._lost_bytes += entry.size
            self.hidden += 1

    def _forget(self, place: object) -> None:
        """Have nothing written anew where this writer has written or removed something meanwhile; see ``_place``."""
        if self._lost or self._found_lost:
            self._found_lost.pop(place, None)
            if (lost := self._lost.pop(place, None)) is not None:
                self._lost_bytes -= lost[0].size

    def _write_anew(self) -> None:
        """Write anew some of what was lost: who forges many small entries has nobody write many large ones at once."""
        if self._lost or self._left:
            self._document.note_edit()  # so that this is called again
        while self._left and len(self._lost) < _WRITTEN_ANEW:
            writer, bucket = self._left.popitem()
            if self.contents.bytes[writer] and bucket + 1 < BUCKETS:
                self._left[writer] = bucket + 1
            for dot, entry in self.contents.buckets[bucket].items():
                if dot % WRITERS == writer and dot in self.contents.own and entry.kind != COUNTER:
                    self._write_later(entry)
        for _ in range(_WRITTEN_ANEW):
            if not self._lost:
                break
            _, (entry, number) = self._lost.popitem(last=False)
            self._lost_bytes -= entry.size
            with suppress(Overloaded, OverflowError):
                if number:
                    self._add(entry.group, entry.key, number)
                elif (there := self.contents.find(entry.dot) == entry) or not self.contents.has(entry.group, entry.key):
                    self._write(entry.group, entry.key, entry.payload, (entry,) if there else ())

    def _missing(self, entry: Entry) -> int:
        """Return what this writer has added to a counter by a lost entry, as far as no other entry has it."""
        writer = entry.dot % WRITERS
        start = self.starts[writer]
        if read_added(entry).start != start:
            return 0
        there = self._counted(entry.group, entry.key, writer)
        return read_added(entry).own - (0 if there is None else read_added(there).share_of(start))

    def _evict(self, contents: EntryIndex) -> Iterator[None]:
        """Remove the newest entries of the largest writers, in steps, if the document exceeds its bound."""
        bound = _TOLERANCE * self._max_bytes
        if contents.size <= bound:
            return
        least = bound - bound // _MARGIN
        excess, dots = contents.size - least, dict[int, list[int]]()
        for writer, size in contents.bytes.most_common():
            if excess > 0:
                dots[writer] = []
                excess -= size
        for bucket in contents.buckets:
            for dot in bucket:
                if dot % WRITERS in dots:
                    dots[dot % WRITERS].append(dot)
            yield
        newest = chain.from_iterable(sorted(own, reverse=True) for own in dots.values())
        for step, dot in enumerate(newest, 1):
            entry = contents.find(dot)
            if contents.size <= least:
                break
            if entry is not None:
                contents.drop(entry)
                self.evicted += 1
            if step % AT_A_TIME == 0:
                yield

    # -- comparing ------------------------------------------------------------------------------------------

    def refresh(self) -> Iterator[None]:
        """Compute digests of buckets that have changed, some in each step."""
        for bucket in range(BUCKETS):
            if bucket not in self.contents.digests:
                self.contents.digest(bucket)
                if bucket % _DIGESTS_AT_A_TIME == 0:
                    yield

    def digests(self) -> list[bytes]:
        """Return the digests of all buckets: equal ones have equal entries."""
        return list(map(self.contents.digest, range(BUCKETS)))

    def digest(self) -> bytes:
        """Return the digest of what is known: 16 bytes, or none for nothing.  Replicas with the same one are equal."""
        if not self.vector:
            return b""
        return hashlib.blake2b(encode((sorted(self.vector.items()), self.digests())), digest_size=16).digest()

    def difference(self, digests: Sequence[bytes]) -> dict[int, list[Entry]]:
        """Return the buckets whose digests differ, with their entries; without digests all."""
        return {
            bucket: list(entries.values())
            for bucket, entries in enumerate(self.contents.buckets)
            if not digests or self.contents.digest(bucket) != digests[bucket]
        }


def _parts(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Split what is done in steps."""
    left = iter(items)
    while part := list(islice(left, AT_A_TIME)):
        yield part


def _place(entry: Entry) -> object:
    """Return what of all that waits to be written anew is there once."""
    return entry.dot if entry.kind == COUNTER else (entry.group, entry.key)


def _hash(entry: Entry) -> bytes:
    return hashlib.blake2b(encode(entry), digest_size=16).digest()
