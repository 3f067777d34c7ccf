"""Retained values: ``Node.retain`` keeps the last event of a topic for subscribers that come later.

There is no broker to keep the value, so it lives as long as its publisher.  If several publishers retain one topic,
each keeps its own value.  A value is sent when a node's interest in its topic becomes known, ahead of all that is
published after that.  So the value has arrived when ``subscribe`` returns.

At most once: with the value goes the number of the last event of its topic.  A subscription that has seen that
number drops the value; one that has not keeps the value and goes on from there (``Subscription._deliver_retained``).

The values are bounded.  They lie in a tree of topic tokens, so a pattern finds its topics without a look at the rest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.wire import Headers, Payload, kinds
from iris.patterns.pubsub.interest import (
    InterestTable,
    Milestones,
    Terms,
    check_topic,
    is_pattern,
    is_topic,
    milestones_untrusted,
)
from iris.patterns.pubsub.subscribe import MAX_EXPIRES, with_expiry
from iris.patterns.pubsub.tree import Route


class RetainedEvent(NamedTuple):
    """The retained value of a topic.

    Attributes:
        sequence: number of the event among those that this node has published on the topic.
        size: bytes on the wire, about.
        milestones: milestone of the topic's start.
        deadline: time at which it is kept no longer; inf: it is kept until another one comes.
    """

    topic: str
    sequence: int
    headers: Headers
    key: str | None
    payload: Payload
    size: int
    milestones: Milestones = ()
    deadline: float = math.inf


@final
class _RetainedBranch:
    __slots__ = ("children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _RetainedBranch] = {}
        self.here: RetainedEvent | None = None


@final
class RetainedEvents:
    """The retained value of each topic.

    Args:
        max_events: topics that have one.
        max_bytes: bytes of all of them together.
    """

    __slots__ = ("_bytes", "_count", "_deadlines", "_max_bytes", "_max_events", "_root", "due")

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events: Final = max_events
        self._max_bytes: Final = max_bytes
        self._root = _RetainedBranch()
        self._count = 0
        self._bytes = 0
        self._deadlines: dict[str, float] = {}
        """Times at which values expire, by topic, of those that do."""
        self.due = math.inf
        """Time before which none of them is over."""

    def __len__(self) -> int:
        """Return how many topics have a value."""
        return self._count

    @property
    def bytes(self) -> int:
        """Size of all values, in bytes."""
        return self._bytes

    def get(self, topic: str) -> RetainedEvent | None:
        """Return the value of a topic."""
        branch: _RetainedBranch | None = self._root
        for token in topic.split("."):
            branch = None if branch is None else branch.children.get(token)
        return None if branch is None else branch.here

    def expire(self, now: float) -> None:
        """Drop the values whose time is over."""
        if now < self.due:
            return
        for topic in [topic for topic, deadline in self._deadlines.items() if deadline <= now]:
            self.forget(topic)
        self.due = min(self._deadlines.values(), default=math.inf)

    def check(self, topic: str, size: int, now: float = -math.inf) -> None:
        """Raise NotSent unless there is room for a value of ``size`` bytes in the place of the present one."""
        self.expire(now)
        present = self.get(topic)
        events = self._count + (present is None)
        held = self._bytes + size - (0 if present is None else present.size)
        if events > self._max_events or held > self._max_bytes:
            raise NotSent(
                f"the last value of {topic!r} cannot be retained: this node retains {self._count} values with "
                f"{self._bytes} bytes, the limits are {self._max_events} and {self._max_bytes}"
            )

    def keep(self, event: RetainedEvent) -> None:
        """Put a value in the place of the present one, room or not."""
        branch = self._root
        for token in event.topic.split("."):
            following = branch.children.get(token)
            if following is None:
                following = branch.children[token] = _RetainedBranch()
            branch = following
        if branch.here is None:
            self._count += 1
        else:
            self._bytes -= branch.here.size
        branch.here = event
        self._bytes += event.size
        if event.deadline < math.inf:
            self._deadlines[event.topic] = event.deadline
            self.due = min(self.due, event.deadline)
        else:
            self._deadlines.pop(event.topic, None)

    def forget(self, topic: str) -> bool:
        """Drop the value of a topic; return whether there was one, or raise ConfigError if it is no topic."""
        tokens = check_topic(topic).split(".")
        path = [self._root]
        for token in tokens:
            following = path[-1].children.get(token)
            if following is None:
                return False
            path.append(following)
        event, path[-1].here = path[-1].here, None
        if event is None:
            return False
        self._count -= 1
        self._bytes -= event.size
        self._deadlines.pop(topic, None)
        for index in range(len(tokens), 0, -1):
            if path[index].children or path[index].here is not None:
                break
            del path[index - 1].children[tokens[index - 1]]
        return True

    def match(self, pattern: str) -> list[RetainedEvent]:
        """Return the values of all topics that a valid pattern matches."""
        return self.search(pattern)[0]

    def search(self, pattern: str) -> tuple[list[RetainedEvent], int]:
        """Return the values of all topics that a valid pattern matches, and the number of places searched for them."""
        tokens = pattern.split(".")
        rest = tokens[-1] == ">"
        branches = [self._root]
        looks = 1
        for part in tokens[:-1] if rest else tokens:
            looks += len(branches)
            if part == "*":
                branches = [child for branch in branches for child in branch.children.values()]
            else:
                branches = [branch.children[part] for branch in branches if part in branch.children]
        if rest:
            events = [event for branch in branches for child in branch.children.values() for event in _below(child)]
        else:
            events = [branch.here for branch in branches if branch.here is not None]
        return events, looks + len(branches) + len(events)


def _below(branch: _RetainedBranch) -> Iterator[RetainedEvent]:
    """Yield the value here and all further down; a topic has at most 32 tokens, so the recursion is not deep."""
    if branch.here is not None:
        yield branch.here
    for child in branch.children.values():
        yield from _below(child)


_AT_ONCE: Final = 131_072
_RATE: Final = 65_536.0
"""Places of the tree of topics that are looked at for one node at once, and each second in the long run: 30 ms of work,
and 15 ms in a second.  What it asks for beyond that it gets later, all together."""

_VALUE: Final = 16
"""Places that a value costs which is sent: 5 us here, and as much where it arrives."""

_LATER: Final = 0.1
"""Seconds between looks whether somebody may have what it has asked for."""


@final
class _Asked:
    """Retained values that one node has asked for.

    Attributes:
        looks: tokens for further looks at the tree on its behalf.
        frame: number of the last frame in which it has asked.
        patterns: patterns that it has asked for in that frame.
        topics: topics of which it was sent the values for that frame: it has all its subscriptions of that frame when
            they come, so once is enough.
    """

    __slots__ = ("frame", "looks", "patterns", "topics")

    def __init__(self, looks: TokenBucket) -> None:
        self.looks: Final = looks
        self.frame = -1
        self.patterns: set[str] = set()
        self.topics: set[str] = set()


@final
class _Late:
    """A deferred delivery: the retained values of all that one node subscribes to.

    Attributes:
        rest: patterns that are still to be looked for.
        sent: topics of which the values were sent for the others.
        again: True if all of them are to be looked for once more, because it has asked since.
    """

    __slots__ = ("again", "rest", "sent")

    def __init__(self) -> None:
        self.rest: list[str] = []
        self.sent: set[str] = set()
        self.again = True


class RetainedRoutes(Protocol):
    """Port of retained values to the ``Publisher`` that sends them.  No method blocks."""

    def last_number(self, topic: str) -> int:
        """Return the number of the last event of a topic; 0 if there was none, or the topic is forgotten."""
        ...

    def route_to(self, peer: Peer) -> Route:
        """Return the route by which a node gets its events."""
        ...

    def post_apart(self, route: Route, message: kinds.Retained, size: int) -> bool:
        """Post a value, counted; return whether the route accepted it."""
        ...


@final
class RetainedSender:
    """This node's own retained values: keeps them, sends them to new subscribers.

    Args:
        routes: publisher that sends them.
    """

    def __init__(self, mesh: Mesh, interest: InterestTable, routes: RetainedRoutes) -> None:
        self.events: Final = RetainedEvents(mesh.config.retained_events, mesh.config.retained_bytes)
        self._mesh = mesh
        self._interest = interest
        self._routes = routes
        self._asked: dict[NodeId, _Asked] = {}
        self._late: dict[NodeId, _Late] = {}
        self._news = Wakeup()
        mesh.register(kinds.RetainedWanted, self._receive_wanted)

    def keep(self, event: RetainedEvent) -> None:
        """Put a value in the place of the present one, room or not."""
        self.events.keep(event)
        if event.deadline < math.inf:
            self._news.wake()

    # -- those who come later -------------------------------------------------------------------------------

    def interest_added(self, peer: Peer, added: Iterable[Terms]) -> None:
        """Send a node the values of its new subscriptions."""
        if not len(self.events):
            return
        for terms in added:
            if _is_given(terms):
                self._send(peer, terms.pattern)

    def frames_lost(self, peer: Peer) -> None:
        """Send all values again, as some in flight may be lost: subscribers that have them drop the repeat."""
        late = self._late.get(peer.node)
        if late is not None:
            late.again = True
        elif len(self.events):
            self.interest_added(peer, self._interest.terms_of(peer.node))

    def _receive_wanted(self, peer: Peer, wanted: kinds.RetainedWanted) -> None:
        pattern = wanted.pattern
        if not is_pattern(pattern):
            raise RemoteProtocolError("last values are asked for by a pattern")
        if peer.may_receive(pattern):
            self._send(peer, pattern)

    def peer_gone(self, node: NodeId) -> None:
        """Forget a node that is given up."""
        self._asked.pop(node, None)
        self._late.pop(node, None)

    async def run(self) -> None:
        """Send values to nodes that have asked for too much at once, drop what expires; run it in exactly one task."""
        while True:
            with trio.move_on_at(self.events.due):
                await self._news.wait()
            self.events.expire(trio.current_time())
            while self._late:
                await trio.sleep(_LATER)
                for node in list(self._late):
                    self._send_late(node)
                    await trio.lowlevel.checkpoint()

    @property
    def behind(self) -> int:
        """Number of nodes that asked for last values so often that these wait for their turn."""
        return len(self._late)

    def _send_late(self, node: NodeId) -> None:
        """Go on sending a node the values of all that it subscribes to, as many as it may have by now."""
        late, asked, peer = self._late.get(node), self._asked.get(node), self._mesh.peers.get(node)
        if late is None or asked is None or peer is None:
            self._late.pop(node, None)
            return
        while asked.looks.spend(trio.current_time()):
            if late.rest:
                pattern = late.rest.pop()
                if peer.may_receive(pattern):
                    self._post(peer, pattern, late.sent, asked.looks)
            elif late.again:
                late.again, late.sent = False, set()
                late.rest = [terms.pattern for terms in self._interest.terms_of(node) if _is_given(terms)]
            else:
                del self._late[node]
                return

    def _sent_to(self, peer: Peer, pattern: str) -> set[str] | None:
        """Return the topics of which a node was sent the values in answer to the present frame.

        None if it gets none now: it has asked for this pattern already, or for too much of late.
        """
        if peer is self._mesh.own:
            return set()
        asked, now = self._asked.get(peer.node), trio.current_time()
        if asked is None:
            asked = self._asked[peer.node] = _Asked(TokenBucket(_AT_ONCE + _VALUE * len(self.events), _RATE, now))
        work = self._mesh.work
        if asked.frame != work.frame or not work.is_frame:
            asked.frame, asked.patterns, asked.topics = work.frame, set(), set()
        if pattern in asked.patterns:
            return None
        asked.patterns.add(pattern)
        late = self._late.get(peer.node)
        if late is not None:
            late.again = True
            return None
        if not asked.looks.spend(now):
            self._late[peer.node] = _Late()
            self._news.wake()
            return None
        return asked.topics

    def _send(self, peer: Peer, pattern: str) -> None:
        sent = self._sent_to(peer, pattern)
        if sent is not None:
            self._post(peer, pattern, sent, None if peer is self._mesh.own else self._asked[peer.node].looks)

    def _post(self, peer: Peer, pattern: str, sent: set[str], tokens: TokenBucket | None) -> None:
        now = trio.current_time()
        self.events.expire(now)
        events, looks = self.events.search(pattern)
        before = len(sent)
        for event in events:
            if event.topic not in sent:
                sent.add(event.topic)
                last = max(event.sequence, self._routes.last_number(event.topic))
                headers = event.headers if event.deadline == math.inf else _headers_at(event, now)
                message = kinds.Retained(
                    event.topic, last, event.sequence, headers, event.key, event.payload, event.milestones
                )
                # The path of the events: the value must neither overtake those before it nor arrive after later ones.
                route = self._routes.route_to(peer)
                self._routes.post_apart(route, message, event.size)
        if tokens is not None:
            tokens.owe(looks + _VALUE * (len(sent) - before))

    def ask(self, pattern: str) -> None:
        """Ask every node for its values: its interest is known there already, and so nothing will come by itself."""
        for peer in (self._mesh.own, *self._mesh.peers.values()):
            if peer.other_realm or peer.client:
                continue
            try:
                peer.link.post(kinds.RetainedWanted(pattern), len(pattern), CONTROL_RESERVE)
            except NotSent:
                self._mesh.refusals["interest without room on the link"] += 1


def _is_given(terms: Terms) -> bool:
    """Return whether subscriptions with these terms get last values."""
    return terms.group is None and not terms.durable


def _headers_at(event: RetainedEvent, now: float) -> Headers:
    """Return the headers of a value that expires, with the seconds that it still has."""
    left = min(event.deadline - now, MAX_EXPIRES)
    return wire.encode_headers(with_expiry(wire.decode_headers_untrusted(event.headers), left), sys.maxsize)


def envelope_size(topic: str, headers: wire.Headers, key: str | None) -> int:
    """Return the size of an event besides its payload, in bytes."""
    return 3 * len(topic) + wire.headers_size(headers) + (0 if key is None else 3 * len(key))


def check_retained_untrusted(message: kinds.Retained) -> int:
    """Check a last value from a peer; return the bytes of its payload.

    Raises:
        RemoteProtocolError: its topic is none, or its numbers do not fit each other.
    """
    if not is_topic(message.topic) or message.sequence > message.last:
        raise RemoteProtocolError("a last value has a topic, and a number up to its last one")
    milestones_untrusted(message.milestones, message.sequence)
    return wire.payload_size(message.payload)
