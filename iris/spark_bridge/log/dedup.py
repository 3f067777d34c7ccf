"""Deduplication window: which events of a publisher are already in the log, so that a repeat is recognized.

A publisher numbers the events that it wants confirmed: 1, 2, 3, ... over all topics.  A bridge sees some of these
numbers (it may not subscribe to every topic) and, after a retry, sees them out of order.  A high-water mark would
mistake the retried 5 for a repeat once 6 is stored, and lose it.  So a bitmap shows for each of the last WINDOW numbers
whether it is stored, in blocks of 4,096 bits, of which only those exist that are in use.

Numbers older than the window cannot be judged.  They are refused without a confirmation, and the publisher's
``publish`` ends in an error instead of in a loss or a duplicate.  At 150,000 events/s the window spans 7 seconds,
longer than ``publish`` waits by default.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar, final

from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.events.runs import cut_run

T = TypeVar("T")

BLOCK: Final = 4096
BLOCK_BYTES: Final = BLOCK // 8
WINDOW: Final = 256 * BLOCK

_MEMORY: Final = 700
"""Memory of a block, and of the rest of a window, in bytes."""

_BIT: Final = tuple(1 << bit for bit in range(8))


@final
class Verdict(enum.Enum):
    """Verdict on one event."""

    NEW = "new"
    REPEAT = "repeat"
    STALE = "stale"


@final
class PublisherWindow:
    """Deduplication window of one publisher: which of its last numbers are stored.

    ``blocks`` maps the number of a block to its bits; ``changed`` are the blocks to write, ``expired`` those to
    delete.  Plain attributes instead of effects: this runs once per run of events.
    """

    __slots__ = ("blocks", "changed", "expired", "newest")

    def __init__(self, blocks: Mapping[int, bytes]) -> None:
        self.blocks = {number: bytearray(bits) for number, bits in blocks.items()}
        self.newest = max(self.blocks, default=0)
        self.changed: set[int] = set()
        self.expired: set[int] = set()

    @property
    def memory(self) -> int:
        """Memory of this window, in bytes."""
        return _MEMORY * (1 + len(self.blocks))

    def admit(self, sequence: int) -> Verdict:
        """Judge one number, and count it as stored if it is new."""
        number, bit = divmod(sequence, BLOCK)
        block = self.blocks.get(number)
        if block is None:
            if number <= self.newest - WINDOW // BLOCK:
                return Verdict.STALE
            block = self.blocks[number] = bytearray(BLOCK_BYTES)
            if number > self.newest:
                self._advance(number)
        mask = _BIT[bit & 7]
        if block[bit >> 3] & mask:
            return Verdict.REPEAT
        block[bit >> 3] |= mask
        self.changed.add(number)
        return Verdict.NEW

    def admit_all(self, first: int, count: int) -> bool:
        """Count ``count`` numbers from ``first`` on as stored, if all of them are new; else change nothing."""
        found: list[tuple[int, bytearray, int]] = []
        at, end = first, first + count
        while at < end:
            number, bit = divmod(at, BLOCK)
            size = min(end - at, BLOCK - bit)
            block = self.blocks.get(number)
            if block is None:
                if number <= self.newest - WINDOW // BLOCK:
                    return False
                block = bytearray(BLOCK_BYTES)
            mask = ((1 << size) - 1) << bit
            bits = int.from_bytes(block, "little")
            if bits & mask:
                return False
            found.append((number, block, bits | mask))
            at += size
        for number, block, bits in found:
            block[:] = bits.to_bytes(BLOCK_BYTES, "little")
            self.blocks[number] = block
            self.changed.add(number)
            if number > self.newest:
                self._advance(number)
        return True

    def _advance(self, newest: int) -> None:
        self.newest = newest
        for number in [number for number in self.blocks if number <= newest - WINDOW // BLOCK]:
            del self.blocks[number]
            self.changed.discard(number)
            self.expired.add(number)


def admit_runs(
    runs: Sequence[EventRun], window: Callable[[str], PublisherWindow]
) -> tuple[Sequence[EventRun], int, list[EventRun]]:
    """Sort out repeats.

    Args:
        runs: in the order of arrival; those with number 0 are not numbered and always new.
        window: returns the window of a publisher.

    Returns:
        The new events, the number of repeats, and the stale events, which must not be confirmed.
    """
    for run in runs:
        if run.confirm:
            break
    else:
        return runs, 0, []
    new: list[EventRun] = []
    stale: list[EventRun] = []
    repeats = 0
    begin = 0
    while begin < len(runs):
        alike = _consecutive(runs, begin)
        first, last = runs[begin], runs[alike - 1]
        count = last.confirm + len(last.payloads) - first.confirm
        if first.confirm == 0 or window(first.sender.node).admit_all(first.confirm, count):
            new += runs[begin:alike]
            begin = alike
            continue
        run = first  # by itself: some of them are known
        begin += 1
        admit = window(run.publisher).admit
        verdicts = [admit(run.confirm + at) for at in range(len(run.payloads))]
        at = 0
        for verdict, same in itertools.groupby(verdicts):
            end = at + len(list(same))
            match verdict:
                case Verdict.NEW:
                    new.append(cut_run(run, at, end))
                case Verdict.REPEAT:
                    repeats += end - at
                case Verdict.STALE:
                    stale.append(cut_run(run, at, end))
            at = end
    return new, repeats, stale


def _consecutive(runs: Sequence[EventRun], begin: int) -> int:
    """Return the end of the runs from ``begin`` on that one publisher has numbered one after the other.

    Of a thousand topics each event is a run, and one look at the window judges all of them.
    """
    run = runs[begin]
    if not run.confirm:
        return begin + 1
    publisher, following = run.sender.node, run.confirm + len(run.payloads)
    end = begin + 1
    while end < len(runs):
        run = runs[end]
        if run.confirm != following or run.sender.node != publisher:
            break
        following += len(run.payloads)
        end += 1
    return end


@final
class PublisherMemory(Generic[T]):
    """Cache of publishers' windows or numberings, limited in bytes by cluster: the least recently used are dropped.

    The index has all of them, too.  What a cluster has no room for is read again when its publisher comes back, and
    costs other clusters nothing.

    Args:
        most: bytes for all clusters together.
        most_of_owner: bytes for one of them.
    """

    def __init__(self, *, most: int, most_of_owner: int) -> None:
        self._most = most
        self._most_of_owner = most_of_owner
        self._owners: dict[str, str] = {}
        self._known: dict[str, OrderedDict[str, tuple[T, int]]] = {}
        """Entries by owner and publisher, with their bytes; the last one was used most recently."""
        self._used: Counter[str] = Counter()
        self.size = 0
        """Memory of all entries, in bytes."""

    def __repr__(self) -> str:
        return f"<PublisherMemory: {self.size} bytes of {len(self._owners)} publishers>"

    def used(self, owner: str) -> int:
        """Return how many of them are a cluster's."""
        return self._used[owner]

    def get(self, publisher: str) -> T | None:
        """Return what is kept of a publisher."""
        owner = self._owners.get(publisher)
        return None if owner is None else self._known[owner][publisher][0]

    def keep(self, publisher: str, owner: str, value: T, size: int) -> None:
        """Keep something of a publisher of a cluster; ``owner`` is "" if that is not known now.

        For it the cluster's publishers that were used longest ago are forgotten, and where all clusters together have
        too much those of the one that has most.
        """
        owner = owner or self._owners.get(publisher, "")
        self.forget(publisher)
        self._owners[publisher] = owner
        self._known.setdefault(owner, OrderedDict())[publisher] = (value, size)
        self._used[owner] += size
        self.size += size
        while self._used[owner] > self._most_of_owner and len(self._known[owner]) > 1:
            self.forget(next(iter(self._known[owner])))
        while self.size > self._most and len(self._owners) > 1:
            ((largest, _),) = self._used.most_common(1)
            self.forget(next(iter(self._known[largest])))

    def forget(self, publisher: str) -> None:
        """Keep nothing of a publisher."""
        owner = self._owners.pop(publisher, None)
        if owner is None:
            return
        known = self._known[owner]
        size = known.pop(publisher)[1]
        self._used[owner] -= size
        self.size -= size
        if not known:
            del self._known[owner], self._used[owner]

    def clear(self) -> None:
        """Keep nothing."""
        self._owners.clear()
        self._known.clear()
        self._used.clear()
        self.size = 0
