"""``publish(confirm=True)``: returns once every durable subscriber has the event on disk.

A durable subscriber is a node, or a group of which any one member does.  An event that was not confirmed when a
member was lost goes to whoever stands in for it, under the same number, so that the subscribers can drop repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.cluster.peer import Peer
from iris.kernel import kinds, wire
from iris.kernel.config import Config
from iris.kernel.errors import NotSent, RemoteProtocolError, RequestTimeout
from iris.kernel.ids import NodeId, check_key
from iris.patterns.interest import InterestTable
from iris.patterns.publishing import Publishing, envelope_size, stable_hash

REPEATED: Final = ""
"""In the place of a group: for durable subscriptions only, because the others have had the event already."""

_MAX_RANGE: Final = 1_000_000
_RETRY: Final = 0.05


@final
class _Waiting:
    """One confirmed publish under way: which nodes have it and have not answered, and which have."""

    __slots__ = ("done", "news", "pending")

    def __init__(self) -> None:
        self.pending: set[NodeId] = set()
        self.done: set[NodeId] = set()
        self.news = trio.Event()


@final
class Confirming:
    """All confirmed publishes of this node."""

    def __init__(self, mesh: Mesh, interest: InterestTable, publishing: Publishing, config: Config) -> None:
        self._mesh = mesh
        self._interest = interest
        self._publishing = publishing
        self._config = config
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._had_durable: set[str] = set()
        self._interest_changed = trio.lowlevel.ParkingLot()
        mesh.on(kinds.CONFIRMED, 1, self._receive_confirmed)

    async def publish(
        self, topic: str, payload: object, *, key: str | None, timeout: float, headers: Mapping[str, str] | None
    ) -> None:
        """See ``Node.publish`` with ``confirm=True``."""
        encoded = wire.encode_payload(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        check_key(key)
        publishing = self._publishing
        state = publishing.look_up(topic)
        if not self._subscribers(topic) and topic not in self._had_durable:
            raise NotSent(f"there is no durable subscriber of {topic!r}: start a bridge for it")
        deadline = min(trio.current_time() + timeout, trio.current_effective_deadline())
        if state.held:
            with trio.move_on_at(deadline) as scope:
                await publishing.wait_released(topic)
            if scope.cancelled_caught:
                raise RequestTimeout(f"a subscriber of {topic!r} takes no more: it did not go on within {timeout:g} s")
            state = publishing.look_up(topic)
        publishing.interrupt()
        publishing.published += 1
        self._number += 1
        state.sequence += 1
        number, sequence = self._number, state.sequence
        size = wire.payload_size(encoded) + envelope_size(topic, flat, key)

        def run(group: str | None) -> wire.Message:
            return (kinds.EVENTS, topic, sequence, number, group, flat, key, (encoded,))

        confirmed: set[str] = set()
        asked: dict[str, NodeId] = {}
        waiting = self._waiting[number] = _Waiting()
        attempts: Counter[str] = Counter()
        try:
            subscribers = self._subscribers(topic)
            groups = {name for name, members in subscribers.items() if members[0] != name}
            for link in state.links:
                if publishing.post(link, run(None), size) is not None and link.node in subscribers:
                    asked[link.node] = link.node
                    waiting.pending.add(link.node)
            for node, terms in state.choose(key, number):
                if terms.group not in groups:
                    publishing.post_to(node, run(terms.group), size)
            while True:
                subscribers = self._subscribers(topic)
                for name in subscribers.keys() - confirmed:
                    members = subscribers[name]
                    member = asked.get(name)
                    if member not in waiting.pending or member not in members:
                        member = _choose(members, key, number + attempts[name])
                        attempts[name] += 1
                        if publishing.post_to(member, run(REPEATED if member == name else name), size):
                            asked[name] = member
                            waiting.pending.add(member)
                outstanding = subscribers.keys() - confirmed
                if not outstanding and confirmed:
                    return
                # A subscriber whose link had no room is tried again soon; all else comes with news.
                stuck = any(asked.get(name) not in waiting.pending for name in outstanding)
                with trio.move_on_at(min(deadline, trio.current_time() + _RETRY) if stuck else deadline):
                    if outstanding:
                        await waiting.news.wait()
                    else:
                        await self._interest_changed.park()
                if trio.current_time() >= deadline:
                    raise RequestTimeout(
                        f"no durable subscriber of {topic!r} has confirmed within {timeout:g} s"
                        if outstanding
                        else f"the durable subscriber of {topic!r} is gone and has not come back within {timeout:g} s"
                    )
                waiting.news = trio.Event()
                confirmed |= {name for name, member in asked.items() if member in waiting.done}
        finally:
            del self._waiting[number]

    def _subscribers(self, topic: str) -> dict[str, list[NodeId]]:
        """Return the durable subscribers: the name of each group, or a node's own id, with the nodes that may do."""
        found: dict[str, list[NodeId]] = {}
        for node, terms in self._interest.match(topic):
            if terms.durable and self._mesh.peer(node) is not None:
                found.setdefault(terms.group or node, []).append(node)
        if found:
            self._had_durable.add(topic)
        return found

    def _receive_confirmed(self, peer: Peer, message: wire.Message) -> None:
        ranges = wire.integers_untrusted(message[1])
        if len(ranges) % 2:
            raise RemoteProtocolError("confirmations are pairs of numbers")
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            if not 0 <= last - first < _MAX_RANGE:
                raise RemoteProtocolError(f"a range of confirmations is ordered and below {_MAX_RANGE}")
            for number in range(first, last + 1):
                waiting = self._waiting.get(number)
                if waiting is not None and peer.node in waiting.pending:
                    waiting.pending.discard(peer.node)
                    waiting.done.add(peer.node)
                    waiting.news.set()

    def lost(self, node: NodeId) -> None:
        """What this node was sent and has not confirmed may be lost: it goes out again, to it or to another."""
        for waiting in self._waiting.values():
            if node in waiting.pending:
                waiting.pending.discard(node)
                waiting.news.set()

    def interest_changed(self) -> None:
        """Somebody subscribes who did not before."""
        self._interest_changed.unpark_all()


def _choose(members: list[NodeId], key: str | None, number: int) -> NodeId:
    if key is None:
        return members[number % len(members)]
    return max(members, key=lambda member: stable_hash(f"{key}\0{member}"))
