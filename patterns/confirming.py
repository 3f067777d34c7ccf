"""``publish(confirm=True)``: returns once every durable subscriber has the event on disk.

A durable subscriber is a node, or a group of which any one member does.  An event that was not confirmed when a
member was lost goes to whoever stands in for it, under the same number, so that the subscribers can drop repeats.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.cluster.peer import Peer
from iris.kernel import kinds, wire
from iris.kernel.config import Config
from iris.kernel.errors import NotSent, RemoteProtocolError, RequestTimeout
from iris.kernel.ids import NodeId, check_key
from iris.patterns.beginnings import Milestones
from iris.patterns.copies import Audience
from iris.patterns.handlers import encoded
from iris.patterns.interest import InterestTable
from iris.patterns.publishing import STALLED, Publishing, envelope_size
from iris.patterns.shards import stable_hash

REPEATED: Final = ""
"""In the place of a group: for durable subscriptions only, because the others have had the event already."""

_MAX_RANGE: Final = 1_000_000
_RETRY: Final = 0.05
_MAX_REASON: Final = 256


@final
class Unconfirmed:
    """Consecutive events of one topic under way: which nodes have them and have not answered, and which have.

    Attributes:
        first: number of the first event among all that this node wants confirmed.
        size: bytes on the wire.
        pending: for each node, the events that it has confirmed, as bits.
    """

    __slots__ = (
        "asked",
        "attempts",
        "confirmed",
        "done",
        "everything",
        "first",
        "headers",
        "key",
        "milestones",
        "news",
        "payloads",
        "pending",
        "sequence",
        "size",
        "topic",
    )

    def __init__(
        self, topic: str, payloads: Sequence[wire.Payload], key: str | None, headers: wire.Headers, size: int
    ) -> None:
        self.topic = topic
        self.payloads = tuple(payloads)
        self.key = key
        self.headers = headers
        self.size = size + envelope_size(topic, headers, key)
        self.first = self.sequence = 0
        self.milestones: Milestones = ()
        self.everything = (1 << len(payloads)) - 1
        self.pending: dict[NodeId, int] = {}
        self.done: set[NodeId] = set()
        self.asked: dict[str, NodeId] = {}
        self.attempts: Counter[str] = Counter()
        self.confirmed: set[str] = set()
        self.news = trio.Event()

    def message(self, group: str | None) -> wire.Message:
        """Return the events as they travel."""
        return (
            kinds.EVENTS, self.topic, self.sequence, self.first, group, self.headers, self.key, self.payloads,
            self.milestones,
        )  # fmt: skip

    def confirm(self, node: NodeId, first: int, last: int) -> None:
        """Note that a node has the events of these numbers, as far as they are of this run."""
        bits = self.pending.get(node)
        low, high = max(first - self.first, 0), min(last - self.first, len(self.payloads) - 1)
        if bits is None or low > high:
            return
        bits |= ((1 << (high - low + 1)) - 1) << low
        if bits == self.everything:
            del self.pending[node]
            self.done.add(node)
            self.news.set()
        else:
            self.pending[node] = bits


@final
class Confirming:
    """All confirmed publishes of this node."""

    def __init__(self, mesh: Mesh, interest: InterestTable, publishing: Publishing, config: Config) -> None:
        self._mesh = mesh
        self._interest = interest
        self._publishing = publishing
        self._config = config
        self._number = 0
        self._waiting: dict[int, Unconfirmed] = {}
        self._firsts: list[int] = []
        """The keys of ``_waiting``: numbers only grow, so they are in order."""
        self._interest_changed = trio.lowlevel.ParkingLot()
        self._delays: dict[NodeId, str] = {}
        """What nodes say of why they do not confirm."""
        mesh.on(kinds.CONFIRMED, 1, self._receive_confirmed)
        mesh.on(kinds.CONFIRM_DELAYED, 1, self._receive_delayed)

    async def publish(
        self, topic: str, payload: object, *, key: str | None, timeout: float, headers: Mapping[str, str] | None
    ) -> None:
        """See ``Node.publish`` with ``confirm=True``."""
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        check_key(key)
        deadline = min(trio.current_time() + timeout, trio.current_effective_deadline())
        await self.wait_way(topic, deadline, timeout)
        run = Unconfirmed(topic, (body,), key, flat, wire.payload_size(body))
        try:
            self.post(run)
            await self.wait(run, deadline, timeout)
        finally:
            self.forget(run)

    async def wait_way(self, topic: str, deadline: float, timeout: float) -> None:
        """Wait until no subscriber of a topic asks for a pause, and the links that move have room.

        Raises:
            NotSent: there is no durable subscriber.
            RequestTimeout: the pause goes on beyond the deadline.
            ConfigError, NotAllowed: see ``Publishing.look_up``.
        """
        publishing = self._publishing
        state = publishing.look_up(topic)
        if not state.had_durable:
            if not self._subscribers(topic, None):
                raise NotSent(f"there is no durable subscriber of {topic!r}: start a bridge for it")
            state.had_durable = True
        if state.held:
            with trio.move_on_at(deadline) as scope:
                await publishing.wait_released(topic)
            if scope.cancelled_caught:
                raise RequestTimeout(f"a subscriber of {topic!r} takes no more: it did not go on within {timeout:g} s")
        for link in state.every:
            while not link.has_room() and not link.is_stalled(STALLED) and trio.current_time() < deadline:
                with trio.move_on_at(min(deadline, trio.current_time() + STALLED)):
                    await link.wait_room()

    def post(self, run: Unconfirmed) -> None:
        """Number events and send them out; they are waited for until ``forget``."""
        publishing = self._publishing
        count = len(run.payloads)
        state = publishing.look_up(run.topic)
        run.first, run.sequence = self._number + 1, publishing.number(state, count)
        run.milestones = state.milestones
        self._number += count
        self._waiting[run.first] = run
        self._firsts.append(run.first)
        subscribers = self._subscribers(run.topic, run.key)
        groups = {name for name, members in subscribers.items() if name not in members}
        for link in state.links:
            if publishing.post(link, run.message(None), run.size, count):
                for node in link.nodes if isinstance(link, Audience) else (link.node,):
                    if node in subscribers:
                        run.asked[node] = node
                        run.pending[node] = 0
        for node, terms in state.choose(run.key, run.first, publishing.is_fit):
            if terms.group not in groups:
                publishing.post_to(node, run.message(terms.group), run.size, count)
        self._ask(run, subscribers)

    def forget(self, run: Unconfirmed) -> None:
        """Wait for these events no more."""
        if self._waiting.pop(run.first, None) is not None:
            del self._firsts[bisect.bisect_left(self._firsts, run.first)]

    async def wait(self, run: Unconfirmed, deadline: float, timeout: float) -> None:
        """Wait until every durable subscriber has confirmed events that were posted; send them again where needed.

        Raises:
            RequestTimeout: not by the deadline.
        """
        topic = run.topic
        while True:
            subscribers = self._subscribers(topic, run.key)
            self._ask(run, subscribers)
            outstanding = subscribers.keys() - run.confirmed
            if not outstanding and run.confirmed:
                return
            # A subscriber whose link had no room is tried again soon; all else comes with news.
            stuck = any(run.asked.get(name) not in run.pending for name in outstanding)
            with trio.move_on_at(min(deadline, trio.current_time() + _RETRY) if stuck else deadline):
                if outstanding:
                    await run.news.wait()
                else:
                    await self._interest_changed.park()
            if trio.current_time() >= deadline:
                raise RequestTimeout(
                    f"no durable subscriber of {topic!r} has confirmed within {timeout:g} s{self._reason(run)}"
                    if outstanding
                    else f"the durable subscriber of {topic!r} is gone and has not come back within {timeout:g} s"
                )
            run.news = trio.Event()

    def _ask(self, run: Unconfirmed, subscribers: Mapping[str, list[NodeId]]) -> None:
        """Send events to the durable subscribers that have neither confirmed them nor are about to."""
        run.confirmed |= {name for name, member in run.asked.items() if member in run.done}
        for name in subscribers.keys() - run.confirmed:
            members = subscribers[name]
            member = run.asked.get(name)
            if members and (member not in run.pending or member not in members):
                member = _choose(members, run.key, run.first + run.attempts[name])
                run.attempts[name] += 1
                message = run.message(REPEATED if member == name else name)
                if self._publishing.post_to(member, message, run.size, len(run.payloads)):
                    run.asked[name] = member
                    run.pending[member] = 0

    def _subscribers(self, topic: str, key: str | None) -> dict[str, list[NodeId]]:
        """Return the durable subscribers: the name of each group, or a node's own id, with the nodes that may do.

        In a group that divides events by shard that is who has the shard of this key and topic, or nobody.
        """
        found: dict[str, list[NodeId]] = {}
        for node, terms in self._interest.match(topic):
            if terms.durable and self._mesh.peer(node) is not None:
                members = found.setdefault(terms.group or node, [])
                if not terms.share or self._publishing.shard_of(terms.share[0], key, topic) in terms.share[1:]:
                    members.append(node)
        return found

    def _reason(self, run: Unconfirmed) -> str:
        """Return what those who have not confirmed say of it."""
        found = next((node for node in run.pending if node in self._delays), None)
        return "" if found is None else f"; node {found} says: {self._delays[found]}"

    def _receive_delayed(self, peer: Peer, message: wire.Message) -> None:
        reason = message[1]
        if type(reason) is not str or len(reason) > _MAX_REASON or not reason.isprintable():
            raise RemoteProtocolError("a reason is text of one line")
        self._delays[peer.node] = reason

    def _receive_confirmed(self, peer: Peer, message: wire.Message) -> None:
        self._delays.pop(peer.node, None)
        ranges = wire.integers_untrusted(message[1])
        if len(ranges) % 2:
            raise RemoteProtocolError("confirmations are pairs of numbers")
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            if not 0 <= last - first < _MAX_RANGE:
                raise RemoteProtocolError(f"a range of confirmations is ordered and below {_MAX_RANGE}")
            at = max(0, bisect.bisect_right(self._firsts, first) - 1)
            while at < len(self._firsts) and self._firsts[at] <= last:
                self._waiting[self._firsts[at]].confirm(peer.node, first, last)
                at += 1

    def lost(self, node: NodeId) -> None:
        """What this node was sent and has not confirmed may be lost: it goes out again, to it or to another."""
        self._delays.pop(node, None)
        for waiting in self._waiting.values():
            if node in waiting.pending:
                del waiting.pending[node]
                waiting.news.set()

    def interest_changed(self) -> None:
        """Somebody subscribes who did not before."""
        self._interest_changed.unpark_all()


def _choose(members: list[NodeId], key: str | None, number: int) -> NodeId:
    if key is None:
        return members[number % len(members)]
    return max(members, key=lambda member: stable_hash(f"{key}\0{member}"))
