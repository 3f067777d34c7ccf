"""Replicas of documents without a network: random edits, hostile bytes, and what is in them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Final

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.state import SharedState
from iris.patterns.state.entries import (
    BUCKETS,
    COUNTER,
    SET,
    VALUE,
    WRITERS,
    Added,
    Edit,
    Entry,
    encode,
    read_edit_untrusted,
    write_element,
    write_value,
)
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.watch import Changes
from iris.testing import inspect_document

NOW: Final = 1_800_000_000.0
EDITS: Final = 8
"""Kinds of edits that ``edit`` makes."""


class LoneDocument:
    """A document that nobody else has; see ``Document``."""

    def __init__(self, claimed: Collection[int] = ()) -> None:
        self.now = NOW
        self._claimed = claimed
        self.following: list[Changes] = []

    def check_open(self) -> None:
        """It is open."""

    def note_edit(self) -> None:
        """It is sent to nobody."""

    def note_changes(self, changed: list[Entry], came: set[int]) -> None:
        """Let those follow who do."""
        for changes in self.following:
            changes.note(changed, came)

    def wall_time(self) -> float:
        """Return the date."""
        return self.now

    def claimed_writers(self) -> Collection[int]:
        """Return the numbers that others use."""
        return self._claimed


def replica(seed: int = 0, *, max_bytes: int = 1_000_000, claimed: Collection[int] = ()) -> Replica:
    """Return an empty replica."""
    return Replica(LoneDocument(claimed), random.Random(seed), max_bytes)


def edit(one: Replica, kind: int, rng: random.Random) -> None:
    """Make one edit of a kind below ``EDITS``; of what is not there nothing is removed."""
    values = SharedMap(one, rng.choice(["", "m"]))
    match kind:
        case 0 | 1:
            value = rng.choice([1, 1.5, None, "x" * rng.randrange(40), b"q", [1, [2, {"a": "b"}]], True, 2**60])
            values[rng.choice("abc")] = value
        case 2 if len(values):
            del values[rng.choice(sorted(values))]
        case 3 | 4:
            values.counter(rng.choice("cd")).add(rng.randrange(-3, 9))
        case 5 | 6:
            values.set("s").add(rng.choice([1, "x", (1, 2)]))
        case 7:
            values.set("s").discard(rng.choice([1, "x", (1, 2)]))
        case _:
            pass


def content(one: Replica) -> dict[str, Any]:
    """Return all that a reader sees of a document."""
    shown: dict[str, Any] = {}
    for kind, place, name in sorted(one.contents.groups):
        values = SharedMap(one, place)
        if kind == VALUE:
            shown[f"value {place}"] = repr(dict(values))
        elif kind == COUNTER:
            counters = {key: SharedCounter(one, place, key).value for key in one.contents.keys((kind, place, name))}
            shown[f"counter {place}"] = counters
        elif kind == SET:
            shown[f"set {place} {name}"] = sorted(SharedSet(one, place, name), key=repr)
    return shown


def absorb(
    target: Replica,
    vector: dict[int, int],
    buckets: Collection[int],
    entries: dict[int, Entry],
    users: Collection[int] = (),
) -> int:
    """Merge into a replica; return how many steps that were."""
    return 1 + sum(1 for _ in target.absorb(vector, buckets, entries, users))


def merging(source: Replica, target: Replica, users: Collection[int] = ()) -> Iterator[None]:
    """Return the steps in which a replica merges what another one has and it lacks, as by comparing."""
    lacking = source.difference(target.digests())
    entries = {entry.dot: entry for bucket in lacking.values() for entry in bucket}
    return target.absorb(dict(source.vector), lacking, entries, users)


def give(source: Replica, target: Replica) -> None:
    """Give one replica what another one has and it lacks, as by comparing."""
    if source.digest() != target.digest():
        deque(merging(source, target), maxlen=0)


class Member:
    """A replica with what ``SharedState`` knows of who uses which numbers."""

    def __init__(self, at: int, one: Replica) -> None:
        self.at = at
        self.replica = one
        self.claims = set[tuple[int, int]]()
        self.wrote: dict[str, int] = {}
        self.counted = 0

    def write(self, key: str, value: int) -> None:
        SharedMap(self.replica, "")[key] = self.wrote[key] = value
        SharedCounter(self.replica, "", "c").add(value)
        self.counted += value

    def send(self, *targets: Member) -> None:
        for made in self.replica.pop_edits():
            for target in targets:
                if target is not self and target.replica.apply(made):
                    target.claims.add((made.writer, self.at))

    def compare(self, source: Member) -> None:
        """Get what another one has that this one lacks; that one hears which number this one uses."""
        writer = self.replica.writer
        if source.replica.digest() != self.replica.digest():
            self.claims |= source.claims | {(source.replica.writer, source.at)}
            users = {number for number, node in self.claims if node != self.at}
            deque(merging(source.replica, self.replica, users), maxlen=0)
            source.claims.add((writer, self.at))
            if writer >= 0:
                source.replica.leave(writer)


def agree(*replicas: Replica) -> None:
    """Compare all with all, and let each go on with what it has to write, until nothing changes."""
    for _ in range(40):
        for one in replicas:
            one.pop_edits()
            while one.is_rewriting:  # some at a time
                one.pop_edits()
            for other in replicas:
                give(one, other)
        if len({one.digest() for one in replicas}) == 1 and not any(one.pop_edits() for one in replicas):
            assert len({repr(content(one)) for one in replicas}) == 1
            return
    raise AssertionError("the replicas go on changing")


def with_number(seed: int, number: int, *, max_bytes: int = 1_000_000, now: float = NOW) -> Replica:
    """Return a replica that has drawn a number which another one has drawn as well, and where it is ``now``."""
    document = LoneDocument()
    document.now = now
    one = Replica(document, random.Random(seed), max_bytes)
    one.writer, one.starts[number] = number, seed + 77
    return one


def draw(state: SharedState, number: int, start: int) -> None:
    """Have a member write with a number that another one may have drawn as well, from now on."""
    one = state._replica
    one.writer, one.starts[number] = number, start
    one._sent = one._last = one.vector.get(number, 0)


def same(*states: SharedState) -> bool:
    """Return whether these hold the same, to the last entry."""
    return len({inspect_document(state).digest for state in states}) == 1


def send(source: Replica, *targets: Replica) -> None:
    """Give replicas what was written since the last time, as by broadcast; what comes too early is lost."""
    for one in source.pop_edits():
        data = encode(one)
        for target in targets:
            target.apply(read_edit_untrusted(data))


def forged(rng: random.Random, known: Replica) -> Edit:
    """Return an edit as a member may make it that wants to do harm: well formed, and of any writer and number."""
    writer = rng.choice([max(known.writer, 0), rng.randrange(WRITERS)])
    first = rng.choice([known.vector.get(writer, 0) + 1, rng.randrange(1, 9), int(NOW * 1e6) - 5])
    count = rng.randrange(1, 6)
    added: list[Entry] = []
    for number in range(first, first + count):
        place, key = rng.choice(["", "m"]), rng.choice("abc")
        dot = number * WRITERS + writer
        added.append(
            rng.choice(
                [
                    Entry(dot, VALUE, place, "", key, write_value(rng.randrange(9))),
                    Entry(dot, COUNTER, place, "", key, encode(Added(*(rng.randrange(9) for _ in range(5))))),
                    Entry(dot, SET, place, "s", write_element(rng.randrange(3)), b""),
                ]
            )
        )
    there = list(rng.choice(known.contents.buckets))
    removed = rng.sample(there, min(2, len(there)))
    return Edit(writer, first, count, rng.choice([{}, dict(known.vector)]), added, removed)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with a few of them changed, cut or doubled."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(3):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randrange(4)]
            case _:
                changed[at:at] = changed[at : at + rng.randrange(8)] or b"\x91"
    return bytes(changed)


def attack(one: Replica, data: bytes) -> bool:
    """Let a replica receive bytes from another member; return whether it accepted them."""
    try:
        return one.apply(read_edit_untrusted(data))
    except RemoteProtocolError:
        return False


ALL: Final = range(BUCKETS)
