"""Bridge member: stores the events of its subscriptions, then acknowledges them to their publishers.

Path of an event: subscription (``_receive``) -> group (``_gather``, ``_commit``) -> thread (``Store.append``:
duplicates out, columns, disk) -> copies (``_follow_up``) -> confirmation (``_settle``).  While a thread writes one
group, the next one is collected.  When both are full, subscriptions fill up and publishers are asked to pause.  Readers
see a group when it may be confirmed, and not before: what copies do not have may be gone with this member.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, cast, final

import trio

from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup, run_in_thread
from iris.kernel.wire import saturated
from iris.patterns.pubsub.interest import Matcher
from iris.patterns.pubsub.subscribe import EventRun, Subscription
from iris.spark_bridge.consumers import ReaderGroups
from iris.spark_bridge.copies import PrimaryCopies
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.events.runs import count_events, stored_size
from iris.spark_bridge.events.schema import HEADER_BRIDGE
from iris.spark_bridge.log import EVERYTHING, Appended, News, Retention, ShardState, Store, TopicFilter, Transaction
from iris.spark_bridge.protocol import CopyStatus
from iris.spark_bridge.server.clock_check import MemberClock
from iris.spark_bridge.server.group_commit import GroupCommit, GroupLimits
from iris.spark_bridge.server.sharding import Sharding
from iris.spark_bridge.tier import TierStatus, TierUploads

_TAKEN_AT_ONCE: Final = 4096
_RETENTION_INTERVAL: Final = 30.0
_log: Final = logging.getLogger("iris")

_FULL_RETRY: Final = 0.5
"""Seconds between attempts to append to a full disk; publishers' confirmations wait for at least as long."""

_SPARK_PUBLISHERS: Final = 4096
"""Nodes of which it is remembered that they publish rows of Spark."""

_UNCOPIED: Final = 64
"""Groups that wait for copies one by one; further ones are put together with the last."""

_EXPLAINED: Final = 0.5
"""Seconds after which publishers get a report that their events wait for copies."""

_GOODBYE: Final = 2.0
"""Seconds that copies have for the last group of a member that leaves."""

_PUBLISHER_MEMORY: Final = 24 * 3600.0
"""Seconds after its last event that the repeats of a publisher are still recognized."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStatistics:
    """Counters of a member of a bridge, in events unless said.

    received = stored + repeats + stale + misrouted + waiting.
    """

    received: int
    stored: int
    repeats: int
    """Events that were known already: a publisher sent them again."""
    stale: int
    """Repeats so late that they could not be judged; neither stored nor confirmed."""
    misrouted: int
    """Events of other members' shards; neither stored nor confirmed.  Not all agree on the number of shards."""
    waiting: int
    missed: int
    """Events found to be missing: lost before they arrived, or published while this member was away.  Gaps in the log.

    A bridge whose members divide the events cannot count them: each sees a part of the numbering.  The publisher does.
    """
    damaged: int
    """Stored events known to differ from what was written: found at the start, or by a reader."""
    commits: int
    """Groups written to the disk."""
    refusals: int
    """Attempts to write a group that failed because there was no room."""
    unannounced: int
    """Rows written by Spark that are stored and could not be published to subscribers."""
    expired_groups: int
    """Groups of readers that nobody has used for so long that they were forgotten; not in events."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BridgeReport:
    """Report of a bridge's member to its operators."""

    statistics: BridgeStatistics
    shards: Sequence[ShardState]
    """Shards of this member."""
    lags: Mapping[str, int]
    """Number of events of these shards that each group of readers has still to read."""
    copies: Sequence[CopyStatus] = ()
    tier: Sequence[TierStatus] = ()
    """Tier of each shard; empty if there is none."""


T = TypeVar("T")


@final
@dataclasses.dataclass(eq=False, slots=True)
class _Change:
    """A change of the index that waits for the disk, then for copies."""

    change: Callable[[Transaction, list[EventRun]], object]
    done: trio.Event = dataclasses.field(default_factory=trio.Event)
    result: object = None
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End the wait with an error: nothing was changed."""
        self.error = error
        self.done.set()


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Events that arrived together.

    Attributes:
        subscription: subscription through which they came, and through which they are confirmed.
        stored: called when they are on the disk.
    """

    runs: Sequence[EventRun]
    subscription: Subscription | None = None
    stored: Callable[[], None] | None = None


Ranges = dict[NodeId, list[int]]
"""First and last number of each range of events, by publisher."""


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class _Uncopied:
    """Confirmations that follow when enough copies have a change.

    Attributes:
        number: number of the change.
        states: states of the shards, for readers.
        topics: topics of the new events in them.
        ranges: ranges to be confirmed, by subscription.
        stored: callbacks to call.
        since: time at which the wait began, in seconds.
        explained: True once publishers got the reason why they wait.
    """

    number: int
    states: Mapping[str, ShardState]
    topics: frozenset[str] = frozenset()
    ranges: dict[Subscription, Ranges] = dataclasses.field(default_factory=dict[Subscription, Ranges])
    stored: list[Callable[[], None]] = dataclasses.field(default_factory=list[Callable[[], None]])
    since: float = dataclasses.field(default_factory=trio.current_time)
    explained: bool = False

    def add(self, later: _Uncopied) -> None:
        """Merge the confirmations of a later change into these."""
        if later.number >= self.number:
            self.number, self.states = later.number, later.states
        self.topics |= later.topics
        for subscription, ranges in later.ranges.items():
            known = self.ranges.setdefault(subscription, {})
            for publisher, more in ranges.items():
                _append_ranges(known.setdefault(publisher, []), more)
        self.stored += later.stored
        self.explained = self.explained and not later.ranges


@final
@dataclasses.dataclass(eq=False, slots=True, kw_only=True)
class _WaitingReader:
    """A reader that waits for events of some topics."""

    wanted: TopicFilter
    news: trio.Event = dataclasses.field(default_factory=trio.Event)


def _has_news(found: Mapping[str, News], known: Mapping[str, int]) -> bool:
    # A log that ends before what was read was put back to an older state: the reader finds that out.
    return any(news.first < news.next or known[shard] > news.next for shard, news in found.items())


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Limits of what a member writes, and of what it keeps."""

    group: GroupLimits = dataclasses.field(default_factory=GroupLimits)
    """Limits of a group of events that is written together."""
    retention: Retention = dataclasses.field(default_factory=Retention)
    """Limits beyond which events are removed."""


@final
class BridgeMember:
    """One member of a bridge.  ``run`` stores what arrives; the rest may be called at any time.

    Args:
        store: its log.
        copies: copies of the log.
        of: number of shards of the bridge. None if its members do not divide the events.
        limits: limits of the log.
        clock: dates what is written.
        uploads: moves what is sealed to a tier. None: there is none.
    """

    def __init__(
        self,
        store: Store,
        copies: PrimaryCopies,
        of: int | None,
        limits: LogLimits,
        clock: MemberClock,
        uploads: TierUploads | None,
    ) -> None:
        shards = copies.shards
        self.store: Final = store
        self.copies: Final = copies
        self.of: Final = of
        self.groups: Final = ReaderGroups(store, limits.retention.group_idle)
        self.sharding: Final = Sharding(shards, of)
        self._undivided: Final = Sharding(shards)
        """Sharding of own events: rows of Spark and dead letters stay here, wherever their keys belong."""
        self._uploads = uploads
        self._own = frozenset(shards)
        self._retention = limits.retention
        self._clock = clock
        self._group: GroupCommit[_Batch] = GroupCommit(limits.group)
        self._changes: list[_Change] = []
        self._arrived = Wakeup()
        self._room = trio.lowlevel.ParkingLot()
        self._readers: set[_WaitingReader] = set()
        self.watchers: Final[set[Callable[[], None]]] = set()
        """Functions that are called whenever readers see more of the log; they do not block."""
        self._states: Mapping[str, ShardState] = {}
        self._shown = 0
        """Number of the change up to which readers see the log."""
        self._known: Mapping[int, str] = store.members()
        self._spark_publishers: OrderedDict[str, None] = OrderedDict()
        """Nodes that publish rows of Spark: some of their events are stored under another publisher."""
        self._received = self._stored = self._repeats = self._stale = self._misrouted = 0
        self._waiting = self._missed = self._commits = self._refusals = self._unannounced = 0
        self._is_full = False
        """True if the last group found no room."""
        self._uncopied: deque[_Uncopied] = deque()
        self._groups: deque[int] = deque((0, 0), maxlen=2)
        """Numbers of the last two groups that were written."""
        self._disk = trio.CapacityLimiter(1)
        """Thread of its own, which readers of a slow tier cannot use up."""
        self._show(self._look_at_store())  # ``PrimaryCopies.wait_ready`` has seen to that

    def __repr__(self) -> str:
        return f"<BridgeMember {self.store!r}, {self._stored} events stored>"

    def statistics(self) -> BridgeStatistics:
        """Return a snapshot of the counters."""
        return BridgeStatistics(
            received=self._received,
            stored=self._stored,
            repeats=self._repeats,
            stale=self._stale,
            misrouted=self._misrouted,
            waiting=self._waiting,
            missed=self._missed,
            damaged=sum(damage.end - damage.offset for damage in self.store.reader.damage()),
            commits=self._commits,
            refusals=self._refusals,
            unannounced=self._unannounced,
            expired_groups=self.groups.expired,
        )

    async def report(self) -> BridgeReport:
        """Return the counters, the shards, and the lags of readers: these are looked up in the log."""
        cursors = await run_in_thread(self.store.cursors.all)
        shards = sorted(self._states.values(), key=lambda state: state.number)
        lags = {
            cursor.group: sum(
                max(0, shard.next - max(cursor.offsets.get(shard.id, 0), shard.earliest)) for shard in shards
            )
            for cursor in cursors
        }
        copies = await self.copies.statuses()
        return BridgeReport(
            statistics=self.statistics(), shards=shards, lags=lags, copies=copies, tier=await self.tier_statuses()
        )

    async def tier_statuses(self) -> Sequence[TierStatus]:
        """Return the progress of the tier of each shard; nothing if there is none."""
        return () if self._uploads is None else await run_in_thread(self._uploads.statuses)

    @property
    def states(self) -> Mapping[str, ShardState]:
        """The shards by id, as they are now for readers."""
        return self._states

    @property
    def known(self) -> Mapping[int, str]:
        """The shards that the bridge is known to have, by number, with the cluster at which each was found last."""
        return self._known

    async def note_shards(self, found: Mapping[int, str]) -> None:
        """Keep in the log which shards the bridge has: a reader has to learn of one that is away.

        Args:
            found: numbers of shards, with the cluster at which each is found.

        Raises:
            StoreFull: there is no room for that; it is reported to readers all the same, until this member ends.
        """
        self._known = {**self._known, **found}
        await run_in_thread(self.store.note_members, found)

    async def forget_shard(self, number: int) -> bool:
        """Forget a shard whose log is gone; return whether it was known, and not this member's own."""
        if number in self._own or not await run_in_thread(self.store.forget_member, number):
            return False
        self._known = {shard: address for shard, address in self._known.items() if shard != number}
        return True

    def owns(self, key: str | None, publisher: str, topic: str) -> bool:
        """Return whether the shard of an event is one of this member's."""
        return self.sharding.owns(key, publisher, topic)

    def now(self) -> int:
        """Return the wall clock in microseconds since 1970."""
        return self._clock.now()

    def date(self) -> int:
        """Return the date for what is written now, in microseconds since 1970."""
        return self._clock.date()

    def moment(self, date: int) -> float:
        """Return the time of a date, past or to come, in seconds of the monotonic clock."""
        return self._clock.moment(date)

    def is_clock_believed(self) -> bool:
        """Return whether anything may be forgotten for its age."""
        return self._clock.is_believed()

    def note_appended(self, appended: Appended) -> None:
        """Note that rows of Spark's are in the log; readers see them as soon as enough copies have them."""
        self._follow_up(self._uncopied_of(appended))

    def note_unannounced(self, count: int) -> None:
        """Count rows of Spark's that could not be published."""
        self._unannounced += count

    def refresh(self) -> None:
        """Look at the store again, after it was changed; readers see that as soon as enough copies have it."""
        self._follow_up(self._look_at_store())

    def _look_at_store(self) -> _Uncopied:
        number, states = self.store.numbered_shards()
        return _Uncopied(number=number, states=self._by_id(states))

    def _uncopied_of(self, appended: Appended) -> _Uncopied:
        return _Uncopied(number=appended.number, states=self._by_id(appended.shards), topics=appended.topics)

    def _by_id(self, states: Sequence[ShardState]) -> dict[str, ShardState]:
        return {state.id: state for state in states if state.number in self._own}

    def _follow_up(self, looked: _Uncopied) -> None:
        """Let what is on the disk wait for copies, until ``_settle``; show it now if there is nothing to wait for."""
        if not self._uncopied and not looked.ranges and not looked.stored and looked.number <= self.copies.copied:
            self._show(looked)
        elif len(self._uncopied) < _UNCOPIED:
            self._uncopied.append(looked)
            self.copies.wake()
        else:
            self._uncopied[-1].add(looked)

    def _show(self, looked: _Uncopied) -> None:
        """Let readers see the log up to there, and wake those that wait.

        Changes are made in several threads, so this one may come behind a later one.
        """
        changed = looked.number >= self._shown and looked.states != self._states
        if changed:
            self._states = looked.states
        self._shown = max(self._shown, looked.number)
        if changed or looked.topics:
            for woken in self.watchers:
                woken()
            for waiting in self._readers:
                if waiting.wanted.is_wanted_of(looked.topics):
                    waiting.news.set()

    async def wait_news(
        self, known: Mapping[str, int], timeout: float, wanted: TopicFilter = EVERYTHING, limit: int | None = None
    ) -> dict[str, News]:
        """Wait until an event behind ``known`` is wanted in one of its shards, or for ``timeout`` seconds.

        Args:
            known: offset to which a reader has come, by shard id; empty: report on all shards, and do not wait.
            timeout: seconds.
            wanted: topics.
            limit: most events to count. None: only find out if there is one.

        Returns:
            What is there now, of those of these shards that are.

        Raises:
            LogDamaged: what is stored is not what was written.
        """
        reader = _WaitingReader(wanted=wanted)
        # Before the log is looked at: what comes in between is news.
        self._readers.add(reader)
        try:
            found = await self._look(known, wanted, limit)
            with trio.move_on_after(timeout):
                while found and found.keys() == known.keys() and not _has_news(found, known):
                    await reader.news.wait()
                    reader.news = trio.Event()
                    found = await self._look({shard: news.first for shard, news in found.items()}, wanted, limit)
            return found
        finally:
            self._readers.remove(reader)

    async def _look(self, known: Mapping[str, int], wanted: TopicFilter, limit: int | None) -> dict[str, News]:
        asked = {shard: state for shard, state in self._states.items() if not known or shard in known}
        if wanted.is_everything and limit is None:
            return {
                shard: News(
                    earliest=self.store.reader.earliest(state, wanted),
                    next=state.next,
                    first=min(max(known.get(shard, 0), state.earliest), state.next),
                    count=max(0, state.next - max(known.get(shard, 0), state.earliest)),
                    upto=state.next,
                )
                for shard, state in asked.items()
            }

        def look() -> dict[str, News]:
            return {
                shard: self.store.reader.look(state.number, known.get(shard, 0), wanted, limit, end=state.next)
                for shard, state in asked.items()
            }

        return await run_in_thread(look)

    # -- working --------------------------------------------------------------------------------------------

    async def run(self, subscriptions: Sequence[tuple[str, Subscription]]) -> None:
        """Store what the subscriptions (pattern and subscription) receive, until it is cancelled.

        What has been received by then is written and confirmed first; that takes one write to the disk.
        """
        # An event received from a subscription is nowhere else: one without confirmation is never sent again. So
        # the commit outlives the cancellation of the receiving tasks.
        committing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit_groups, committing)
            nursery.start_soon(self._settle_copied)
            nursery.start_soon(self._apply_retention)
            if self._uploads is not None:
                nursery.start_soon(self._uploads.run)
            try:
                async with trio.open_nursery() as receiving:
                    receiving.start_soon(trio.sleep_forever)  # with no subscription there is still ``append``
                    for turn, (_, subscription) in enumerate(subscriptions):
                        # Of several subscriptions of one group each event comes to one, whichever that is.
                        patterns = [pattern for pattern, _ in subscriptions]
                        wanted = _first_match(patterns, turn) if self.of is None else None
                        receiving.start_soon(self._receive, subscription, wanted)
            finally:
                committing.cancel()

    async def _receive(self, subscription: Subscription, wanted: Callable[[str], bool] | None) -> None:
        while True:
            runs = await subscription._receive_runs(_TAKEN_AT_ONCE)
            runs = [
                run for run in runs if (wanted is None or wanted(run.topic)) and not (run.headers and self._is_own(run))
            ]
            if not runs:
                continue
            await self._gather(_Batch(runs=runs, subscription=subscription))

    def _is_own(self, run: EventRun) -> bool:
        """Return whether Spark wrote these events: a member has stored them before it published them."""
        # The header counts only from nodes of this realm: those of another one could have their events pass for stored.
        named = run.headers.get(HEADER_BRIDGE)
        own = named is not None and named == self.copies.bridge and "/" not in run.sender.cluster
        if own:
            self._spark_publishers[run.publisher] = None
            if len(self._spark_publishers) > _SPARK_PUBLISHERS:
                self._spark_publishers.popitem(last=False)
        return own

    def _is_judged(self, publisher: str) -> bool:
        """Return whether all events of a publisher come here, so that numbers that are missing are events that are."""
        return self.of is None and publisher not in self._spark_publishers

    async def append(self, runs: Sequence[EventRun], stored: Callable[[], None] | None = None) -> None:
        """Store events that did not come through a subscription, after all that was received before.

        Args:
            runs: the events, not numbered.
            stored: called when they are on the disk.

        Returns when they wait for the disk; while a full group does, it waits for that.
        """
        await self._gather(_Batch(runs=runs, stored=stored))

    async def write(self, change: Callable[[Transaction, list[EventRun]], T]) -> T:
        """Change the index, in one transaction with what else is to be written; return what ``change`` returns.

        When this returns it is on the disk, and on as many copies as it takes.  So it is with what ``change`` has read.

        Args:
            change: gets the index, and a list to which it adds events that are stored with the change.  Changes are
                made in their order, in another thread; where there is no room one may be made a second time.

        Raises:
            StoreFull: there is no room; nothing was changed.
            Exception: what ``change`` has raised; nothing was changed, and other changes are made all the same.

        Cancelling leaves it open whether the change is made.
        """
        waiting = _Change(change)
        self._changes.append(waiting)
        self._arrived.wake()
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error
        return cast("T", waiting.result)

    async def _gather(self, batch: _Batch) -> None:
        count = count_events(batch.runs)
        self._received += count
        self._waiting += count
        size = sum(map(stored_size, batch.runs))
        self._group.add(batch, events=count, size=size, now=trio.current_time())
        self._arrived.wake()
        while self._group.is_full:
            await self._room.park()

    async def _commit_groups(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                while not self._group.batches and not self._changes:
                    await self._arrived.wait()
                # Changes alone are written at once: they are grouped by the write before.  Beside events they wait with
                # these, or a busy queue would cut every group of events short.
                while self._group.batches and (wait := self._group.deadline - trio.current_time()) > 0:
                    with trio.move_on_after(wait):
                        await self._arrived.wait()
                await self._commit(retry=True)
        if self._changes or self._group.batches:
            with trio.CancelScope(shield=True):
                await self._commit(retry=False)
        with trio.move_on_after(_GOODBYE, shield=True):
            # Publishers wait for this member to leave before they send to the next primary.
            while self._uncopied and not self.copies.is_deposed:
                await self._settle()
                if self._uncopied:
                    await self.copies.wait_news()

    async def _settle_copied(self) -> None:
        """Confirm and show what enough copies have."""
        while True:
            await self._settle()
            self._explain_copies()
            with trio.move_on_after(_EXPLAINED if self._uncopied else math.inf):
                await self.copies.wait_news()

    async def _settle(self) -> None:
        """Show and confirm what enough copies have by now: of a log without copies, what is on the disk."""
        while self._uncopied and self._uncopied[0].number <= self.copies.copied:
            settled = self._uncopied.popleft()
            self._show(settled)
            with trio.CancelScope(shield=True):  # it is in no list any more
                for subscription, ranges in settled.ranges.items():
                    await subscription._confirm_ranges(ranges)
            for stored in settled.stored:
                stored()

    def _explain_copies(self) -> None:
        before = trio.current_time() - _EXPLAINED
        for waiting in self._uncopied:
            if not waiting.explained and waiting.since <= before:
                waiting.explained = True
                for subscription, ranges in waiting.ranges.items():
                    subscription._explain_delay(ranges, self.copies.describe())

    async def _commit(self, *, retry: bool) -> None:
        """Write a group and the changes that wait, then confirm it.  On a full disk: again and again, or not at all."""
        await self.copies.wait_room(self._groups[0])
        batches = self._group.pop()
        self._room.unpark_all()
        parts, misrouted = self._divide(batches)
        changes: list[_Change] = []
        appended: Appended | None = None
        while appended is None:
            changes, self._changes = self._changes, []
            try:
                appended = await self._write_to_store(parts, changes)
            except StoreFull as reason:
                await self._write_apart(changes, reason)
                _explain((*batches, *self._group.batches))
                # The block ends with a full disk. Nothing of this group was confirmed, so its publishers still have
                # what they want stored.
                if not batches or not retry:
                    return
                await self._retain()
                await trio.sleep(_FULL_RETRY)
        if self._is_full:
            self._is_full = False
            _log.info("there is room again, and events are stored", extra={"cause": "disk"})
        # From here the events are on disk and in the index: they survive a power cut, and may be acknowledged. Not a
        # line earlier, because a publisher forgets an event when it is acknowledged.
        if batches:
            self._group.written()
        self._misrouted += count_events(misrouted) if misrouted else 0
        unstored = [*appended.stale, *misrouted]
        looked = self._uncopied_of(appended)
        self._groups.append(looked.number)
        # What a subscription brought is confirmed at once: a message for each batch was a sixth of this task's time.
        to_confirm: dict[Subscription, list[EventRun]] = {}
        for batch in batches:
            self._waiting -= count_events(batch.runs)
            if batch.subscription is not None:
                to_confirm.setdefault(batch.subscription, []).extend(batch.runs)
            if batch.stored is not None:
                looked.stored.append(batch.stored)
        for subscription, own in to_confirm.items():
            looked.ranges[subscription] = _confirmations(own, unstored)
        for change in changes:
            if change.error is None:
                looked.stored.append(change.done.set)
        if self.copies.copied == math.inf:
            self._uncopied.append(looked)
            await self._settle()
        else:
            self._follow_up(looked)

    def _divide(self, batches: Sequence[_Batch]) -> tuple[Mapping[int, Sequence[EventRun]], Sequence[EventRun]]:
        """Return the events by shard of this member; and those that belong to shards of other members."""
        runs: list[EventRun] = []
        own: list[EventRun] = []
        for batch in batches:
            (own if batch.subscription is None else runs).extend(batch.runs)
        parts, misrouted = self.sharding.split(runs) if runs else ({}, [])
        if own:
            for shard, events in self._undivided.split(own)[0].items():
                parts.setdefault(shard, []).extend(events)
        return parts, misrouted

    async def _write_apart(self, changes: Sequence[_Change], reason: StoreFull) -> None:
        """Make changes each for itself, as there is no room for events: one that only removes something may have some.

        Jobs that are done let retention go on.
        """
        self._refusals += 1
        if not self._is_full:
            self._is_full = True
            _log.error("nothing is stored until there is room: %s", reason, extra={"reason": str(reason)})
        for waiting in changes:
            try:
                looked = self._uncopied_of(await self._write_to_store({}, [waiting]))
            except StoreFull as error:
                waiting.fail(error)
                continue
            if waiting.error is None:
                looked.stored = [waiting.done.set]
                self._follow_up(looked)

    async def _write_to_store(self, parts: Mapping[int, Sequence[EventRun]], changes: Sequence[_Change]) -> Appended:
        more: list[EventRun] = []

        def change(view: Transaction) -> Mapping[int, Sequence[EventRun]]:
            for waiting in changes:
                count = len(more)
                waiting.error = None
                try:
                    with view.part() as part:
                        waiting.result = waiting.change(part, more)
                except Exception as error:  # noqa: BLE001 -- whatever it is, its caller gets it
                    waiting.error = error
                    del more[count:]
            return self._undivided.split(more)[0] if more else {}

        append = partial(
            self.store.appender.append,
            parts,
            now=self._clock.now(),
            date=self._clock.date(),
            judged=self._is_judged,
            change=change if changes else None,
        )
        appended = await run_in_thread(append, limiter=self._disk)
        for waiting in changes:
            if waiting.error is not None:
                waiting.fail(waiting.error)
        self._commits += 1
        self._missed = saturated(self._missed + appended.missed)
        self._received += count_events(more) if more else 0
        self._stored += appended.count
        self._repeats += appended.repeats
        self._stale += count_events(appended.stale) if appended.stale else 0
        return appended

    async def _apply_retention(self) -> None:
        while True:
            await self._retain()
            before = self.now() - int(_PUBLISHER_MEMORY * 1_000_000)
            if self.is_clock_believed():
                with suppress(StoreFull):  # next time
                    await run_in_thread(self.store.retainer.forget_publishers, before)
                    await self.groups.expire(self.now())
            await trio.sleep(_RETENTION_INTERVAL)

    async def _retain(self) -> None:
        retention = self._retention
        if not self.is_clock_believed():
            # A clock that jumped ahead would make every event old enough to be removed.
            retention = retention.without_ages()
        with suppress(StoreFull):  # nothing could be removed: publishers learn of what is refused
            await run_in_thread(partial(self.store.retainer.retain, retention, now=self.now()))
        self.refresh()


def _explain(batches: Sequence[_Batch]) -> None:
    """Send publishers the reason why their confirmations are delayed."""
    for batch in batches:
        if batch.subscription is not None:
            publishers = {NodeId(run.publisher) for run in batch.runs if run.confirm}
            batch.subscription._explain_delay(publishers, "its log has no room for more events")


def _append_ranges(ranges: list[int], more: Sequence[int]) -> None:
    """Append ranges; one that follows the last one directly makes that longer."""
    if ranges and more and ranges[-1] == more[0] - 1:
        ranges[-1] = more[1]
        ranges += more[2:]
    else:
        ranges += more


def _confirmations(runs: Sequence[EventRun], unstored: Sequence[EventRun]) -> Ranges:
    """Return, by publisher, the first and the last number of each range of events that are stored now."""
    unknown: set[tuple[str, int]] = set()
    for run in unstored:
        unknown.update((run.publisher, run.confirm + at) for at in range(len(run.payloads)))
    ranges: Ranges = {}
    for run in runs:
        if not run.confirm:
            continue
        known = ranges.setdefault(NodeId(run.publisher), [])
        last = run.confirm + len(run.payloads) - 1
        if not unknown:
            if known and known[-1] == run.confirm - 1:
                known[-1] = last
            else:
                known += (run.confirm, last)
        else:
            for number in range(run.confirm, last + 1):
                if (run.publisher, number) not in unknown:
                    known += (number, number)
    return ranges


def _first_match(patterns: Sequence[str], turn: int) -> Callable[[str], bool] | None:
    """Return a test whether pattern number ``turn`` is the first that matches a topic; None: it always is.

    An event whose topic matches several patterns arrives once for each.
    """
    if turn == 0:
        return None
    matcher: Matcher[int] = Matcher()
    for number, pattern in enumerate(patterns[: turn + 1]):
        matcher.add(pattern, number)
    return lambda topic: min(matcher.match(topic)) == turn
