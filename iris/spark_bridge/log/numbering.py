"""Gap detection: which events of a topic a publisher has sent, so that missing ones are noticed (sans-IO).

A publisher numbers the events of each topic.  A bridge that stores a topic sees all of its numbers.  A number that it
has not seen is an event that it does not have: lost in flight, or published while the bridge was away.  The seen
numbers are kept in the log with the events themselves, and outlive the bridge's process.

A number that is skipped is a *hole*.  A hole may still be filled: an event that waits for confirmation is sent again
after a loss, behind later ones.  The publisher announces from which number on it may send something again.  What is
missing below that number is a *gap* and stays one, but for what its publisher has withdrawn: it was not confirmed in
time, which was reported to its publisher.  If it was published anew, it is in the log under another number.

No gap is reported where nothing is missing.  Numbering begins with the first event that a publisher owes to this
bridge, see ``iris.patterns.pubsub.interest.start_offsets``.  A publisher that restarts is another one.  A publisher
that has forgotten a topic begins it anew with higher numbers, and announces that.  For a topic that was forgotten here,
the next event that arrives is the first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, final

from iris.kernel.wire import MAX_NUMBER
from iris.patterns.pubsub.interest import Milestones, withdrawn_of
from iris.spark_bridge.log.transaction import record_size

MAX_HOLES: Final = 64
"""Most holes of one topic; if there are more, the oldest counts as a gap."""

MAX_TOPICS: Final = 16_384
"""Most topics of one publisher whose numbers are kept.  A publisher may use a new topic for each event."""

_MEMORY: Final = 3
"""Memory for each byte in the log, in bytes."""

_HOLE_BYTES: Final = 28


class Hole(NamedTuple):
    """Numbers that are missing, and the place in the log of the event that showed it."""

    first: int
    last: int
    shard: int
    offset: int

    @property
    def size(self) -> int:
        """Number of missing events."""
        return self.last - self.first + 1


@final
class Numbering:
    """The numbers of one topic of one publisher.

    Attributes:
        next: next expected number; 0 if no event has come.
        holes: missing numbers below ``next`` that may still come, in order.
    """

    __slots__ = ("_place", "_unsettled", "counted", "holes", "next")

    def __init__(self, following: int = 0, holes: Iterable[Hole] = ()) -> None:
        self.next = following
        self.counted = 0
        """Size with which this is counted in ``PublisherNumberings.size``, in bytes."""
        self.holes = list(holes)
        self._unsettled = 0
        """Number below which missing events do not come any more."""
        self._place = (0, 0)

    def arrive(self, first: int, count: int, *, owed: int, milestones: Milestones, shard: int, offset: int) -> None:
        """Count events as stored.

        Args:
            first: number of the first event.
            count: number of events; their numbers are consecutive.
            owed: for the first run since the bridge has subscribed, the first number that it is owed; else 0.
            milestones: milestones that came with the events.
            shard: shard in which they were stored.
            offset: offset at which they were stored.
        """
        end = first + count
        began = milestones[0] if milestones else 0
        if not self.next:
            self.next = owed or first
        if self.next <= began < first:
            self.next = began + 1  # the publisher had forgotten the topic: there are no numbers in between
        if first > self.next:
            self.holes.append(Hole(self.next, first - 1, shard, offset))
        elif self.holes and first < self.next:
            self.holes = [part for hole in self.holes for part in _without(hole, first, end)]
        if self.holes:
            for begin, last in withdrawn_of(milestones):
                self.holes = [part for hole in self.holes for part in _without(hole, begin, last + 1)]
        if end > self.next:
            self.next = end
            # The latest milestones of the publisher count: a repeated run may carry older ones.
            self._unsettled = milestones[3] if len(milestones) > 3 else end
            self._place = (shard, offset)

    def settle(self, begins: Mapping[int, int]) -> Iterator[Hole]:
        """Yield numbers that are missing for good and were not yielded before, at places that readers will pass.

        Call this when all that is stored together was counted.

        Args:
            begins: offset of the first of these events in each shard.
        """
        for hole in self._settled():
            if hole.offset >= begins.get(hole.shard, MAX_NUMBER):
                yield hole
            else:  # readers may be beyond the place where it was first seen
                yield hole._replace(shard=self._place[0], offset=self._place[1])

    def _settled(self) -> Iterator[Hole]:
        waiting: list[Hole] = []
        for hole in self.holes:
            if hole.last < self._unsettled:
                yield hole
            elif hole.first < self._unsettled:
                yield hole._replace(last=self._unsettled - 1)
                waiting.append(hole._replace(first=self._unsettled))
            else:
                waiting.append(hole)
        surplus = max(0, len(waiting) - MAX_HOLES)
        yield from waiting[:surplus]
        self.holes = waiting[surplus:]


def _without(hole: Hole, first: int, end: int) -> Iterator[Hole]:
    """Yield what is left of a hole without the numbers ``first`` up to but not including ``end``."""
    if end <= hole.first or hole.last < first:
        yield hole
        return
    if hole.first < first:
        yield hole._replace(last=first - 1)
    if end <= hole.last:
        yield hole._replace(first=end)


@final
class PublisherNumberings:
    """The numberings of one publisher by topic, the most recently used last.

    ``changed`` are the topics to write, ``expired`` those to delete, as in ``PublisherWindow``.
    """

    __slots__ = ("changed", "expired", "size", "topics")

    def __init__(self, topics: Iterable[tuple[str, Numbering]] = ()) -> None:
        self.topics: OrderedDict[str, Numbering] = OrderedDict(topics)
        self.size = 0
        """Size of the numberings in the log, in bytes."""
        for name, numbering in self.topics.items():
            self.count(name, numbering)
        self.changed: set[str] = set()
        self.expired: set[str] = set()

    def __len__(self) -> int:
        return len(self.topics)

    @property
    def memory(self) -> int:
        """Memory of the numberings, in bytes."""
        return _MEMORY * (1 + self.size)

    def topic(self, name: str) -> Numbering:
        """Return the numbering of a topic, to count events in it."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Numbering()
            self.expired.discard(name)
            if len(self.topics) > MAX_TOPICS:
                oldest, gone = self.topics.popitem(last=False)
                self.size -= gone.counted
                self.changed.discard(oldest)
                self.expired.add(oldest)
        else:
            self.topics.move_to_end(name)
        self.changed.add(name)
        return found

    def count(self, name: str, numbering: Numbering) -> None:
        """Count the bytes of a topic's numbering, as it is to be written now."""
        size = record_size(len(name) + _HOLE_BYTES * len(numbering.holes))
        self.size += size - numbering.counted
        numbering.counted = size
