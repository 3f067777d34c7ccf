"""Acknowledgements: ``publish_confirmed`` returns once every durable subscriber has the event on disk.

A durable subscriber is a node, or a group of which any one member acknowledges.  When a member is lost, events that it
has not acknowledged go to its stand-in under the same number, so that the subscribers can drop repeats.

A durable subscriber that has a name (``iris.patterns.pubsub.interest.durable_names``) is the same subscriber on any
node.  Its acknowledgements stay valid when it moves, and while it is away events wait for it.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.errors import NotSent, RemoteProtocolError, RequestTimeout
from iris.kernel.names import NodeId, check_key
from iris.kernel.wire import kinds
from iris.patterns.payloads import encoded
from iris.patterns.pubsub.interest import (
    DurableRecord,
    DurableSubscribers,
    InterestTable,
    Matcher,
    Milestones,
    ServedClusters,
    check_topic,
    promotion_advice,
    stable_hash,
)
from iris.patterns.pubsub.publish.posted import PostedEvents
from iris.patterns.pubsub.publish.publisher import STALLED, Publisher, Topic, group_id
from iris.patterns.pubsub.publish.retained import envelope_size
from iris.patterns.pubsub.sealed import Audience
from iris.patterns.pubsub.subscriber_links import SubscriberLinks

REPEATED: Final = ""
"""Stand-in for a group: for durable subscriptions only, because the others have had the event already."""

_MAX_RANGE: Final = 1_000_000
_NAMED: Final = 5
"""Patterns that an error names at most."""
_RETRY: Final = 0.05
_RESOLVE_REMOTE: Final = 1.0
"""Seconds between two looks for a subscriber that is away from another site: it may be listed there again."""

_Key = tuple[str, ...]
"""Identity of a durable subscriber: its sort, and its node, its name in a cluster, or its group."""


class _Subscriber(NamedTuple):
    """A durable subscriber of one topic."""

    members: list[NodeId]
    """Nodes of which any one is to store the event; empty if it is away."""
    group: str | None
    record: DurableRecord | None
    """Record that it has signed.  None if it has no name."""


@final
class _Holder:
    """The member of a group that has unconfirmed events with a key: further ones go there, too, or might be first.

    Attributes:
        node: the member.
        runs: runs with the key that it was sent and that are not over.
    """

    __slots__ = ("node", "runs")

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.runs = 0


@final
class Unconfirmed:
    """Unacknowledged run: consecutive events of one topic, the nodes that have yet to confirm, and those that have.

    Attributes:
        first: number of the first event among all that this node wants confirmed.
        size: bytes on the wire.
        pending: events that each node has confirmed, as bits, by node; nodes that have confirmed all are in ``done``.
        is_confirmed: True once every durable subscriber has all of it.
        sent_withdrawn: ranges that were withdrawn when it was sent first.  None before that.
    """

    __slots__ = (
        "asked",
        "attempts",
        "confirmed",
        "done",
        "everything",
        "first",
        "headers",
        "held",
        "is_confirmed",
        "key",
        "milestones",
        "news",
        "payloads",
        "pending",
        "sent_withdrawn",
        "sequence",
        "size",
        "state",
        "topic",
    )

    def __init__(
        self, topic: str, payloads: Sequence[wire.Payload], key: str | None, headers: wire.Headers, size: int
    ) -> None:
        self.topic = topic
        self.payloads = tuple(payloads)
        self.key = key
        self.headers = headers
        self.size = size + envelope_size(topic, headers, key) + wire.ELEMENT * len(payloads)
        self.first = self.sequence = 0
        self.milestones: Milestones = ()
        self.state: Topic | None = None
        self.everything = (1 << len(payloads)) - 1
        self.pending: dict[NodeId, int] = {}
        self.done: set[NodeId] = set()
        self.asked: dict[_Key, NodeId] = {}
        self.attempts: Counter[_Key] = Counter()
        self.confirmed: set[_Key] = set()
        self.held: dict[_Key, _Holder] | None = None
        """Members of groups that were sent it by its key.  None: there are none."""
        self.is_confirmed = False
        self.sent_withdrawn: tuple[tuple[int, int], ...] | None = None
        self.news = trio.Event()

    def message(self, group: str | None) -> kinds.Events:
        """Return the events as they travel."""
        since = self.milestones
        if self.state is not None:
            since = self.state.milestones_of(since, self.sequence)
            self.sent_withdrawn = self.state.withdrawn if self.sent_withdrawn is None else self.sent_withdrawn
        return kinds.Events(self.topic, self.sequence, self.first, group, self.headers, self.key, self.payloads, since)

    def confirm(self, node: NodeId, first: int, last: int) -> bool:
        """Note that a node has the events of these numbers, if they are of this run; return whether it has all."""
        low, high = max(first - self.first, 0), min(last - self.first, len(self.payloads) - 1)
        confirmed = self.pending.get(node)
        if confirmed is None or low > high:
            return False
        bits = confirmed | ((1 << (high - low + 1)) - 1) << low
        if bits != self.everything:
            self.pending[node] = bits
            return False
        del self.pending[node]
        self.done.add(node)
        self.news.set()
        return True


@final
class Acknowledgements:
    """All publishes of this node that wait for acknowledgements.

    Args:
        roster: directory in which copies are found that could stand in for a bridge that is away.
        links: links to the subscribers.
    """

    def __init__(
        self,
        mesh: Mesh,
        interest: InterestTable,
        durable: DurableSubscribers,
        publishing: Publisher,
        roster: ServedClusters,
        links: SubscriberLinks,
    ) -> None:
        self._mesh = mesh
        self._interest = interest
        self._durable = durable
        self._publishing = publishing
        self._config = mesh.config
        self._roster = roster
        self.subscriber_links: Final = links
        self._number = 0
        self._waiting: dict[int, Unconfirmed] = {}
        self._owing: dict[NodeId, list[int]] = {}
        """Numbers of the runs that a node was sent and has not confirmed, in order, by node."""
        self._for_absent: dict[str, set[Unconfirmed]] = {}
        """Runs that wait for a durable subscriber to come, by topic."""
        self._changed: set[str] = set()
        """Patterns of durable subscriptions that have begun or ended since those were last looked for."""
        self._holders: dict[tuple[_Key, str], _Holder] = {}
        """Members by group and key, as long as events are with them."""
        self._looked: tuple[str, str | None, int] = ("", None, -1)
        self._found: Mapping[_Key, _Subscriber] = {}
        """Durable subscribers that were looked for last: of which topic and key, and the version of the routes."""
        self._delays: dict[NodeId, str] = {}
        """Reasons that nodes report for not confirming."""
        mesh.register(kinds.Confirmed, self._receive_confirmed)
        mesh.register(kinds.ConfirmDelayed, self._receive_delayed)

    @property
    def waiting(self) -> int:
        """Number of runs that wait to be confirmed."""
        return len(self._waiting)

    async def publish(
        self, topic: str, payload: object, *, key: str | None, timeout: float, headers: Mapping[str, str] | None
    ) -> None:
        """See ``Node.publish_confirmed``."""
        check_topic(topic)
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        check_key(key)
        run = Unconfirmed(topic, (body,), key, flat, wire.payload_size(body))
        await self.publish_run(run, timeout, nullcontext())

    async def publish_run(self, run: Unconfirmed, timeout: float, posting: AbstractContextManager[object]) -> None:
        """Publish events, within the block ``posting``, which no other task interrupts; return when they are confirmed.

        Raises what ``wait_route`` and ``wait`` do.
        """
        deadline = min(trio.current_time() + timeout, trio.current_effective_deadline())
        await self.wait_route(run.topic, run.key, deadline, timeout)
        try:
            with posting:
                subscribers = self.post(run)
            await self.wait(run, deadline, timeout, subscribers)
        finally:
            self.forget(run)

    async def wait_route(self, topic: str, key: str | None, deadline: float, timeout: float) -> None:
        """Wait until no receiver of an event with this key asks for a pause, and the links that move have room.

        Raises:
            RequestTimeout: the pause goes on beyond the deadline.
            NotSent, ConfigError, NotAllowed: see ``has_route``.
        """
        if self.has_route(topic, key):
            return
        publishing = self._publishing
        state = publishing.resolve(topic)
        if state.waits_for(key, confirm=True):
            with trio.move_on_at(deadline) as scope:
                await publishing.wait_released(topic, key, confirm=True)
            if scope.cancelled_caught:
                raise RequestTimeout(f"a subscriber of {topic!r} takes no more: it did not go on within {timeout:g} s")
        for link in state.every:
            while not link.has_room() and not link.is_stalled(STALLED) and trio.current_time() < deadline:
                with trio.move_on_at(min(deadline, trio.current_time() + STALLED)):
                    await link.wait_room()

    def has_route(self, topic: str, key: str | None) -> bool:
        """Return whether ``wait_route`` would wait for nothing.

        Raises:
            NotSent: there is no durable subscriber.
            ConfigError, NotAllowed: see ``Publisher.resolve``.
        """
        state = self._publishing.resolve(topic)
        if not state.had_durable:
            found = self._subscribers(topic, key)
            if not found:
                error = NotSent(
                    f"there is no durable subscriber of {topic!r}: start a bridge for it ('iris bridge --topic {topic} "
                    "--data DIR')"
                )
                if stored := self._interest.stored():
                    error.add_note(f"what is stored here: {', '.join(stored[:_NAMED])}")
                raise error
            # One that has a name is known for as long as it is to be waited for.
            state.had_durable = any(one.record is None for one in found.values())
        return not state.waits_for(key, confirm=True) and all(
            link.has_room() or link.is_stalled(STALLED) for link in state.every
        )

    @property
    def posted(self) -> PostedEvents:
        """See ``Publisher``."""
        return self._publishing.posted

    def lose_unsent(self, topic: str) -> None:
        """See ``Publisher``."""
        self._publishing.lose_unsent(topic)

    def post(self, run: Unconfirmed) -> Mapping[_Key, _Subscriber]:
        """Number events and send them out; they are waited for until ``forget``.

        Returns those that are to confirm them.
        """
        if self._changed:
            self.look_for_absent()  # what was published before goes first
        publishing = self._publishing
        count = len(run.payloads)
        state = publishing.resolve(run.topic)
        run.first, run.sequence = self._number + 1, publishing.number(state, count)
        run.state, run.milestones = state, state.milestones
        # Before the first post: each event carries the number from which on events may be sent again. Without it a
        # bridge would record a gap where a repeat is still to come.
        state.hold(run.sequence)
        self._number += count
        self._waiting[run.first] = run
        subscribers = self._subscribers(run.topic, run.key)
        groups = {name[1:] for name, subscriber in subscribers.items() if subscriber.group is not None}
        publishing.note_patient(state, run.topic, count)
        posted: set[NodeId] = set()
        for link in state.links:
            if publishing.post(link, run.message(None), run.size, count):
                posted.update(link.nodes if isinstance(link, Audience) else (link.node,))
        for name, subscriber in subscribers.items():
            if subscriber.group is None and not posted.isdisjoint(subscriber.members):
                run.asked[name] = subscriber.members[0]
                self._expect(run, subscriber.members[0])
        for node, group in publishing.choose(state, run.key):
            if group not in groups:
                publishing.post_to_one(state, node, run.message(group[1]), run.size, count)
        self._ask(run, subscribers)
        return subscribers

    def forget(self, run: Unconfirmed) -> None:
        """Stop waiting for these events."""
        self._note_absent(run, absent=False)
        if run.held is not None:
            for name, holder in run.held.items():
                self._let_go(name, run, holder)
        if self._waiting.pop(run.first, None) is not None:
            for node in run.pending:
                owing = self._owing[node]
                del owing[bisect.bisect_left(owing, run.first)]
                if not owing:
                    del self._owing[node]
            if run.state is not None:
                run.state.release(run.sequence)
                if not run.is_confirmed:
                    run.state.withdraw(run.sequence, run.sequence + len(run.payloads) - 1)
                elif run.sent_withdrawn:
                    run.state.withdrawn = tuple(each for each in run.state.withdrawn if each not in run.sent_withdrawn)

    def _expect(self, run: Unconfirmed, node: NodeId) -> None:
        """Wait for a node to confirm events that it was sent."""
        if node not in run.pending:
            bisect.insort(self._owing.setdefault(node, []), run.first)
        run.pending[node] = 0

    async def wait(
        self,
        run: Unconfirmed,
        deadline: float,
        timeout: float,
        subscribers: Mapping[_Key, _Subscriber] | None = None,
    ) -> None:
        """Wait until every durable subscriber has confirmed events that were posted; send them again where needed.

        Args:
            run: the events.
            deadline: time until which to wait.
            timeout: the seconds that it was given, for the error.
            subscribers: those that were asked a moment ago.

        Raises:
            RequestTimeout: not by the deadline.
        """
        while True:
            if subscribers is None:
                subscribers = self._subscribers(run.topic, run.key)
                self._ask(run, subscribers)
            outstanding = {name: one for name, one in subscribers.items() if name not in run.confirmed}
            # From here every durable subscriber has the events on disk. At least one confirmation is needed: nobody
            # outstanding may also mean that the only subscriber has just left.
            if not outstanding and run.confirmed:
                run.is_confirmed = True
                return
            # A subscriber whose link had no room is tried again soon; all else comes with news.
            stuck = any(one.members and run.asked.get(name) not in run.pending for name, one in outstanding.items())
            absent = [one for one in outstanding.values() if not one.members]
            pause = _RETRY if stuck else math.inf
            away = any(one.record is not None and one.record.site != self._mesh.tag.site for one in absent)
            if away:
                self.subscriber_links.begin(run.topic)
                pause = min(pause, _RESOLVE_REMOTE)
            with trio.move_on_at(min(deadline, trio.current_time() + pause)):
                await run.news.wait()
            if trio.current_time() >= deadline:
                raise RequestTimeout(self._overdue(run, list(outstanding.values()), timeout))
            run.news, subscribers = trio.Event(), None

    def _ask(self, run: Unconfirmed, subscribers: Mapping[_Key, _Subscriber]) -> None:
        """Send events to the durable subscribers that have neither confirmed them nor are about to."""
        run.confirmed |= {name for name, member in run.asked.items() if member in run.done}
        absent = any(not one.members and name not in run.confirmed for name, one in subscribers.items())
        self._note_absent(run, absent=absent or not subscribers)
        for name, (members, group, _) in subscribers.items():
            if name in run.confirmed:
                continue
            member = run.asked.get(name)
            if members and (member not in run.pending or member not in members):
                member = self._choose(members, name, run)
                run.attempts[name] += 1
                message = run.message(REPEATED if group is None else group)
                if self._publishing.post_to(member, message, run.size, len(run.payloads)):
                    run.asked[name] = member
                    self._expect(run, member)
                    if run.key is not None and group is not None:
                        self._hold(name, run, member)

    def _choose(self, members: list[NodeId], name: _Key, run: Unconfirmed) -> NodeId:
        """Return the member that is sent a run: in turns, or by key, and where there are others of that key already."""
        if run.key is None:
            return members[(run.first + run.attempts[name]) % len(members)]
        # Another member that comes and that the key belongs to could have a later event written before an earlier one.
        holder = self._holders.get((name, run.key))
        if holder is not None and holder.node in members:
            return holder.node
        return max(members, key=lambda member: stable_hash(f"{run.key}\0{member}"))

    def _hold(self, name: _Key, run: Unconfirmed, member: NodeId) -> None:
        """Note that a member has a run by its key."""
        assert run.key is not None
        holder = self._holders.get((name, run.key))
        if holder is None or holder.node != member:
            holder = self._holders[name, run.key] = _Holder(member)
        held = run.held = {} if run.held is None else run.held
        before = held.get(name)
        if before is not holder:
            holder.runs += 1
            held[name] = holder
            if before is not None:
                self._let_go(name, run, before)

    def _let_go(self, name: _Key, run: Unconfirmed, holder: _Holder) -> None:
        holder.runs -= 1
        if not holder.runs and run.key is not None and self._holders.get((name, run.key)) is holder:
            del self._holders[name, run.key]

    def _note_absent(self, run: Unconfirmed, *, absent: bool) -> None:
        runs = self._for_absent.get(run.topic, set())
        if absent:
            runs.add(run)
            self._for_absent[run.topic] = runs
        elif run in runs:
            runs.discard(run)
            if not runs:
                del self._for_absent[run.topic]

    def _subscribers(self, topic: str, key: str | None) -> Mapping[_Key, _Subscriber]:
        """Return the durable subscribers of a topic, those that are away included.

        In a group that divides events by shard, its members are those with the shard of this key and topic, if any.
        If its members do not count their shards alike, the most are right, and what belongs to a shard that nobody has
        waits for it.
        """
        looked = (topic, key, self._publishing.routes_version)
        if looked == self._looked:
            return self._found
        present: dict[_Key, _Subscriber] = {}
        named = self._durable.owed(topic)
        owned = {(record.id[0], record.group) for record in named if record.group is not None}
        shares: dict[_Key, int] = {}
        shared: dict[_Key, list[tuple[NodeId, tuple[int, ...]]]] = {}
        for node, terms in self._interest.match(topic):
            peer = self._mesh.peer(node)
            if terms.durable and peer is not None:
                place: _Key = ("node", node) if terms.group is None else ("group", *group_id(peer, terms.group, owned))
                one = present.get(place)
                if one is None:
                    one = present[place] = _Subscriber([], terms.group, None)
                if terms.share:
                    shared.setdefault(place, []).append((node, terms.share))
                    shares[place] = max(terms.share[0], shares.get(place, 0))
                else:
                    one.members.append(node)
        placed = [*zip(named, map(_place, named), strict=True)]
        for record, place in placed:
            if record.share:
                shares[place] = max(record.share[0], shares.get(place, 0))
        wanted = {place: self._publishing.shard_of(of, key, topic) for place, of in shares.items()}
        for place, nodes in shared.items():
            present[place].members.extend(node for node, share in nodes if wanted[place] in share[1:])
        found = dict(present)
        for _, place in placed:
            found.pop(place, None)
        for record, place in placed:
            one = present.get(place)
            members = [] if one is None else one.members
            if record.group is None:
                found["name", *record.id] = _Subscriber(members, None, record)
            elif not record.share or wanted[place] in record.share[1:]:
                found[place] = _Subscriber(members, record.group, record)
            else:
                found.setdefault(place, _Subscriber(members, record.group, None))
        self._looked, self._found = looked, found
        return found

    def _overdue(self, run: Unconfirmed, outstanding: Sequence[_Subscriber], timeout: float) -> str:
        """Return the reason why events were not confirmed in time."""
        if not outstanding:
            return f"the durable subscriber of {run.topic!r} is gone and has not come back within {timeout:g} s"
        nobody = [one.group for one in outstanding if one.record is None and not one.members]
        if nobody:
            return (
                f"no member of {nobody[0]!r} has the shard to which this event on {run.topic!r} belongs, and none has "
                f"come within {timeout:g} s: start the one that is to have it"
            )
        away = [one.record for one in outstanding if one.record is not None and not one.members]
        if away:
            who = " and ".join(f"{record.name!r} of cluster {record.id[0]!r}" for record in away[:3])
            more = f" and {len(away) - 3} more" if len(away) > 3 else ""
            return (
                f"durable subscriber {who}{more} of {run.topic!r} is away and has not come back within {timeout:g} s: "
                f"what is published meanwhile is not on its disk; {self._remedy(away[0])}"
            )
        return f"no durable subscriber of {run.topic!r} has confirmed within {timeout:g} s{self._reason(run)}"

    def _remedy(self, away: DurableRecord) -> str:
        return promotion_advice(self._roster, away.id[0], away.share[1:]) or (
            f"start it again, or if it is not to come back, 'iris bridge forget {away.name}' has publishers wait for "
            "it no more"
        )

    def _reason(self, run: Unconfirmed) -> str:
        """Return the reason that a node which has not confirmed has reported."""
        found = next((node for node in run.pending if node in self._delays), None)
        return "" if found is None else f"; node {found} says: {self._delays[found]}"

    def _receive_delayed(self, peer: Peer, message: kinds.ConfirmDelayed) -> None:
        if not message.reason.isprintable():
            raise RemoteProtocolError("a reason is text of one line")
        self._delays[peer.node] = message.reason

    def _receive_confirmed(self, peer: Peer, message: kinds.Confirmed) -> None:
        """Receive what a durable subscriber has on its disk: ``Unconfirmed.confirm`` wakes who is in ``wait``."""
        self._delays.pop(peer.node, None)
        for first, last in message.ranges:
            if not 0 <= last - first < _MAX_RANGE:
                raise RemoteProtocolError(f"a range of confirmations is ordered and below {_MAX_RANGE}")
            self._confirm(peer.node, first, last)

    def _confirm(self, node: NodeId, first: int, last: int) -> None:
        """Note what a node has confirmed.  Each run is looked at until it is confirmed, and never after that."""
        owing = self._owing.get(node, [])
        begin = max(0, bisect.bisect_right(owing, first) - 1)
        end = bisect.bisect_right(owing, last)
        # What is left are the first one and the last one, if the range has only a part of them.
        owing[begin:end] = [
            number for number in owing[begin:end] if not self._waiting[number].confirm(node, first, last)
        ]
        if not owing:
            self._owing.pop(node, None)

    def lost(self, node: NodeId) -> None:
        """Send again, to this node or another one, what it was sent and has not confirmed: it may be lost."""
        self._delays.pop(node, None)
        lost = [self._waiting[number] for number in self._owing.pop(node, ())]
        for run in lost:
            del run.pending[node]
        self._send_again(lost)

    def durable_changed(self, patterns: Iterable[str]) -> None:
        """Note durable subscriptions to patterns that have begun or ended, or became known or forgotten.

        Before the next event is published, and else when it suits, ``look_for_absent`` is to be called.
        """
        if self._for_absent:
            self._changed.update(patterns)

    def look_for_absent(self) -> None:
        """Send events that wait for durable subscribers to those that have come, on the topics that changed.

        Other events that wait, and other topics' events, are not looked at: there may be very many.
        """
        changed: Matcher[str] = Matcher()
        for pattern in self._changed:
            changed.add(pattern, pattern)
        self._changed.clear()
        runs = [run for topic, waiting in self._for_absent.items() if changed.match(topic) for run in waiting]
        self._send_again(sorted(runs, key=lambda run: run.first))

    def _send_again(self, runs: Iterable[Unconfirmed]) -> None:
        """Send events to their subscribers again, in the order in which they were published."""
        known: dict[tuple[str, str | None], Mapping[_Key, _Subscriber]] = {}
        for run in runs:
            subscribers = known.get((run.topic, run.key))
            if subscribers is None:
                subscribers = known[run.topic, run.key] = self._subscribers(run.topic, run.key)
            self._ask(run, subscribers)
            run.news.set()


def _place(record: DurableRecord) -> _Key:
    """Return the key of the node or group that stores for a durable subscriber."""
    return ("node", record.node) if record.group is None else ("group", record.id[0], record.group)
