"""Subscriptions without a node."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import trio
from hypothesis import strategies as st

from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import Account
from iris.patterns.messages import Sender
from iris.patterns.pubsub.interest.start_offsets import Milestones, StartOffsets
from iris.patterns.pubsub.subscribe.events import Event, EventRun
from iris.patterns.pubsub.subscribe.subscription import Overflow, QueueLimits, Subscription, SubscriptionOptions
from tests.support.meshes import check_subscription

PUBLISHERS = [Sender("shop", NodeId(letter * 32)) for letter in "ab"]
SENDER = PUBLISHERS[0]


class Desk:
    """A subscription, and what it asks of publishers."""

    def __init__(
        self,
        overflow: Overflow = "drop_oldest",
        *,
        max_events: int = 10,
        max_bytes: int = 1000,
        group: str | None = None,
        allow: frozenset[str] | None = None,
        version: int | None = None,
    ) -> None:
        self.confirmed: list[tuple[NodeId, tuple[int, ...]]] = []
        self.delayed: list[tuple[NodeId, str]] = []
        self.holds: list[bool] = []
        self.malformed: list[str] = []
        self.labels = 0
        """Size of headers and key of each run, in bytes."""
        self.accounts: defaultdict[tuple[Sender, str], Account] = defaultdict(lambda: Account("t"))
        """Accounts of the books, by publisher and topic."""
        self.beginnings = StartOffsets()
        options = SubscriptionOptions(group=group, overflow=overflow, allow=allow)
        self.subscription = Subscription(">", options, QueueLimits(max_events, max_bytes), self, version=version)
        self.arrived: Counter[str] = Counter()

    def confirm(self, ranges: Mapping[NodeId, Sequence[int]]) -> None:
        self.confirmed += [(node, tuple(numbers)) for node, numbers in ranges.items()]

    def delay(self, publishers: Iterable[NodeId], reason: str) -> None:
        self.delayed += [(node, reason) for node in publishers]

    def pause(self, pattern: str, *, paused: bool) -> None:
        self.holds.append(paused)

    def unreadable(self, run: EventRun, error: RemoteProtocolError) -> None:
        self.malformed.append(str(error))

    def published(self, owner: str | None, publisher: NodeId, version: int) -> int | None:
        return self.beginnings.published(publisher, version)

    def report_soon(self) -> None:
        pass

    def too_slow(self, subscription: Subscription) -> None:
        pass

    def counted(self, column: str) -> int:
        """Return what the books have in a column, of all publishers and topics."""
        return sum(getattr(account, column) for account in self.accounts.values())

    def deliver(
        self,
        first: int,
        payloads: Sequence[wire.Payload],
        *,
        topic: str = "t",
        sender: Sender = SENDER,
        confirm: int = 0,
        milestones: Milestones = (),
    ) -> None:
        size = self.labels + sum(wire.payload_size(payload) for payload in payloads)
        plain = all(type(payload) is bytes for payload in payloads)
        events = kinds.Events(topic, first, confirm, None, None, None, tuple(payloads), milestones)
        account = self.accounts[sender, topic]
        account.arrived += len(payloads)
        self.subscription._deliver(EventRun(sender, events, {}, size, plain=plain, account=account))

    def numbers(self, first: int, count: int, **options: Any) -> None:
        """Deliver events whose payloads are their numbers."""
        self.deliver(first, [b"%d" % number for number in range(first, first + count)], **options)

    def take_one(self) -> Event | None:
        """Take the next event that waits, without waiting."""
        subscription = self.subscription
        while True:
            try:
                for event in subscription._events:
                    return event
            except RemoteProtocolError as error:
                subscription._skip_malformed(error)
                continue
            subscription._note_taken()
            if not subscription._runs:
                return None
            subscription._begin_run()

    def take(self) -> list[Event]:
        """Take everything that waits, without waiting."""
        return list(iter(self.take_one, None))

    def take_numbers(self, count: int | None = None) -> list[tuple[int, int]]:
        """Take everything, or ``count`` events: number and missed of each."""
        return [(int(event.payload), event.missed) for event in itertools.islice(iter(self.take_one, None), count)]

    @property
    def statistics(self) -> tuple[int, int, int, int, int]:
        check_subscription(self.subscription)
        it = self.subscription.statistics()
        assert (self.counted("dropped"), self.counted("refused")) == (it.dropped, it.refused)
        return it.received, it.delivered, it.dropped, it.missed, it.waiting


# -- the model ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Numbering:
    """One publisher and topic, as the model sees it."""

    next: int = 1
    first: int | None = None
    taken: int | None = None


run_sizes = st.lists(st.sampled_from([1, 1, 5, 60]), min_size=1, max_size=15)
steps = st.lists(
    st.tuples(st.just("run"), st.integers(0, 1), st.sampled_from(["t", "u"]), st.integers(0, 3), run_sizes)
    | st.tuples(st.just("take"), st.integers(1, 12))
    | st.tuples(st.just("repeat"), st.integers(0, 1)),
    max_size=40,
)


class Ticking(trio.abc.Clock):
    """A clock that moves by itself, a little with each look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        """It is always running."""

    def current_time(self) -> float:
        self.now += 0.0001
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0 if deadline < math.inf else 1


GOOD = kinds.Events("t", 1, 0, None, None, None, (b"x",), ())
