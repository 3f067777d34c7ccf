"""Subscription: a bounded queue of events, the count of losses before each, and an overflow policy.

Fast path, plain calls: a run of events of one topic is one queue entry from the wire to the consumer.  Its ``Event``
objects are made one by one as they are taken, by iterators that are written in C.  A turn of the consumer's loop costs
0.25 us; with a method that makes an object and counts it, it cost 1.2 us.  Counters advance by runs.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, cast, final, get_args

import trio
from msgspec import Struct, structs

from iris.kernel import wire
from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError, RemoteProtocolError, SubscriberTooSlow
from iris.kernel.names import NodeId
from iris.kernel.numerals import as_whole, shown
from iris.kernel.statistics import Statistics
from iris.kernel.tasks import Wakeup, checkpoint_after_error, checkpointed
from iris.patterns.books import UNCOUNTED, Account
from iris.patterns.observer import Observer
from iris.patterns.pubsub.interest import owed_from
from iris.patterns.pubsub.subscribe.events import Event, EventRun, payload_bytes
from iris.patterns.pubsub.subscribe.expiry import EXPIRES, expires_after

Overflow = Literal["drop_oldest", "drop_newest", "wait", "fail"]

IN_FLIGHT_EVENTS: Final = 1_000_000
IN_FLIGHT_BYTES: Final = 64 * MIB
"""Room for what arrives after publishers were asked to wait: it was in flight.  Beyond the limits and this, events are
dropped even with overflow="wait", so that a publisher which does not listen cannot fill the memory."""

_MAX_NUMBERINGS: Final = 262_144
"""Publishers and topics whose numbering one subscription follows.  When there are more, those publishers lose the older
half of theirs that have no less than all would have of equal shares: who has less loses nothing to them."""

_MAX_TOPICS: Final = 65_536
"""Topics of one publisher among them; the older half goes when there are more.  As many as it remembers itself
(``Config.published_topics``): with topics of 200 bytes some 30 MiB."""

_MAX_PUBLISHERS: Final = 4096
"""Publishers of which it is remembered up to which number their topics may be forgotten."""

_TURN: Final = 0.0005
"""Seconds for which a subscriber that always finds events may go on without a checkpoint."""

_TURN_EVENTS: Final = 32
"""Events, in whole runs, between two looks at the clock."""


_new_event: Final = cast("Callable[[type[Event], tuple[Any, int, EventRun, int]], Event]", tuple.__new__)
_NOTHING: Final[tuple[wire.Payload, ...]] = ()
_NO_RUNS: Final[deque[EventRun]] = deque(maxlen=0)
"""Queue of all subscriptions to which nothing has come yet: an empty deque takes 0.6 KiB."""


@final
class SubscriptionLimits(Struct, frozen=True, kw_only=True):
    """Limits of what waits for one subscriber.  None means the node's ``Config``.

    Attributes:
        events: events that wait at most.
        bytes: bytes that these take at most.
    """

    events: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("events", "bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            whole = as_whole(value)
            if whole is None or whole < 1:
                raise ConfigError(f"limits: {name} is {shown(value)}: use a whole number above 0, or None")
            structs.force_setattr(self, name, whole)


@final
class SubscriptionStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of one subscription, in events.  received = delivered + dropped + malformed + expired + waiting."""

    received: int
    delivered: int
    dropped: int
    """Events turned away or thrown out because too many waited, or still there when this member of a group left."""
    malformed: int
    """Events not delivered because their payloads cannot be decoded; ``missed`` of the next event counts them, too."""
    expired: int
    """Events not delivered because they had waited here for longer than their ``expires``."""
    missed: int
    """Events lost before they arrived: a publisher's numbering showed a gap."""
    refused: int
    """Events from publishers that ``allow`` does not name; not counted in ``received``."""
    waiting: int
    waiting_bytes: int
    """Size of their payloads, headers and keys, in bytes."""
    too_slow: int = 0
    """Subscriptions that have ended by ``SubscriberTooSlow``: 0 or 1, or how many were in a sum."""

    def __add__(self, other: SubscriptionStatistics) -> SubscriptionStatistics:
        """Return the counters of both together."""
        return SubscriptionStatistics(
            received=self.received + other.received,
            delivered=self.delivered + other.delivered,
            dropped=self.dropped + other.dropped,
            malformed=self.malformed + other.malformed,
            expired=self.expired + other.expired,
            missed=wire.saturated(self.missed + other.missed),
            refused=self.refused + other.refused,
            waiting=self.waiting + other.waiting,
            waiting_bytes=self.waiting_bytes + other.waiting_bytes,
            too_slow=self.too_slow + other.too_slow,
        )

    @property
    def lost(self) -> int:
        """Events for the consumer that will not reach it: dropped, malformed, missed, but not those that expired.

        It is exact on however many topics, and from however many publishers, the events were.  ``Event.missed`` shows
        where they are missing, but of a topic only with the next event of its publisher on it.
        """
        return wire.saturated(self.dropped + self.malformed + self.missed)


@final
class SubscriptionOptions(Struct, frozen=True, kw_only=True):
    """Options of a subscription; see ``Node.subscribe``.

    Raises:
        ConfigError: ``overflow`` is none of the four.
    """

    group: str | None = None
    overflow: Overflow = "drop_oldest"
    durable: bool = False
    allow: frozenset[str] | None = None
    """Clusters whose events are received.  None: all."""
    owner: str | None = None
    """Name of the durable subscriber that it is.  None if it has none."""

    def __post_init__(self) -> None:
        if self.overflow not in get_args(Overflow):
            raise ConfigError(f"overflow={self.overflow!r}: use 'drop_oldest', 'drop_newest', 'wait' or 'fail'")


@final
class QueueLimits(Struct, frozen=True):
    """Limits of what waits for one subscriber."""

    events: int
    bytes: int


def batch_size(max_events: int) -> int:
    """Return how many events are to be taken at most; raise ConfigError if that is no whole number above 0."""
    most = as_whole(max_events) or 0
    if most < 1:
        raise ConfigError(f"max_events is {shown(max_events)}: use a whole number above 0")
    return most


class Upstream(Protocol):
    """The route back from a subscription to the publishers of its events: ``PubSub``.  No method blocks.

    Called while events arrive, while a consumer receives them, and when the subscription ends.
    """

    def confirm(self, ranges: Mapping[NodeId, Sequence[int]]) -> None:
        """Send publishers the numbers that are confirmed: first and last of each range."""
        ...

    def delay(self, publishers: Iterable[NodeId], reason: str) -> None:
        """Send publishers the reason why their events are not confirmed."""
        ...

    def pause(self, pattern: str, *, paused: bool) -> None:
        """Ask the publishers of a pattern for a pause, or end one.  Called in turns, with ``paused=True`` first."""
        ...

    def report_soon(self) -> None:
        """Report to publishers within 100 ms: events were dropped or refused, or those for a group received."""
        ...

    def too_slow(self, subscription: Subscription) -> None:
        """Have what comes for the group of a subscription go to its other members: this one has failed."""
        ...

    def unreadable(self, run: EventRun, error: RemoteProtocolError) -> None:
        """Count an event whose payload cannot be decoded."""
        ...

    def published(self, owner: str | None, publisher: NodeId, version: int) -> int | None:
        """Return how many events a node had published when it knew of this node's interest of a version.

        Args:
            owner: name of a durable subscriber, which may have been away.  None if it has none.
        """
        ...


@final
class _Numberings:
    """The numberings of one publisher, by topic.

    Attributes:
        arrived: number after the last event that has arrived, by topic; the topic that came first is the first.
        expected: number of the next event that is to be delivered, by topic.
    """

    __slots__ = ("arrived", "expected")

    def __init__(self) -> None:
        self.arrived: dict[str, int] = {}
        self.expected: dict[str, int] = {}


@final
class Subscription:
    """Events that match a pattern, in the order of each publisher.  Made by ``node.subscribe``.

    Iterate over it in one task.  Cancelling a wait loses no event.
    """

    __slots__ = (
        "_allow",
        "_closed",
        "_current",
        "_delivered",
        "_dropped",
        "_events",
        "_expired",
        "_followed",
        "_forgotten",
        "_gaps",
        "_holding",
        "_malformed",
        "_max_bytes",
        "_max_events",
        "_missed",
        "_news",
        "_numberings",
        "_observer",
        "_owner",
        "_payloads",
        "_received",
        "_refused",
        "_runs",
        "_settling",
        "_skipped",
        "_too_slow",
        "_turn_began",
        "_turn_events",
        "_untaken",
        "_upstream",
        "_waiting",
        "_waiting_bytes",
        "durable",
        "group",
        "overflow",
        "pattern",
        "version",
    )

    def __init__(
        self,
        pattern: str,
        options: SubscriptionOptions,
        limits: QueueLimits,
        upstream: Upstream,
        observer: Observer | None = None,
        version: int | None = None,
    ) -> None:
        self.pattern: Final = pattern
        self.group: Final = options.group
        self.durable: Final = options.durable
        self.overflow: Final = options.overflow
        self._allow = options.allow
        self._owner = options.owner
        self._max_events = limits.events
        self._max_bytes = limits.bytes
        self._upstream = upstream
        self._settling: dict[Account, int] = {}
        """Events that this member of a group has received, and may still be at, by account."""
        self._observer = observer
        self.version = version
        """Version of the node's interest from which on publishers know of this subscription.  None if it is unknown."""
        self._holding = False
        self._runs: deque[EventRun] = _NO_RUNS
        self._current: EventRun | None = None
        self._payloads: Iterator[wire.Payload] = iter(_NOTHING)
        """Payloads of the current run that have not been received."""
        self._events: Iterator[Event] = iter(())
        """Events of these payloads."""
        self._gaps: Iterator[int] = itertools.repeat(0)
        """Numbers of the events that are missing before each of them."""
        self._untaken = 0  # how many of them there were when ``_note_taken`` last looked
        self._waiting = 0
        self._waiting_bytes = 0
        self._refused = self._received = self._delivered = self._dropped = self._missed = self._malformed = 0
        self._expired = 0
        self._skipped = 0
        """Malformed events that were passed over since ``_note_taken`` last looked."""
        self._numberings: dict[NodeId, _Numberings] = {}
        self._followed = 0
        """Number of numberings."""
        self._forgotten: dict[NodeId, int] = {}
        """Highest number of each publisher in the numberings that are followed no more."""
        self._turn_began = 0.0
        self._turn_events = 0
        self._news = Wakeup()
        self._closed = False
        self._too_slow: tuple[int, int, int, int] | None = None
        """Events and bytes that waited, and those that came, when it ended: more than ``overflow="fail"`` permits."""

    def __repr__(self) -> str:
        return f"<Subscription to {self.pattern!r}, {self.statistics().waiting} events waiting>"

    def statistics(self) -> SubscriptionStatistics:
        """Return a snapshot of the counters."""
        self._note_taken()
        return SubscriptionStatistics(
            received=self._received,
            delivered=self._delivered,
            dropped=self._dropped,
            malformed=self._malformed,
            expired=self._expired,
            missed=self._missed,
            refused=self._refused,
            waiting=self._waiting,
            waiting_bytes=self._waiting_bytes,
            too_slow=int(self._too_slow is not None),
        )

    # -- arriving -------------------------------------------------------------------------------------------

    def _deliver(self, run: EventRun) -> None:
        """Queue a run of events that arrived; it is this subscription's own."""
        sender, topic, first, size, count = run.sender, run.topic, run.first, run.size, len(run.payloads)
        if self._allow is not None and sender.cluster not in self._allow:
            self._refused += count
            self._lose(run, refused=count)
            return
        if self._runs is _NO_RUNS:
            self._runs = deque()
        if EXPIRES in run.headers:
            run.deadline = min(run.deadline, trio.current_time() + expires_after(run.headers))
        self._received += count
        self._note_taken()
        if self.group is None:  # members of a group get parts of the numbering by design
            numberings = self._numberings.get(sender.node)
            arrived = None if numberings is None else numberings.arrived.get(topic)
            if numberings is None or arrived is None:
                arrived = run.owed = self._owed_from(run)
                numberings = self._follow(sender.node, topic, arrived)
            elif run.milestones and arrived <= run.milestones[0]:  # its publisher had forgotten the topic
                arrived = run.milestones[0] + 1
            if first > arrived:
                self._missed = wire.saturated(self._missed + first - arrived)
            if first + count > arrived:  # an event that is published again for a durable subscriber has an old number
                numberings.arrived[topic] = first + count
        if self.overflow == "wait":
            # Publishers are asked to pause at half of the limit; what is in flight then still finds room.
            self._keep_first(run, self._max_events + IN_FLIGHT_EVENTS, self._max_bytes + IN_FLIGHT_BYTES)
            if not self._holding and (
                self._waiting * 2 > self._max_events or self._waiting_bytes * 2 > self._max_bytes
            ):
                self._holding = True
                self._upstream.pause(self.pattern, paused=True)
        elif self._too_slow is not None:
            self._dropped += count
            self._lose(run, dropped=count)
        elif self._waiting + count <= self._max_events and self._waiting_bytes + size <= self._max_bytes:
            self._runs.append(run)
            self._waiting += count
            self._waiting_bytes += size
        elif self.overflow == "drop_newest":
            self._keep_first(run, self._max_events, self._max_bytes)
        elif self.overflow == "fail":
            self._fail(run)
        else:
            self._keep_last(run)
        self._news.wake()

    def _deliver_retained(self, run: EventRun, last: int) -> None:
        """Queue the last value of a topic, unless this subscription has come as far already.

        Args:
            run: run of this event, and nothing else.
            last: number of the last event of the publisher on this topic.
        """
        numberings = self._numberings.get(run.sender.node)
        arrived = None if numberings is None else numberings.arrived.get(run.topic)
        if arrived is None:
            # What lies between was published before this subscription came, and so is not missed.
            run.first, run.milestones = last, ()
        elif arrived > run.first:
            run.account.expired += 1  # later values than this one have come
            return
        run.retained = True
        self._deliver(run)

    def _owed_from(self, run: EventRun) -> int:
        """Return the number of the first event of a numbering that was published for this subscription."""
        if self.version is None:
            return run.first
        node, milestones = run.sender.node, run.milestones
        published = self._upstream.published(self._owner, node, self.version)
        if published is not None and node in self._forgotten:
            # It may be a numbering of which events have come, unless the topic began after all that are forgotten.
            published, milestones = max(published, self._forgotten[node]), milestones[:1]
        return owed_from(milestones, published, run.first)

    def _follow(self, node: NodeId, topic: str, first: int) -> _Numberings:
        """Begin to follow a numbering: what came before is not missed.  Return those of its publisher."""
        known = self._numberings.get(node)
        if known is not None and len(known.arrived) >= _MAX_TOPICS:
            self._forget_older(node, known)
        elif self._followed >= _MAX_NUMBERINGS:
            share = _MAX_NUMBERINGS // len(self._numberings)
            for other, numberings in list(self._numberings.items()):
                if len(numberings.arrived) >= share:
                    self._forget_older(other, numberings)
        numberings = self._numberings.setdefault(node, _Numberings())
        numberings.arrived[topic] = numberings.expected[topic] = first
        self._followed += 1
        return numberings

    def _forget_older(self, node: NodeId, numberings: _Numberings) -> None:
        """Follow the older half of the numberings of a publisher no more."""
        arrived, expected = numberings.arrived, numberings.expected
        older = list(itertools.islice(arrived, (len(arrived) + 1) // 2))
        self._followed -= len(older)
        self._forgotten[node] = max(self._forgotten.get(node, 0), *(arrived.pop(topic) - 1 for topic in older))
        if len(self._forgotten) > _MAX_PUBLISHERS:
            self.version = None  # from here on every topic that is not known counts from its first event
            self._forgotten.clear()
        if not arrived:
            del self._numberings[node]
        # Also the room goes of what is gone, and topics that were forgotten before, but of which events still waited.
        numberings.expected = {topic: expected.get(topic, at) for topic, at in arrived.items()}
        numberings.arrived = arrived.copy()

    def _keep_first(self, run: EventRun, max_events: int, max_bytes: int) -> None:
        """Queue as much of a run as there is room for."""
        count = len(run.payloads)
        if self._waiting + count > max_events or self._waiting_bytes + run.size > max_bytes:
            labels = run.size - sum(map(payload_bytes, run.payloads))
            room = max_bytes - self._waiting_bytes - labels
            size = kept = 0
            for payload in run.payloads[: max(0, max_events - self._waiting)]:
                more = payload_bytes(payload)
                if size + more > room:
                    break
                size += more
                kept += 1
            self._dropped += count - kept
            self._lose(run, dropped=count - kept)
            if not kept:
                return
            run.payloads, run.size, count = run.payloads[:kept], size + labels, kept
        self._runs.append(run)
        self._waiting += count
        self._waiting_bytes += run.size

    def _keep_last(self, run: EventRun) -> None:
        """Queue a run, and drop as much of the oldest as is beyond the limits.

        An event that is beyond them by itself is dropped alone: for it no room can be made.
        """
        if run.size > self._max_bytes:
            if len(run.payloads) == 1:
                self._dropped += 1
                self._lose(run, dropped=1)
                return
            labels = run.size - sum(map(payload_bytes, run.payloads))
            if labels + max(map(payload_bytes, run.payloads)) > self._max_bytes:
                for one in run.each():
                    self._keep_last(one)
                return
        self._runs.append(run)
        self._waiting += len(run.payloads)
        self._waiting_bytes += run.size
        thrown_out = 0
        while self._runs and (self._waiting > self._max_events or self._waiting_bytes > self._max_bytes):
            oldest = self._runs[0]
            left = oldest.left
            whole = self._waiting - left >= self._max_events or self._waiting_bytes - oldest.size >= self._max_bytes
            if whole or left == 1:  # with the last one go headers and key
                count, size = left, oldest.size
            else:
                count, size = 1, payload_bytes(oldest.payloads[oldest.next])
            oldest.next += count
            oldest.size -= size
            self._waiting -= count
            self._waiting_bytes -= size
            self._dropped += count
            thrown_out += count
            if count == left:
                self._runs.popleft()
                self._lose(oldest, dropped=thrown_out)
                thrown_out = 0
        if thrown_out:
            self._lose(self._runs[0], dropped=thrown_out)

    def _fail(self, run: EventRun) -> None:
        """End by an error: there is no room for a run.  What waits stays until the block is left, for a group."""
        count = len(run.payloads)
        self._too_slow = (self._waiting, self._waiting_bytes, count, run.size)
        self._events = iter(())  # what is left of the current run waits, too
        self._dropped += count
        self._lose(run, dropped=count)
        self._upstream.too_slow(self)

    def _lose(self, run: EventRun, *, dropped: int = 0, refused: int = 0) -> None:
        """Count events of a run as lost in the books, which are reported to their publisher."""
        run.account.dropped += dropped
        run.account.refused += refused
        self._upstream.report_soon()

    # -- taking ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:  # a run may hold nothing that can be delivered
            try:
                for event in self._events:
                    return event
            except RemoteProtocolError as error:
                self._skip_malformed(error)
                continue
            self._note_taken()
            if self._settling:
                self._settle()
            if self._turn_events >= _TURN_EVENTS:
                await self._pass_turn()
            while not self._runs and self._too_slow is None:
                if self._closed:
                    await checkpoint_after_error()
                    raise StopAsyncIteration
                await self._news.wait()
                self._turn_began = trio.current_time()
                self._turn_events = 0
            if self._too_slow is not None:
                await checkpoint_after_error()
                waited, held, count, size = self._too_slow
                raise SubscriberTooSlow(
                    f"the subscription to {self.pattern!r} was too slow: {waited} events of {held} bytes waited when "
                    f"{count} of {size} bytes came, above its limits of {self._max_events} events and "
                    f"{self._max_bytes} bytes",
                    waiting=self._waiting,
                )
            self._begin_run()

    def _pop_nowait(self) -> Event | None:
        """Return the next event if it is one of the current run; else None, and nothing has happened."""
        try:
            return next(self._events, None)
        except RemoteProtocolError as error:
            self._skip_malformed(error)
            return None

    def _pop_at_once(self) -> Event | None:
        """Return the next event as ``__anext__`` does if it is here, and others need no turn; else None.

        For any code of the node's thread, in a task of trio or not.
        """
        while True:
            event = self._pop_nowait()
            if event is not None or self._too_slow is not None:
                return event
            if self._current is not None and operator.length_hint(self._payloads):
                continue  # it was one of a run that could not be read
            self._note_taken()
            if self._settling:
                self._settle()
            if not self._runs or self._is_turn_over():
                return None
            self._begin_run()

    def _watch(self, woken: Callable[[], None]) -> Callable[[], None] | None:
        """Have ``woken`` called when an event comes, or none will; nobody else can wait for one meanwhile.

        For code of the node's thread that is no task of trio's.

        Returns:
            What ends that.  None if there is nothing to wait for: ``__anext__`` says what it is.
        """
        ended = self._closed or self._too_slow is not None
        return None if self._runs or ended else self._news.watch(woken)

    def _is_turn_over(self) -> bool:
        """Return whether others are to have a turn now; else begin to count anew."""
        if self._turn_events < _TURN_EVENTS:
            return False
        if trio.current_time() - self._turn_began > _TURN:
            return True
        self._turn_events = 0
        return False

    def _begin_turn(self) -> None:
        """Note that others have had a turn."""
        self._turn_began = trio.current_time()
        self._turn_events = 0

    async def _pass_turn(self) -> None:
        """Let other tasks run, and cancellation through, if this one has gone on for long."""
        self._turn_events = 0
        if trio.current_time() - self._turn_began > _TURN:
            await trio.lowlevel.checkpoint()
            self._turn_began = trio.current_time()

    def _filled(self, batch: list[Event], most: int) -> list[Event]:
        """Return a batch with what else is here, up to ``most`` events."""
        while True:
            try:
                batch += itertools.islice(self._events, most - len(batch))
            except RemoteProtocolError as error:  # those before it are in the batch
                self._skip_malformed(error)
                continue
            if len(batch) >= most or self._too_slow is not None:
                return batch
            self._note_taken()
            if not self._runs:
                return batch
            self._begin_run()

    def _note_taken(self) -> None:
        """Count the events that have been received since this was last called: nothing does while they are."""
        untaken = operator.length_hint(self._payloads)
        taken = self._untaken - untaken
        self._untaken = untaken
        self._waiting -= taken
        self._delivered += taken - self._skipped
        self._malformed += self._skipped
        current = self._current
        if current is not None:
            if self.group is None:
                current.account.received += taken - self._skipped
            else:
                self._count_taken(current.account, taken - self._skipped)
            if not untaken:
                self._waiting_bytes -= current.size
                self._current = None
                self._go_on()
        self._skipped = 0

    def _count_taken(self, account: Account, count: int) -> None:
        if self.group is None:
            account.received += count
        elif count:  # its publisher is to know which events die with this member
            self._settling[account] = self._settling.get(account, 0) + count

    def _settle(self) -> None:
        """Count the events that this member of a group has received: the consumer has come back for the next one."""
        settling, self._settling = self._settling, {}
        for account, count in settling.items():
            account.received += count
        self._upstream.report_soon()

    def _next_run(self) -> EventRun:
        run = self._runs.popleft()
        if self.group is None:
            run.missed = self._gap(run)
        if self._observer is not None and run.headers:
            self._observer.arrived(run.topic, run.sender.node, run.headers, run.left)
        return run

    def _begin_run(self) -> None:
        run = self._next_run()
        if run.deadline < math.inf and run.deadline <= trio.current_time():
            self._skip_expired(run)
            return
        self._current = run
        self._untaken = run.left
        self._turn_events += run.left
        self._payloads = iter(run.payloads if not run.next else run.payloads[run.next :])
        self._make_events(run, run.missed, run.next)

    def _make_events(self, run: EventRun, missed: int, place: int) -> None:
        """Let ``_events`` make an event of each of ``_payloads``, the first of which is at ``place`` in the run."""
        values = self._payloads if run.plain else map(wire.decode_payload_untrusted, self._payloads)
        self._gaps = itertools.chain((missed,), itertools.repeat(0))
        made = zip(values, self._gaps, itertools.repeat(run), itertools.count(place))
        self._events = map(_new_event, itertools.repeat(Event), made)

    def _skip_expired(self, run: EventRun) -> None:
        """Count a run that has expired; the next event shows what is missing before it."""
        self._expired += run.left
        run.account.expired += run.left
        self._waiting -= run.left
        self._waiting_bytes -= run.size
        numberings = self._numberings.get(run.sender.node)
        if run.missed and numberings is not None and run.topic in numberings.expected:
            numberings.expected[run.topic] -= run.missed
        self._go_on()

    def _skip_malformed(self, error: RemoteProtocolError) -> None:
        """Skip an event whose payload could not be decoded: count it, and report it to its publisher."""
        run = self._current
        assert run is not None
        self._skipped += 1
        missed = next(self._gaps) + (self.group is None)  # where decoding failed, it has not been asked yet
        left = operator.length_hint(self._payloads)
        self._make_events(run, missed, len(run.payloads) - left)
        numberings = self._numberings.get(run.sender.node)
        if missed and not left and numberings is not None and run.topic in numberings.expected:
            numberings.expected[run.topic] -= missed  # the next event of the numbering is to tell of them
        self._upstream.unreadable(run, error)
        self._lose(run, refused=1)
        if run.confirm:
            self._upstream.delay((run.sender.node,), f"the payload cannot be read: {error}"[:256])

    def _go_on(self) -> None:
        """Let publishers go on when little waits any more."""
        if self._holding and self._waiting * 4 <= self._max_events and self._waiting_bytes * 4 <= self._max_bytes:
            self._holding = False
            self._upstream.pause(self.pattern, paused=False)

    def _gap(self, run: EventRun) -> int:
        """Return how many events are missing before the run, and expect what follows it."""
        numberings = self._numberings.get(run.sender.node)
        if numberings is None:  # forgotten, while the run waited
            return 0
        first, end = run.first + run.next, run.first + len(run.payloads)
        expected = numberings.expected.get(run.topic, first)
        if run.milestones and expected <= run.milestones[0]:
            expected = run.milestones[0] + 1
        if end > expected:
            numberings.expected[run.topic] = end
        return max(0, first - expected)

    @checkpointed
    async def receive_batch(self, max_events: int = 1024) -> list[Event]:
        """Wait for at least one event and return what waits, up to ``max_events``.  Cancelling it loses none.

        Raises:
            trio.EndOfChannel: the subscription was closed.
            SubscriberTooSlow: it has ended, as more came than its limits permit and ``overflow`` is ``fail``.
            ConfigError: ``max_events`` is no whole number above 0; no event is taken.
        """
        most = batch_size(max_events)
        await self._pass_turn()
        try:
            batch = [await self.__anext__()]
        except StopAsyncIteration:
            raise trio.EndOfChannel from None
        return self._filled(batch, most)

    async def _receive_runs(self, max_events: int = 1024) -> list[EventRun]:
        """Do as ``receive_batch``, but return the runs in which the events came; at least one, of any length.

        For a bridge (``BridgeMember._receive``), which stores events and needs no object for each.  Not to be mixed
        with the other ways of receiving.  Cancelling it loses none.

        Raises:
            trio.EndOfChannel: the subscription was closed.
        """
        if self._settling:
            self._settle()
        await self._pass_turn()
        while not self._runs:
            if self._closed:
                raise trio.EndOfChannel
            await self._news.wait()
            self._turn_began = trio.current_time()
        runs: list[EventRun] = []
        count = 0
        while self._runs and (not runs or count + self._runs[0].left <= max_events):
            run = self._next_run()
            run.cut()
            runs.append(run)
            count += len(run.payloads)
            self._waiting_bytes -= run.size
            self._count_taken(run.account, len(run.payloads))
        self._waiting -= count
        self._delivered += count
        self._go_on()
        return runs

    @checkpointed
    async def confirm(self, batch: Sequence[Event]) -> None:
        """Acknowledge these events as durable to the publishers that asked for it.

        Events published by plain ``publish`` are skipped.  If it is cancelled, they were sent all the same.
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
        await self._confirm_ranges(ranges)

    def _explain_delay(self, publishers: Iterable[NodeId], reason: str) -> None:
        """Report to publishers why their events are not confirmed: ``publish`` names it when its time is over.

        Args:
            publishers: their nodes.
            reason: text that follows "node X says: ", up to 256 characters.
        """
        self._upstream.delay(publishers, reason)

    async def _confirm_ranges(self, ranges: Mapping[NodeId, Sequence[int]]) -> None:
        """Confirm numbers, by publisher: first and last of each range.  Cancelled, it has sent them."""
        self._upstream.confirm(ranges)
        await trio.lowlevel.checkpoint()

    @property
    def _is_reading(self) -> bool:
        """True while its consumer is in the middle of a run."""
        return self._current is not None

    def _waits(self) -> int:
        """Return how many events wait here."""
        self._note_taken()
        return self._waiting

    def _is_full(self) -> bool:
        """Return whether an event that comes now would have another one dropped, or be dropped itself."""
        self._note_taken()
        return self._waiting >= self._max_events or self._waiting_bytes >= self._max_bytes

    def _abandon(self) -> list[EventRun]:
        """Give up the queue, as the subscription of a group has ended; the caller counts it, each run by itself."""
        self._note_taken()
        runs = list(self._runs)
        if self._current is not None:
            rest = copy.copy(self._current)  # not the run itself: the events that were taken have their numbers from it
            rest.next = len(rest.payloads) - self._untaken
            runs.insert(0, rest)
        self._settle()
        for run in runs:
            run.cut()
        self._runs = _NO_RUNS
        self._current = None
        self._payloads, self._events = iter(_NOTHING), iter(())
        self._untaken = self._waiting = self._waiting_bytes = 0
        return runs

    def _count_abandoned(self, run: EventRun) -> None:
        """Count a run that nobody receives any more.  What waits for confirmation is sent to another member."""
        self._dropped += len(run.payloads)
        if run.confirm:
            run.account.ended += len(run.payloads)
        else:
            run.account.dropped += len(run.payloads)

    def _end_books(self) -> None:
        """Count what waits as ended, though it may still be received: the block of the subscription was left."""
        self._note_taken()
        if self._current is not None:
            self._current.account.ended += self._untaken
            self._current.account = UNCOUNTED
        for run in self._runs:
            run.account.ended += run.left
            run.account = UNCOUNTED

    def _count_moved(self, run: EventRun) -> None:
        """Count a run that another subscription of the group has taken over."""
        self._received -= len(run.payloads)

    def _release(self) -> None:
        """Ask publishers to pause no longer."""
        if self._holding:
            self._holding = False
            self._upstream.pause(self.pattern, paused=False)

    def _close(self) -> None:
        """Let the consumer receive what waits and then end its iteration."""
        self._closed = True
        self._news.wake()
