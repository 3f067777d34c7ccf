"""Publisher: numbers events, routes each topic to its subscribers' links, and applies backpressure.

Consecutive events of one topic travel as one message, a *run* (a record batch).  As long as no link has begun to encode
its open batch and nothing else was published, the next payload is appended to the run that is already posted
(``extend``).  At 100 bytes this cuts encoding from 0.17 us to 0.02 us, and a whole publish from 1.5 us to 0.3 us.  The
growth of a run is counted when it ends.

Backpressure: a publisher waits for links that are half full and moving.  A link without progress for ``STALLED``
seconds does not slow its publisher; events for it are dropped and counted, and show as a gap at the subscriber.

Subscribers with ``overflow="wait"``: a publisher waits while they ask for a pause, and for their links that stand
still, for ``Config.broadcast_patience`` in all (``iris.kernel.patience``).  Then it publishes past them: what they do
not get is counted and shows as a gap in the same way, until they end their pause, or their link has room.  Confirmed
events wait for durable subscribers up to their own timeout.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, cast, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import EventsLost, NotAllowed, NotSent, RemoteProtocolError
from iris.kernel.link import Link, OpenRun
from iris.kernel.names import NodeId, check_key
from iris.kernel.patience import Patience
from iris.kernel.wire import kinds
from iris.patterns.books import NOBODY, OTHER, EventPattern, ReceiverSet, Tally
from iris.patterns.payloads import encoded
from iris.patterns.picker import MemberHealth
from iris.patterns.pubsub.interest import (
    MAX_WITHDRAWN,
    DurableSubscribers,
    InterestTable,
    Matcher,
    Milestones,
    NameId,
    ShardMaps,
    check_topic,
    stable_hash,
)
from iris.patterns.pubsub.publish.accounts import EventAccounts, PublishStatistics, TopicRun
from iris.patterns.pubsub.publish.posted import PostedEvents
from iris.patterns.pubsub.publish.retained import RetainedSender, envelope_size
from iris.patterns.pubsub.publish.rotation import MAX_ROTATIONS, Rotation
from iris.patterns.pubsub.sealed import SealedSender
from iris.patterns.pubsub.tree import EventTrees, Route

STALLED: Final = 0.25
"""Seconds without progress after which a link no longer slows its publishers."""

_EVENT_OVERHEAD: Final = 256
"""Size that an event counts beside its payload, in bytes: a run of 256 KiB has at most the 1,024 events of an array."""

_MAX_RUN: Final = wire.MAX_ARRAY * _EVENT_OVERHEAD - _EVENT_OVERHEAD
"""Size limit of the growth of a run, in bytes."""

_HALF: Final = 4
"""Events that a publisher has to have sent to the patient subscribers of one owner until its patience with them counts
anew: half of the smallest window.  How small a window is, only its subscriber knows."""

_UNSENT: Final = "not published"
"""Reason of the loss of events that their publisher did not wait for, and that were not published."""

_PAST: Final = "subscriber asks to wait"
"""Reason of the loss of events that were published past a subscriber."""

_TRIED: Final = 64
"""Topics that are tried to find one to forget."""

_YIELD_BYTES: Final = 256 * KIB
"""Size, overhead included, after which a publisher that never waits yields to other tasks, in bytes: some 500 us."""

GroupId = tuple[str, str]
"""A group: the cluster that owns it, empty if it is common to all, and its name."""

_NOBODY: Final[frozenset[Route]] = frozenset()
_NO_NODES: Final[frozenset[NodeId]] = frozenset()
_UNSHARED: Final[Mapping[GroupId, tuple[int, Mapping[int, NodeId]]]] = MappingProxyType({})
"""Value of all topics without such subscribers: one of each for every topic would be 280 bytes."""


_NOBODY_AWAY: Final[frozenset[NameId]] = frozenset()


@final
class Topic:
    """State of one topic: its numbering, and the links that its events take.

    The numbers of a topic follow the number of events that this node had published in all when the topic began.  So a
    topic that was forgotten and begins anew has higher numbers than before, and its milestones tell subscribers that
    nothing is missing in between.

    Attributes:
        sequence: number of the last event.
        links: links to the nodes that get every event; one of them may lead to many, over a tree.
        grouped: groups, and the rotation of the nodes of which one gets each event.
        shared: number of shards, and the node of each, by group that divides events by shard.
        receiver_set: nodes that ``links`` lead to, in the books.
        every: links to all receivers, those of groups included.
        held: nodes that have asked for a pause, and that no other one can stand in for.
        resting: all nodes that have asked for a pause: they have no turns in groups.
        past: nodes of these that were waited for long enough: they get nothing.
        durable: nodes of ``past`` with durable subscriptions.
        linked_past: links to nodes that are in ``past`` and would else get every event.
        patience: patience with the owners of patient nodes, as far as any was waited for.
        unconfirmed: first numbers of the runs of events that wait to be confirmed, in order; None if none ever did.
        withdrawn: ranges of events that were not confirmed in time, by first and last number, in order; until every
            durable subscriber knows.
        away: durable subscribers that were away when this was last looked up.
        patient: links to nodes that want publishers to wait, however slow they are.
        raised: losses that were raised to a strict publisher; the books have how many there are.
        had_durable: True once a durable subscriber without a name has been there.
        milestones: starts of the topic and of its last receivers; see ``iris.patterns.pubsub.interest.start_offsets``.
    """

    __slots__ = (
        "away",
        "durable",
        "every",
        "grouped",
        "had_durable",
        "held",
        "linked_past",
        "links",
        "milestones",
        "past",
        "patience",
        "patient",
        "raised",
        "receiver_set",
        "resting",
        "sequence",
        "shared",
        "unconfirmed",
        "version",
        "withdrawn",
    )

    def __init__(self, published: int = 0) -> None:
        self.milestones: Milestones = (published,)
        self.sequence = published
        self.version = -1
        self.links: tuple[Route, ...] = ()
        self.receiver_set: ReceiverSet | None = None
        self.grouped: tuple[tuple[GroupId, Rotation[NodeId]], ...] = ()
        self.shared: Mapping[GroupId, tuple[int, Mapping[int, NodeId]]] = _UNSHARED
        self.every: tuple[Route, ...] = ()
        self.held: tuple[NodeId, ...] = ()
        self.resting: tuple[NodeId, ...] = ()
        self.past: frozenset[NodeId] = _NO_NODES
        self.durable: frozenset[NodeId] = _NO_NODES
        self.linked_past: tuple[Link, ...] = ()
        self.patience: tuple[Patience, ...] = ()
        self.patient: frozenset[Route] = _NOBODY
        self.raised = 0
        self.had_durable = False
        self.unconfirmed: OrderedDict[int, None] | None = None
        self.withdrawn: tuple[tuple[int, int], ...] = ()
        self.away: frozenset[NameId] = _NOBODY_AWAY

    def hold(self, sequence: int) -> None:
        """Note that events from this number on wait to be confirmed, and may be sent again."""
        if self.unconfirmed is None:
            self.unconfirmed = OrderedDict()
        self.unconfirmed[sequence] = None

    def release(self, sequence: int) -> None:
        """Note that these events wait no longer."""
        if self.unconfirmed is not None:
            self.unconfirmed.pop(sequence, None)

    def withdraw(self, first: int, last: int) -> None:
        """Note that events were not confirmed in time, as their publisher knows: they are not missing."""
        merged: list[tuple[int, int]] = []
        for begin, end in sorted((*self.withdrawn, (first, last))):
            follows = merged and begin == merged[-1][1] + 1
            merged.append((merged.pop()[0] if follows else begin, end))
        self.withdrawn = tuple(merged[-MAX_WITHDRAWN:])

    def milestones_of(self, milestones: Milestones, sequence: int) -> Milestones:
        """Return the milestones of the event ``sequence``, with what is not confirmed when it is sent, or withdrawn."""
        if not self.unconfirmed and not self.withdrawn:
            return milestones
        began, *came = milestones
        unconfirmed = next(iter(self.unconfirmed)) if self.unconfirmed else sequence
        return (began, *(came or (began, began)), unconfirmed, *itertools.chain(*self.withdrawn))

    def note_receivers(self, before: tuple[Route, ...], published: int, left: Mapping[NameId, int]) -> None:
        """Set a milestone where receivers have come, or a durable subscriber has left.

        One that comes back is no new receiver: its milestone is where it left.

        Args:
            before: links so far.
            published: events that this node has published in all.
            left: durable subscribers of the topic that are away, and the events that it had published when they left.
        """
        if self.sequence > self.milestones[0]:
            gone = [count for name, count in left.items() if name not in self.away]
            if gone:
                self.milestones = (self.milestones[0], min(gone), self.sequence)
            elif self.away <= left.keys() and not set(before).issuperset(self.links):
                self.milestones = (self.milestones[0], published, self.sequence)
        self.away = frozenset(left) if left else _NOBODY_AWAY

    def choose(
        self,
        key: str | None,
        fit: Callable[[NodeId], bool],
        outstanding: Callable[[NodeId], int],
        turns_away: Callable[[NodeId], bool],
    ) -> list[tuple[NodeId, GroupId]]:
        """Return one node of each group that wants the topic, with the group: by key where there is one, else in turns.

        A node that is not ``fit``, or asks for a pause, is passed over, if another one is not; see ``Rotation``.

        By key means rendezvous hashing: the same key goes to the same node while it lives, fit or not, and when a node
        goes only its own keys move.
        """
        chosen: list[tuple[NodeId, GroupId]] = []
        for group, turns in self.grouped:
            if key is not None:
                node = owner(turns.members, key)
            elif self.resting:
                node = turns.next_receiver(lambda one: one not in self.resting and fit(one), outstanding, turns_away)
            else:
                node = turns.next_receiver(fit, outstanding, turns_away)
            chosen.append((node, group))
        return chosen

    def waits_for(self, key: str | None, *, confirm: bool = False) -> list[NodeId]:
        """Return the subscribers that an event with this key has to wait for, as they have asked for a pause.

        Args:
            key: key of the event.
            confirm: True to include durable ones that were waited for long enough.
        """
        if not self.resting:
            return []
        held = list(self.held)
        if key is not None:
            owners = {owner(turns.members, key) for _, turns in self.grouped}
            held += [node for node in self.resting if node in owners and node not in held]
        return [node for node in held if node not in self.past or (confirm and node in self.durable)]


@final
class _Run(TopicRun):
    """An open record batch: events that were posted as one message, which may still grow.

    Attributes:
        taken: nodes that it was posted to.
        skipped: nodes whose link did not accept it.
        missed: routes that did not accept it.
    """

    __slots__ = ("_publishing", "missed", "skipped", "state", "taken")

    def __init__(
        self, publishing: Publisher, state: Topic, topic: str, payloads: list[wire.Payload], room: int
    ) -> None:
        super().__init__(publishing.accounts, topic, payloads, room)
        self._publishing = publishing
        self.state = state
        self.taken = self.skipped = 0
        self.missed: tuple[Route, ...] = ()

    def end(self) -> None:
        """Close the run to further events, and count its growth."""
        if self.is_open:
            self.is_open = False
            self._publishing.count_growth(self)


@final
class Publisher:
    """The publisher of one node: all its topics.

    Args:
        durable: durable subscribers, of which some are away.
        health: nodes that are to get no new work now.
        sealed: sender of events for nodes of other sites.  None if this node is at no site.
    """

    def __init__(
        self,
        mesh: Mesh,
        interest: InterestTable,
        durable: DurableSubscribers,
        accounts: EventAccounts,
        health: MemberHealth,
        sealed: SealedSender | None,
    ) -> None:
        config = mesh.config
        self.accounts: Final = accounts
        self._ledger = accounts.ledger
        self._raised_of_others = 0
        """Losses on topics without a row of their own that were raised to a strict publisher."""
        self.without_subscriber = 0
        """Events without a subscriber."""
        self.posted: Final = PostedEvents()
        """Events of threads that are not published yet."""
        self._mesh = mesh
        self._health = health
        self._interest = interest
        self._durable = durable
        self._config = config
        self._topics: OrderedDict[str, Topic] = OrderedDict()
        """Topics by name; the one that was published on last stands last."""
        self._room = min(_MAX_RUN, config.max_payload)
        self._since_yield = 0
        self._crowded: Topic | None = None
        """Topic of which a link had no room, so that the publisher is to wait before the next event."""
        self._shards: Final = ShardMaps()
        self._rotations: dict[tuple[GroupId, tuple[NodeId, ...]], Rotation[NodeId]] = {}
        """Rotations by group, and by the set of its nodes that want the same topics."""
        self._rng = random.Random(mesh.node)  # decides about nothing but turns
        self._holds: Matcher[tuple[NodeId, str]] = Matcher()
        self._held: dict[NodeId, dict[str, tuple[NodeId, str]]] = {}
        """Patterns of the pauses of each node, and the entry of each in ``_holds``."""
        self._past: set[tuple[NodeId, str]] = set()
        """Pauses that events no longer wait for."""
        self._still: set[NodeId] = set()
        """Nodes whose links stand still, and that events no longer wait for; an empty name stands for other sites."""
        self._patience: dict[str, Patience] = {}
        """Patience with the patient nodes of each owner that was waited for."""
        self._resumed: set[NodeId] = set()
        """Nodes that have ended a pause: what they receive makes the patience with their owner count anew.  What others
        of that owner receive does not, or it could have its nodes ask for a pause one after the other."""
        self._released = trio.lowlevel.ParkingLot()
        self.routes_version = 0
        """Number of times that the interest, the peers or the pauses have changed.  Read only."""
        self.trees: Final = EventTrees(mesh, interest, health, self)
        self.retention: Final = RetainedSender(mesh, interest, self)
        """This node's own retained values."""
        self.remote_sites: Final = sealed
        """Sender of events for nodes of other sites.  None if this node is at no site."""
        mesh.register(kinds.Hold, self._receive_hold)

    @property
    def tally(self) -> Tally:
        """Counters, one for each event and node that it goes to, as they are now."""
        self.accounts.run.end()
        tally = Tally()
        tally.sent = self.accounts.sent
        tally.lost.update(self._ledger.events.lost)
        tally.handed_over = tally.sent - tally.lost.total()
        return tally

    def statistics(self) -> PublishStatistics:
        """Return a snapshot of the counters."""
        tally, events = self.tally, self._ledger.events
        return PublishStatistics(
            published=self.published,
            without_subscriber=self.without_subscriber,
            sent=tally.sent,
            handed_over=tally.handed_over,
            lost=dict(tally.lost),
            dropped=wire.saturated(events.dropped),
            refused=wire.saturated(events.refused),
            retained=len(self.retention.events),
            retained_bytes=self.retention.events.bytes,
            posted=len(self.posted),
            posted_bytes=self.posted.bytes,
        )

    @property
    def published(self) -> int:
        """Events handed to ``publish``."""
        return self.accounts.published

    def routes_changed(self) -> None:
        """Resolve the routes of all topics anew: the interest, the peers or the pauses have changed."""
        self.routes_version += 1
        self._rotations.clear()
        self.accounts.run.end()

    def last_number(self, topic: str) -> int:
        """Return the number of the last event of a topic; 0 if there was none, or the topic is forgotten."""
        self.accounts.run.end()
        state = self._topics.get(topic)
        return 0 if state is None else state.sequence

    def topics(self) -> Iterator[tuple[str, int, int]]:
        """Yield each topic that is not forgotten, with its number of published events and of lost copies."""
        self.accounts.run.end()
        for topic, state in self._topics.items():
            yield topic, state.sequence - state.milestones[0], wire.saturated(self._ledger.events.lost_on(topic))

    def raise_for_losses(self, topic: str) -> None:
        """Raise EventsLost if events of a topic were lost since this was last called, one for each subscriber.

        Topics without a row of their own in the books share what their subscribers report: it is raised on the first.
        """
        self.accounts.run.end()
        state = self._topics.get(topic)
        if state is None:
            return
        lost, others = self._ledger.events.lost_on(topic), self._ledger.events.lost_on(OTHER)
        news, state.raised = lost - state.raised, lost
        if others > self._raised_of_others and any(
            self._ledger.shares_row(topic, node) for route in state.every for node in _nodes_of(route)
        ):
            news, self._raised_of_others = news + others - self._raised_of_others, others
        if news:
            raise EventsLost(f"subscribers of {topic!r} did not get {news} of the events published on it", count=news)

    # -- publishing -----------------------------------------------------------------------------------------

    def has(self, topic: str) -> bool:
        """Return whether a topic was published on, so that it may be again.  For any thread."""
        return type(topic) is str and topic in self._topics

    def extend(self, topic: str, payload: wire.Payload, size: int) -> bool:
        """Publish an event without key and headers, if it can go along with the one before; else do nothing."""
        run = self.accounts.run
        if run.is_open and run.topic == topic:
            grown = run.grown + size + _EVENT_OVERHEAD
            if grown <= run.room:
                run.grown = grown
                # The posted message holds this very list, so the append publishes the event.
                run.payloads.append(payload)
                return True
        return False

    def publish_at_once(
        self, topic: str, payload: object, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Publish an event if nothing has to be waited for before it; return whether it is published.

        Any code of the node's thread may call it, a task or not.  Where the links were full, the next event waits.

        Raises:
            ConfigError, NotAllowed, PayloadTooLarge, LocalProtocolError: see ``Node.publish``.
        """
        if self._crowded is not None and self._waits_for_room(self.resolve(topic)):
            return False
        plain = key is None and not headers
        if plain and type(payload) is bytes and self.extend(topic, payload, len(payload)):
            return True
        if self._since_yield >= _YIELD_BYTES and not self.accounts.run.is_open:
            return False
        body = encoded(payload, self._config.max_payload)
        size = wire.payload_size(body)
        if plain and self.extend(topic, body, size):
            return True
        flat = wire.encode_headers(headers, self._config.max_headers) if headers else None
        check_key(key)
        state = self.resolve(topic)
        self.accounts.run.end()  # which counts what it has grown by
        if self._since_yield >= _YIELD_BYTES or (state.resting and state.waits_for(key)):
            return False
        self._post_run(state, topic, key, flat, body, size)
        self._since_yield += size + _EVENT_OVERHEAD
        return True

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """See ``Node.publish``."""
        if not self.publish_at_once(topic, payload, key, headers):  # most need no coroutine more
            await self.publish_in_turn(topic, payload, key=key, headers=headers)
        if self._crowded is not None:
            await self.wait_crowded(topic)

    async def publish_in_turn(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish an event once nothing has to be waited for before it.  If it is cancelled, the event is unsent."""
        while not self.publish_at_once(topic, payload, key, headers):
            await self.wait_turn(topic, key)

    async def wait_turn(self, topic: str, key: str | None) -> None:
        """Wait for what ``publish_at_once`` found to be waited for before an event; others may come first again."""
        if self._crowded is not None and self._waits_for_room(state := self.resolve(topic)):
            await self._wait_crowded(state)
        elif self._since_yield >= _YIELD_BYTES:
            # Before this event, and not after it: it would go alone, while the flusher now sends a full batch.
            self._since_yield = 0
            await trio.lowlevel.checkpoint()
            await self._wait_room(self.resolve(topic))
        else:
            await self.wait_released(topic, key)

    def begin_turn(self) -> bool:
        """Return whether others are to have a turn before the next event.  The caller gives it to them."""
        is_due = self._since_yield >= _YIELD_BYTES
        if is_due:
            self._since_yield = 0
        return is_due

    async def wait_crowded(self, topic: str) -> None:
        """Wait for room on the links of a topic, if the event before was of it and was posted to one without room."""
        if self._crowded is not None and self._crowded is (state := self.resolve(topic)):
            await self._wait_crowded(state)

    def lose_unsent(self, topic: str) -> None:
        """Count an event as lost that was given to this node and never published."""
        self._lose_unposted(topic, _UNSENT)

    def _waits_for_room(self, state: Topic) -> bool:
        """Return whether an event waits for links, as one before it was posted to a link that had no room.

        Of another topic that was, which is not waited for: only the links of this one count.
        """
        if self._crowded is not None and not self._is_full(self._crowded):
            self._crowded = None
        return self._crowded is not None and self._is_full(state)

    def _is_full(self, state: Topic) -> bool:
        """Return whether ``_wait_room`` would wait."""
        return any(
            not link.has_room()
            and (not link.is_stalled(STALLED) or (link in state.patient and link.node not in self._still))
            for link in state.every
        )

    async def _wait_crowded(self, state: Topic) -> None:
        """Wait until the links of a topic have room, or stand still."""
        if self._crowded is state:
            self._crowded = None
        await self._wait_room(state)

    def _post_run(
        self, state: Topic, topic: str, key: str | None, headers: wire.Headers, payload: wire.Payload, size: int
    ) -> None:
        sequence = self.number(state)
        payloads = [payload]
        sent = cast("tuple[wire.Payload, ...]", payloads)  # a list, to which ``extend`` appends
        size += envelope_size(topic, headers, key)
        since = state.milestones
        if state.unconfirmed or state.withdrawn:
            since = state.milestones_of(since, sequence)
        message = kinds.Events(topic, sequence, 0, None, headers, key, sent, since)
        run: _Run | None = None
        # Only a run for everybody may grow: a group chooses a member for each event, by turn, by key or by shard.
        if headers is None and key is None and not state.grouped and not state.shared:
            run = _Run(self, state, topic, payloads, self._room)
        self.note_patient(state, topic)
        taken = skipped = 0
        missed: tuple[Route, ...] = ()
        for link in state.links:
            if self.post(link, message, size, growing=run):
                taken += link.copies
            else:
                skipped += link.copies
                missed += (link,)
        if run is not None:
            run.taken, run.skipped, run.missed = taken, skipped, missed
            if not taken:
                run.end()
        for node, (_, group) in self.choose(state, key) if state.grouped else ():
            self.post_to_one(state, node, kinds.Events(topic, sequence, 0, group, headers, key, sent, since), size)
        for (_, group), (of, nodes) in state.shared.items():
            owner = nodes.get(self.shard_of(of, key, topic))
            if owner is not None:
                self.post_to_one(state, owner, kinds.Events(topic, sequence, 0, group, headers, key, sent, since), size)
            else:
                self._lose_unposted(topic, "nobody has the shard")
        if not (state.every or state.linked_past):
            self.without_subscriber += 1

    def is_fit(self, node: NodeId) -> bool:
        """Return whether a member of a group is to get events now: it is not suspected gone, and its link moves."""
        peer = self._mesh.peer(node)
        return peer is not None and not self._health.is_suspected(node) and not peer.link.is_stalled(STALLED)

    def number(self, state: Topic, count: int = 1) -> int:
        """Return the number of the next event of a topic, having counted ``count`` events that begin there.

        No run grows any more: what is posted next comes after it.
        """
        self.accounts.add(count)
        first = state.sequence + 1
        state.sequence += count
        return first

    def count_growth(self, run: _Run) -> None:
        """Count the events that a run has grown by."""
        more = len(run.payloads) - 1
        run.state.sequence += more
        if more:
            self.accounts.add(more)
        self._since_yield += run.grown
        self.accounts.count_sent(more * (run.taken + run.skipped))
        for route in run.missed:
            self._lose(route, "event", run.topic, "subscriber stalled", more)
        self.note_patient(run.state, run.topic, more)

    def count_unlinked(self, topic: str, nodes: int) -> None:
        """Count an event that did not wait for so many nodes of other sites that are listed as its subscribers.

        The lists of gateways do not say who is in a group: it is counted also where another member gets the event.
        """
        self._lose_unposted(topic, "no link to another site yet", count=nodes, strict=False)

    def _lose_unposted(
        self, topic: str, reason: str, node: NodeId = NOBODY, count: int = 1, *, strict: bool = True
    ) -> None:
        """Count events as lost that no link was asked to accept; see ``SendLedger.lose``."""
        self.accounts.count_sent(count)
        self._ledger.lose("event", topic, reason, node, count, strict=strict)

    def note_patient(self, state: Topic, topic: str, count: int = 1) -> None:
        """Count events for patient subscribers: those that get them, and those that they are published past."""
        for patience in state.patience:
            patience.sent += count
        for link in state.linked_past:
            self._pass(topic, link.node, count)

    def post_to_one(self, state: Topic, node: NodeId, message: kinds.Events, size: int, count: int = 1) -> None:
        """Post a run to the node that has been chosen of a group, unless events are published past that one."""
        if node in state.past:
            self._pass(message.topic, node, count)
        else:
            self.post_to(node, message, size, count)

    def _pass(self, topic: str, node: NodeId, count: int) -> None:
        """Count events that were published past a subscriber which asks for a pause."""
        self._lose_unposted(topic, _PAST, node, count)

    def post_to(self, node: NodeId, message: kinds.Events, size: int, count: int = 1) -> bool:
        """Post a run to a node, counted; return whether its link accepted it."""
        peer = self._mesh.peer(node)
        return peer is not None and self.post_apart(peer.link, message, size, count)

    def choose(self, state: Topic, key: str | None) -> list[tuple[NodeId, GroupId]]:
        """See ``Topic.choose``."""
        return state.choose(key, self.is_fit, self.outstanding, self._ledger.turns_away)

    def outstanding(self, node: NodeId) -> int:
        """Return how many events for groups a node was sent that it has not settled."""
        return self._ledger.outstanding(node)

    def post_apart(self, route: Route, message: kinds.Events | kinds.Retained, size: int, count: int = 1) -> bool:
        """Post events for which no number was given just now, counted; return whether the route accepted them."""
        for node in _nodes_of(route):
            self._ledger.post(_pattern_of(message), message.topic, node, count, relayed=not isinstance(route, Link))
        return self.post(route, message, size, count)

    def post(
        self,
        link: Route,
        message: kinds.Events | kinds.Retained,
        size: int,
        count: int = 1,
        growing: OpenRun | None = None,
    ) -> bool:
        """Post a run of ``count`` events to a link or a tree, counted; return whether it accepted them.

        In the books their number counts them.
        """
        copies = count * link.copies
        self.accounts.count_sent(copies)
        if not link.has_room():
            state = self._topics.get(message.topic)  # a repeat or a last value may be of a topic that is forgotten
            # A stalled link would hold up all other subscribers of the topic. Its event is dropped here, counted, and
            # shows as a gap in the numbers.
            if link.is_stalled(STALLED) and (state is None or link not in state.patient or link.node in self._still):
                self._lose(link, _pattern_of(message), message.topic, "subscriber stalled", count)
                return False
            self._crowded = state or self._crowded
        elif self._still:
            self._still.discard(link.node)
        try:
            link.post(message, size, growing=growing)
        except NotSent:
            self._lose(link, _pattern_of(message), message.topic, "link full", count)
            return False
        # From here the event is handed over: the link sends it once, or its loss shows as a gap. Nothing sends it again
        # unless it waits for confirmation.
        return True

    def _lose(self, route: Route, pattern: EventPattern, topic: str, reason: str, count: int) -> None:
        """Count events that were posted to a route, which did not accept them."""
        for node in _nodes_of(route):
            self._ledger.lose(pattern, topic, reason, node, count, posted=True)

    def _book(self, state: Topic, topic: str) -> None:
        """Count in the books what the links of a topic accept, for the nodes that they lead to."""
        self._close_book(state)
        linked = [route.node for route in state.links if isinstance(route, Link)]
        relayed = [node for route in state.links if not isinstance(route, Link) for node in route.nodes]
        if linked or relayed:
            state.receiver_set = self._ledger.open_receiver_set("event", topic, linked, relayed, state)

    def _close_book(self, state: Topic) -> None:
        if state.receiver_set is not None:
            self._ledger.close_receiver_set(state.receiver_set)
            state.receiver_set = None

    def count_tree_lost(self, topic: str, copies: int) -> None:
        """See ``TreeSender``."""
        self._ledger.lose_handed_over(topic, "link full", copies)

    def send_retained(self, peer: Peer) -> None:
        """See ``TreeSender``."""
        self.retention.frames_lost(peer)

    def route_to(self, peer: Peer) -> Route:
        """See ``RetainedRoutes``."""
        return self.trees.route_to(peer)

    async def _wait_room(self, state: Topic) -> None:
        for link in state.every:
            while not link.has_room() and not link.is_stalled(STALLED):
                with trio.move_on_after(STALLED):
                    await link.wait_room()
            if link in state.patient and link.node not in self._still and not link.has_room():
                await self._wait_still(link)

    async def _wait_still(self, link: Route) -> None:
        """Wait until a link to patient subscribers has room, for as long as there is patience with them."""
        patience = self._patience_with(link.node)
        until = patience.begin(trio.current_time())
        try:
            with trio.move_on_at(until) as scope:
                while not link.has_room():
                    with trio.move_on_after(STALLED):
                        await link.wait_room()
            if scope.cancelled_caught:
                self._still.add(link.node)
        finally:
            patience.end(trio.current_time())

    def _patience_with(self, node: NodeId) -> Patience:
        peer = self._mesh.peer(node)
        who = node if peer is None else peer.identity.owner
        return self._patience.setdefault(who, Patience(self._config.broadcast_patience, _HALF))

    # -- where events go ------------------------------------------------------------------------------------

    def resolve(self, topic: str) -> Topic:
        """Return the state of a topic, up to date.

        Beyond ``Config.published_topics`` the topic that was not published on for longest is forgotten.

        Raises:
            ConfigError: it is not a topic.
            NotAllowed: this node's certificate does not permit it.
        """
        try:
            state = self._topics.get(topic)
        except TypeError:  # a list, say
            state = None
        if state is not None:
            self._topics.move_to_end(topic)
            if state.version == self.routes_version:
                return state
        else:
            check_topic(topic)
            certificate = self._mesh.identity.certificate
            if not certificate.rights.may_publish(topic):
                raise NotAllowed(
                    f"the certificate of cluster {certificate.name!r} does not permit to publish on {topic!r}"
                )
            if len(self._topics) >= self._config.published_topics:
                self._forget_one()
            state = self._topics[topic] = Topic(self.published)
            self._ledger.events.follow(topic)
        links: dict[NodeId, Link] = {}
        every: dict[Route, None] = {}
        patient: set[Route] = set()
        grouped: dict[GroupId, dict[NodeId, None]] = {}
        owned: Collection[GroupId] | None = None
        needed: set[NodeId] = set()
        shared: dict[GroupId, tuple[int, dict[int, NodeId]]] = {}
        remote: dict[NodeId, Peer] = {}
        blocking_remote = False
        pauses = self._holds.match(topic)
        past = {pause[0] for pause in pauses if pause in self._past} if self._past else _NO_NODES
        durable: set[NodeId] = set()
        linked_past: dict[NodeId, Link] = {}
        owners: set[Patience] = set()
        for node, terms in self._interest.match(topic):
            peer = self._mesh.peer(node)
            if peer is None:
                continue
            if terms.group is None or terms.durable:
                needed.add(node)
            if node in past:
                if terms.durable:
                    durable.add(node)
                if terms.group is None:
                    linked_past[node] = peer.link
                    continue
            elif terms.patient and node in self._resumed:
                owners.add(self._patience_with(node))
            if self.remote_sites is not None and peer.at_remote_site and terms.group is None:
                remote[node] = peer
                blocking_remote = blocking_remote or terms.patient
                continue
            if terms.patient:
                patient.add(peer.link)
            if terms.group is None:
                links[node] = peer.link
                continue
            every[peer.link] = None
            if owned is None:
                owned = self._durable.groups(topic)
            group = group_id(peer, terms.group, owned)
            if terms.share:
                of, *shards = terms.share
                before_of, nodes = shared.get(group, (0, {}))
                # While a group grows some members count fewer shards; an event of theirs is one of theirs either way.
                shared[group] = max(of, before_of), {**nodes, **dict.fromkeys(shards, node)}
            else:
                grouped.setdefault(group, {})[node] = None
        # A node that was published past is no newcomer when it gets events again.
        before = (*state.links, *state.linked_past)
        state.links = self.trees.routes(links)
        if self.remote_sites is not None and remote:
            audiences = self.remote_sites.audiences(remote.values())
            state.links += audiences
            if blocking_remote:
                patient.update(audiences)
        self._book(state, topic)
        state.note_receivers(before, self.published, self._durable.left(topic))
        state.grouped = tuple((group, self._rotation(group, nodes)) for group, nodes in sorted(grouped.items()))
        state.shared = shared or _UNSHARED
        state.every = tuple({**dict.fromkeys(state.links), **every})
        state.patient = frozenset(patient) if patient else _NOBODY
        state.past = frozenset(past) if past else _NO_NODES
        state.durable = frozenset(durable) if durable else _NO_NODES
        state.linked_past = tuple(linked_past.values())
        state.patience = tuple(owners)
        state.resting = tuple({node: None for node, _ in pauses})
        if state.resting:
            for _, turns in state.grouped:
                # Any member can stand in for another one, so a group pauses its publisher only when all its members do.
                if all(node in state.resting for node in turns.members):
                    needed.update(turns.members)
            # Nobody stands in for the owner of a shard: after a loss the event would be stored by two members.
            needed.update(node for _, nodes in state.shared.values() for node in nodes.values())
        state.held = tuple(node for node in state.resting if node in needed)
        state.version = self.routes_version
        return state

    def _forget_one(self) -> None:
        """Forget the topic that was not published on for longest, but for those with unconfirmed events."""
        for _ in range(_TRIED):
            topic, state = next(iter(self._topics.items()))
            # Events of this topic may still be sent again under their numbers, which a new numbering would not have.
            if not state.unconfirmed:
                break
            self._topics.move_to_end(topic)
        topic, forgotten = self._topics.popitem(last=False)
        self._ledger.events.forget(topic)
        self._close_book(forgotten)

    def _rotation(self, group: GroupId, nodes: Iterable[NodeId]) -> Rotation[NodeId]:
        """Return the rotation of a group's nodes; topics that go to the same ones share it."""
        members = tuple(sorted(nodes))
        turns = self._rotations.get((group, members))
        if turns is None:
            if len(self._rotations) >= MAX_ROTATIONS:
                self._rotations.clear()
            turns = self._rotations[group, members] = Rotation(members, self._rng)
        return turns

    def shard_of(self, of: int, key: str | None, topic: str, publisher: NodeId | None = None) -> int:
        """Return the shard of a node's events with a key, or else on a topic, in a group that has ``of`` shards.

        The node is this one, if no other ``publisher`` is given.
        """
        return self._shards.shard_of(of, key, publisher or self._mesh.node, topic)

    # -- subscribers that ask for a pause -------------------------------------------------------------------

    @property
    def holding(self) -> int:
        """Number of nodes that have publishers of this one wait."""
        return len(self._held)

    def _receive_hold(self, peer: Peer, hold: kinds.Hold) -> None:
        pattern = hold.pattern
        if not hold.held:
            self._release(peer.node, pattern)
            return
        if not self._interest.is_patient(peer.node, pattern):
            raise RemoteProtocolError("publishers pause for subscriptions that want them to wait, and for nobody else")
        patterns = self._held.setdefault(peer.node, {})
        if pattern not in patterns:
            entry = patterns[pattern] = (peer.node, pattern)
            self._holds.add(pattern, entry)
            self.routes_changed()

    def _release(self, node: NodeId, pattern: str) -> None:
        patterns = self._held.get(node, {})
        entry = patterns.pop(pattern, None)
        if entry is not None:
            self._holds.remove(pattern, entry)
            self._past.discard(entry)
            self._resumed.add(node)
            if not patterns:
                del self._held[node]
            self._released.unpark_all()
            self.routes_changed()

    async def wait_released(self, topic: str, key: str | None = None, *, confirm: bool = False) -> None:
        """Wait until no subscriber that is to get an event on a topic, with this key, asks for a pause.

        Args:
            topic: topic of the event.
            key: key of the event.
            confirm: True to wait for durable subscribers until they end their pause; for others as long as there is
                patience with them.
        """
        while nodes := (state := self.resolve(topic)).waits_for(key, confirm=confirm):
            now = trio.current_time()
            waits: dict[Patience, list[NodeId]] = {}
            for node in nodes:
                if node not in state.past:
                    waits.setdefault(self._patience_with(node), []).append(node)
            ends = {patience: patience.begin(now) for patience in waits}
            try:
                with trio.move_on_at(min(ends.values(), default=math.inf)):
                    await self._released.park()
            finally:
                now = trio.current_time()
                for patience in waits:
                    patience.end(now)
            self._pass_over(topic, {node for patience in waits if now >= ends[patience] for node in waits[patience]})

    def _pass_over(self, topic: str, nodes: Collection[NodeId]) -> None:
        """Publish past subscribers that ask for a pause on a topic, until they end it."""
        pauses = [pause for pause in self._holds.match(topic) if pause[0] in nodes]
        if pauses:
            self._past.update(pauses)
            self._released.unpark_all()
            self.routes_changed()

    def interest_ended(self, node: NodeId) -> None:
        """End the pauses of a node for what it no longer subscribes to, whether it has ended them or not."""
        for pattern in list(self._held.get(node, ())):
            if not self._interest.is_patient(node, pattern):
                self._release(node, pattern)

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def frames_lost(self, node: NodeId) -> None:
        """End the pauses of a node, as their end may be lost: it asks again if it needs one.  So may a key."""
        if self.remote_sites is not None:
            self.remote_sites.frames_lost(node)
        self.release_all(node)
        self.trees.frames_lost(node)

    def peer_gone(self, node: NodeId) -> None:
        """Forget a node that is gone: it gets nothing any more, and delays nobody."""
        if self.remote_sites is not None:
            self.remote_sites.peer_gone(node)
        self._still.discard(node)
        self.release_all(node)
        self._resumed.discard(node)
        self.trees.peer_gone(node)
        self.routes_changed()

    def release_all(self, node: NodeId) -> None:
        """End every pause that a node has asked for."""
        for pattern in list(self._held.get(node, ())):
            self._release(node, pattern)


def group_id(peer: Peer, group: str, owned: Collection[GroupId]) -> GroupId:
    """Return the group of a subscriber: its cluster's own group of this name if there is one, else the common one."""
    own = (peer.identity.cluster, group)
    return own if own in owned else ("", group)


def owner(nodes: Sequence[NodeId], key: str) -> NodeId:
    """Return the node of a group that events with a key go to."""
    return max(nodes, key=lambda node: stable_hash(f"{key}\0{node}"))


def _pattern_of(message: kinds.Events | kinds.Retained) -> EventPattern:
    return "group event" if isinstance(message, kinds.Events) and message.group else "event"


def _nodes_of(route: Route) -> tuple[NodeId, ...]:
    return (route.node,) if isinstance(route, Link) else route.nodes
