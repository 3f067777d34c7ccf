"""One subscriber's end: events that arrived and wait, what was lost before each, and what to do when too many wait.

Fast path, plain calls: a run of events of one topic is one entry here from the wire to the consumer, and becomes
``Event`` objects one by one as they are taken.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast, final

import trio

from iris.kernel import wire
from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.wakeup import Wakeup
from iris.patterns.topics import MAX_TOPIC
from iris.patterns.values import Sender

Overflow = Literal["drop_oldest", "drop_newest", "wait"]

IN_FLIGHT_EVENTS: Final = 1_000_000
IN_FLIGHT_BYTES: Final = 64 * MIB
"""What may come after publishers were asked to wait: it was on its way.  Beyond the limits and this, events are
dropped even with overflow="wait", so that a publisher which does not listen cannot fill the memory."""

_MAX_NUMBERINGS: Final = 262_144
"""Publishers and topics whose numbering one subscription follows; the oldest half goes when there are more."""

_TURN: Final = 0.0005
"""Seconds for which a subscriber that always finds events may go on without a checkpoint."""

_TURN_EVENTS: Final = 32
"""Events between two looks at the clock, which cost as much as an event."""


@final
class _Run:
    """Consecutive events of one topic from one publisher, as they came over the wire."""

    __slots__ = ("confirm", "first", "headers", "key", "missed", "next", "payloads", "sender", "size", "topic")

    def __init__(
        self,
        sender: Sender,
        topic: str,
        first: int,
        confirm: int,
        headers: Mapping[str, str],
        key: str | None,
        payloads: Sequence[wire.Payload],
        size: int,
    ) -> None:
        self.sender = sender
        self.topic = topic
        self.first = first
        self.confirm = confirm
        self.headers = headers
        self.key = key
        self.payloads = payloads
        self.size = size
        self.next = 0
        self.missed = 0

    @property
    def left(self) -> int:
        """How many events have not been taken."""
        return len(self.payloads) - self.next


@final
class Event:
    """One published event.

    Attributes:
        raw_payload: as it travelled: bytes, or the packed form of another value.
        missed: how many events of this publisher and topic were lost just before this one.
    """

    __slots__ = ("_index", "_run", "missed", "raw_payload")

    def __init__(self, run: _Run, index: int, missed: int) -> None:
        self._run = run
        self._index = index
        self.raw_payload: wire.Payload = run.payloads[index]
        self.missed = missed

    def __repr__(self) -> str:
        return f"Event(topic={self.topic!r}, payload={self.payload!r}, missed={self.missed})"

    @property
    def payload(self) -> Any:
        """The value that was published."""
        raw = self.raw_payload
        return raw if type(raw) is bytes else wire.decode_payload_untrusted(raw)

    @property
    def topic(self) -> str:
        """The topic it was published on."""
        return self._run.topic

    @property
    def sender(self) -> Sender:
        """Who published it."""
        return self._run.sender

    @property
    def headers(self) -> Mapping[str, str]:
        """What the publisher sent along."""
        return self._run.headers

    @property
    def key(self) -> str | None:
        """The publisher's key, which keeps related events together."""
        return self._run.key

    @property
    def publisher(self) -> NodeId:
        """The publishing node."""
        return self._run.sender.node

    @property
    def sequence(self) -> int:
        """A number that grows with each confirmed event of the publisher; 0 if no confirmation is wanted."""
        return self._run.confirm + self._index if self._run.confirm else 0


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLimits:
    """How much may wait for one subscriber.  None means the node's ``Config``."""

    events: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("events", "bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"limits: {name} is {value!r}: use a whole number above 0, or None")


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatistics:
    """Counters of one subscription, in events.  received = delivered + dropped + waiting."""

    received: int
    delivered: int
    dropped: int
    """Turned away or thrown out because too many waited."""
    missed: int
    """Lost before they arrived: a publisher's numbering showed a gap."""
    refused: int
    """From publishers that ``allow`` does not name; not counted in ``received``."""
    waiting: int
    waiting_bytes: int


@final
class Subscription:
    """Events that match a pattern, in the order of each publisher.  Made by ``node.subscribe``.

    Iterate over it in one task.  Cancelling a wait loses no event.
    """

    def __init__(
        self,
        pattern: str,
        *,
        group: str | None,
        overflow: Overflow,
        durable: bool,
        allow: frozenset[str] | None,
        max_events: int,
        max_bytes: int,
        confirm: Callable[[Mapping[NodeId, Sequence[int]]], None],
        hold: Callable[[bool], None],
    ) -> None:
        if overflow not in ("drop_oldest", "drop_newest", "wait"):
            raise ConfigError(f"overflow={overflow!r}: use 'drop_oldest', 'drop_newest' or 'wait'")
        self.pattern: Final = pattern
        self.group: Final = group
        self.durable: Final = durable
        self.overflow: Final = overflow
        self._allow = allow
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._confirm = confirm
        self._hold = hold
        self._holding = False
        self._runs: deque[_Run] = deque()
        self._current: _Run | None = None
        self._waiting = 0
        self._waiting_bytes = 0
        self._refused = self._received = self._delivered = self._dropped = self._missed = 0
        self._arrived: dict[tuple[NodeId, str], int] = {}
        self._expected: dict[tuple[NodeId, str], int] = {}
        self._turn_began = 0.0
        self._news = Wakeup()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Subscription to {self.pattern!r}, {self._waiting} events waiting>"

    def statistics(self) -> SubscriptionStatistics:
        """Return a snapshot of the counters."""
        return SubscriptionStatistics(
            received=self._received,
            delivered=self._delivered,
            dropped=self._dropped,
            missed=self._missed,
            refused=self._refused,
            waiting=self._waiting,
            waiting_bytes=self._waiting_bytes,
        )

    # -- arriving -------------------------------------------------------------------------------------------

    def deliver(
        self,
        sender: Sender,
        topic: str,
        first: int,
        confirm: int,
        headers: Mapping[str, str],
        key: str | None,
        payloads: Sequence[wire.Payload],
        size: int,
    ) -> None:
        """Take a run of events that arrived."""
        count = len(payloads)
        if self._allow is not None and sender.cluster not in self._allow:
            self._refused += count
            return
        self._received += count
        numbering = (sender.node, topic)
        if self.group is None:  # members of a group get parts of the numbering by design
            arrived = self._arrived.get(numbering)
            if arrived is None:
                self._follow(numbering, first)
                arrived = first
            elif first > arrived:
                self._missed += first - arrived
            if first + count > arrived:  # an event that is published again for a durable subscriber has an old number
                self._arrived[numbering] = first + count
        run = _Run(sender, topic, first, confirm, headers, key, payloads, size)
        if self.overflow == "wait":
            # Publishers are asked to pause at half of the limit; what is on the way then still finds room.
            self._keep_first(run, self._max_events + IN_FLIGHT_EVENTS, self._max_bytes + IN_FLIGHT_BYTES)
            if not self._holding and (
                self._waiting * 2 > self._max_events or self._waiting_bytes * 2 > self._max_bytes
            ):
                self._holding = True
                self._hold(True)
        elif self._waiting + count <= self._max_events and self._waiting_bytes + size <= self._max_bytes:
            self._runs.append(run)
            self._waiting += count
            self._waiting_bytes += size
        elif self.overflow == "drop_newest":
            self._keep_first(run, self._max_events, self._max_bytes)
        else:
            self._keep_last(run)
        self._news.wake()

    def _follow(self, numbering: tuple[NodeId, str], first: int) -> None:
        """Begin to follow a numbering: what came before is not missed."""
        if len(self._arrived) >= _MAX_NUMBERINGS:
            for oldest in list(itertools.islice(self._arrived, _MAX_NUMBERINGS // 2)):
                del self._arrived[oldest]
            self._expected = {kept: self._expected.get(kept, at) for kept, at in self._arrived.items()}
        self._expected[numbering] = first

    def _keep_first(self, run: _Run, max_events: int, max_bytes: int) -> None:
        """Take as much of a run as there is room for."""
        count = len(run.payloads)
        if self._waiting + count > max_events or self._waiting_bytes + run.size > max_bytes:
            room = max_bytes - self._waiting_bytes
            size = kept = 0
            for payload in run.payloads[: max(0, max_events - self._waiting)]:
                more = _size(payload)
                if size + more > room:
                    break
                size += more
                kept += 1
            self._dropped += count - kept
            if not kept:
                return
            run.payloads, run.size, count = run.payloads[:kept], size, kept
        self._runs.append(run)
        self._waiting += count
        self._waiting_bytes += run.size

    def _keep_last(self, run: _Run) -> None:
        """Take a run, and throw out as much of what waits longest as is too much."""
        self._runs.append(run)
        self._waiting += len(run.payloads)
        self._waiting_bytes += run.size
        while self._runs and (self._waiting > self._max_events or self._waiting_bytes > self._max_bytes):
            oldest = self._runs[0]
            left = oldest.left
            if self._waiting - left >= self._max_events or self._waiting_bytes - oldest.size >= self._max_bytes:
                count, size = left, oldest.size
            else:
                count, size = 1, _size(oldest.payloads[oldest.next])
            oldest.next += count
            oldest.size -= size
            self._waiting -= count
            self._waiting_bytes -= size
            self._dropped += count
            if count == left:
                self._runs.popleft()

    # -- taking ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if not self._delivered % _TURN_EVENTS:
            await self._pass_turn()
        run = self._current
        if run is None:
            while not self._runs:
                if self._closed:
                    raise StopAsyncIteration
                await self._news.wait()
                self._turn_began = trio.current_time()
            run = self._begin_run()
        return self._take(run)

    async def _pass_turn(self) -> None:
        """Let other tasks run, and cancellation through, if this one has gone on for long."""
        if trio.current_time() - self._turn_began > _TURN:
            await trio.lowlevel.checkpoint()
            self._turn_began = trio.current_time()

    def _begin_run(self) -> _Run:
        run = self._current = self._runs.popleft()
        if self.group is None:
            run.missed = self._gap(run)
        return run

    def _take(self, run: _Run) -> Event:
        index = run.next
        missed = run.missed
        if missed:
            run.missed = 0
        event = Event(run, index, missed)
        run.next = index + 1
        self._waiting -= 1
        self._delivered += 1
        if run.next == len(run.payloads):
            self._waiting_bytes -= run.size
            self._current = None
            if self._holding and self._waiting * 4 <= self._max_events and self._waiting_bytes * 4 <= self._max_bytes:
                self._holding = False
                self._hold(False)
        return event

    def _gap(self, run: _Run) -> int:
        """Return how many events are missing before the run, and expect what follows it."""
        numbering = (run.sender.node, run.topic)
        first, end = run.first + run.next, run.first + len(run.payloads)
        expected = self._expected.get(numbering, first)
        if end > expected:
            self._expected[numbering] = end
        return max(0, first - expected)

    async def receive_batch(self, max_events: int = 1024) -> list[Event]:
        """Wait for at least one event and return what waits, up to ``max_events``.

        Raises:
            trio.EndOfChannel: the subscription was closed.
        """
        await self._pass_turn()
        try:
            batch = [await self.__anext__()]
        except StopAsyncIteration:
            raise trio.EndOfChannel from None
        while len(batch) < max_events and (self._current is not None or self._runs):
            batch.append(self._take(self._current or self._begin_run()))
        return batch

    async def confirm(self, batch: Sequence[Event]) -> None:
        """Tell the publishers that asked for it that these events are durable.

        Events published without ``confirm=True`` are passed over.
        """
        ranges: dict[NodeId, list[int]] = {}
        for event in batch:
            number = event.sequence
            if number:
                known = ranges.setdefault(event.publisher, [])
                if known and known[-1] == number - 1:
                    known[-1] = number
                else:
                    known += (number, number)
        self._confirm(ranges)
        await trio.lowlevel.checkpoint()

    def release(self) -> None:
        """Ask publishers to pause no longer."""
        if self._holding:
            self._holding = False
            self._hold(False)

    def close(self) -> None:
        """Let the consumer take what waits and then end its iteration."""
        self._closed = True
        self._news.wake()


def _size(payload: wire.Payload) -> int:
    return len(payload) if type(payload) is bytes else wire.payload_size(payload)


def check_run_untrusted(message: wire.Message) -> None:
    """Check an EVENTS message from a peer.

    Raises:
        RemoteProtocolError: a field is not what the protocol says.
    """
    _, topic, sequence, confirm, group, _, key, payloads = message
    if (
        type(topic) is not str
        or len(topic) > MAX_TOPIC
        or type(sequence) is not int
        or sequence < 1
        or type(confirm) is not int
        or confirm < 0
        or (group is not None and type(group) is not str)
        or (key is not None and type(key) is not str)
        or type(payloads) is not tuple
        or not payloads
    ):
        raise RemoteProtocolError("a run of events has a topic, a number and payloads")
    for payload in cast("tuple[object, ...]", payloads):
        if type(payload) is not bytes and not wire.is_payload(payload):
            raise RemoteProtocolError("an event carries a payload")
