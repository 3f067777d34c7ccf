"""Announcements: what nodes of a site know of who publishes on which roots, and who of them wants to hear it.

Every node keeps the announced roots of all publishers.  What is news to it, it passes on to all that it is linked with;
each peer that is linked anew compares.  So what one node knows has left for all its neighbours, and a publisher's new
root is known to all nodes when an echo (``iris.patterns.pubsub.echo``) has come back.  A subscriber keeps links to the
publishers that may publish what it subscribes to.

Nodes of 0.9 know nothing of this, and are linked with everybody themselves.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.wire import Message, kinds, node_of
from iris.patterns.pubsub.echo import Answer, Ask, Echo, Effect, Wave
from iris.patterns.pubsub.interest import InterestRetry, OwnInterest
from iris.patterns.pubsub.roots import Roots, digest_of, is_root

_TICK: Final = 0.05
"""Seconds between looks whose time is over, while something was asked of late."""

_LONGEST: Final = 2.0
"""Seconds that a neighbour may have this node wait for others."""

_AT_ONCE: Final = 1024
_RATE: Final = 32.0
"""Questions of one neighbour that are asked on at once, and each second in the long run: each costs every node of the
site 0.4 ms."""

_OF_PUBLISHER: Final = 128
_OF_PUBLISHER_RATE: Final = 2.0
"""Likewise of one publisher, by whatever neighbours they come: it has 64 roots, and asks twice for each at most."""

_OF_STRANGERS: Final = 64
"""Likewise of all publishers together that one neighbour has told of and of which no record has come."""

_STRANGERS: Final = 256
"""Publishers that no record is known of, of those that one neighbour told of first: they may be newcomers.  The roots
of each take 1 KiB at most."""

_NEWCOMER: Final = 0.5
"""Seconds within which the record of a newcomer comes, which may publish before."""

_UNKNOWN: Final = 60.0
"""Seconds after which one of whom no record has come is none."""

_PATIENCE: Final = 1.0
_PATIENCE_RATE: Final = 1 / 600
"""Seconds that this node waits in vain for nodes without a record that one neighbour has named, and what it has again
each second.  It waits while it has all of them: once for who makes up others."""

_SWEEP: Final = 1.0
"""Seconds between looks for publishers to forget."""

_NO_ROOM: Final = "announcement without room on the link"


class AnnouncingMembers(Protocol):
    """Members of this site, as ``iris.cluster.membership.Membership`` knows them.  Plain calls; none blocks."""

    def others(self) -> Sequence[NodeId]:
        """Return the other members that are held alive."""
        ...

    def knows(self, node: NodeId) -> bool:
        """Return whether a node is held alive."""
        ...

    def is_known(self, node: NodeId) -> bool:
        """Return whether there is a record of a node, alive or dead."""
        ...

    def announces(self, node: NodeId) -> bool:
        """Return whether a member knows of announcements, by its own word."""
        ...

    def keep(self, node: NodeId) -> None:
        """Keep a link to a node from now on, whenever it is alive; begin with it."""
        ...

    def release(self, node: NodeId) -> None:
        """Keep the link no more."""
        ...

    def on_placed(self, listener: Callable[[NodeId], None]) -> None:
        """Call ``listener`` with each node of which a record has come."""
        ...


@final
class _Publisher:
    """What is known of a publisher.

    Attributes:
        roots: what it has announced.
        teller: neighbour that told of it first.  None: there is a record of it.
        since: time of that.
        questions: its questions that are passed on.
        followed: a link to it is kept, for this node subscribes to what it may publish.
        away: it is not held alive: when it is, peers that were linked meanwhile are told of it.
    """

    __slots__ = ("away", "followed", "questions", "roots", "since", "teller")

    def __init__(self, node: NodeId, teller: NodeId | None, now: float) -> None:
        self.roots = Roots(node)
        self.teller = teller
        self.since = now
        self.questions = TokenBucket(_OF_PUBLISHER, _OF_PUBLISHER_RATE, now)
        self.followed = False
        self.away = False


@final
class _Neighbour:
    """What is known of a node that is linked, or was: its limits last until there is nothing left to count.

    Attributes:
        compared: it was sent the hash of what is known here.
        lacks: its link did not take something.
        speaks: it has sent such a hash, and so knows of announcements whatever its record says.
        strangers: publishers without a record that it told of first.
        refused: there was no room for one more of them: when a record comes, it is compared with again.
        work: what it may have this node do.
        about_strangers: questions of those publishers that are passed on.
        patience: seconds that this node may wait in vain for nodes that it has named.
    """

    __slots__ = ("about_strangers", "compared", "lacks", "patience", "refused", "speaks", "strangers", "work")

    def __init__(self, now: float) -> None:
        self.compared = self.lacks = self.refused = self.speaks = False
        self.strangers = 0
        self.work = TokenBucket(_AT_ONCE, _RATE, now)
        self.about_strangers = TokenBucket(_OF_STRANGERS, _OF_PUBLISHER_RATE, now)
        self.patience = TokenBucket(_PATIENCE, _PATIENCE_RATE, now)

    def owes(self, now: float) -> bool:
        """Return whether there is something to count."""
        return self.strangers > 0 or not (
            self.work.level(now) >= _AT_ONCE
            and self.about_strangers.level(now) >= _OF_STRANGERS
            and self.patience.level(now) >= _PATIENCE
        )


@final
class Announcements:
    """The announcements that one node makes, passes on and follows.

    Args:
        members: members of this site.
        own: what this node subscribes to.
        retry: notes peers without room on their links; ``compare`` is to be called again for them.
    """

    def __init__(self, mesh: Mesh, members: AnnouncingMembers, own: OwnInterest, retry: InterestRetry) -> None:
        self._mesh = mesh
        self._members = members
        self._own = own
        self._retry = retry
        self._publishers: dict[NodeId, _Publisher] = {}
        """Those that are known, this node among them."""
        self._neighbours: dict[NodeId, _Neighbour] = {}
        self._echo = Echo(mesh.node)
        self._news = Wakeup()
        self._begun = False
        self._record_came = False
        """Those that told of publishers without a record are to be compared with again."""
        self._swept = -math.inf
        self._answered = trio.lowlevel.ParkingLot()
        mesh.register(kinds.Announce, self._receive)
        mesh.register(kinds.AnnounceReached, self._receive_reached)
        mesh.register(kinds.Announced, self._receive_announced)
        members.on_placed(self._placed)

    def __repr__(self) -> str:
        return f"<Announcements: {len(self._publishers)} publishers, {len(self.followed)} followed>"

    def _publisher(self, node: NodeId, teller: NodeId | None = None) -> _Publisher:
        known = self._publishers.get(node)
        if known is None:
            known = self._publishers[node] = _Publisher(node, teller, trio.current_time())
        return known

    def _neighbour(self, node: NodeId) -> _Neighbour:
        neighbour = self._neighbours.get(node)
        if neighbour is None:
            neighbour = self._neighbours[node] = _Neighbour(trio.current_time())
        return neighbour

    # -- publishing -----------------------------------------------------------------------------------------

    def announce(self, root: str) -> None:
        """Tell of a root of this node, and wait for nobody."""
        if self._publisher(self._mesh.node).roots.add((root,)):
            self._tell(self._mesh.node)

    def ask(self, root: str, left: float) -> Wave:
        """Tell of a root, and ask who is interested; the answer, due within ``left`` seconds, is done then."""
        self._publisher(self._mesh.node).roots.add((root,))
        wave, effects = self._echo.begin(self._linked(), left, trio.current_time())
        self._perform(effects)
        self._news.wake()
        return wave

    async def wait_answered(self, wave: Wave) -> None:
        """Wait until a question of this node is answered, or its time is over."""
        while not wave.done:
            await self._answered.park()

    # -- subscribing ----------------------------------------------------------------------------------------

    @property
    def followed(self) -> Collection[NodeId]:
        """Publishers that may publish what this node subscribes to."""
        return [node for node, known in self._publishers.items() if known.followed]

    @property
    def publishers(self) -> Mapping[NodeId, frozenset[str]]:
        """All other publishers that are known, and the roots of each."""
        return {node: known.roots.names for node, known in self._publishers.items() if node != self._mesh.node}

    def awaits_records(self) -> bool:
        """Return whether a publisher that this node follows may be a newcomer, whose record is on its way."""
        return bool(self._awaited())

    async def wait_records(self, news: Callable[[], Awaitable[None]]) -> None:
        """Wait for that, by ``news`` of members, as long as it may be so."""
        awaited, began = self._awaited(), trio.current_time()
        try:
            with trio.move_on_after(_NEWCOMER):
                while self._awaited():
                    await news()
        finally:
            tellers = {known.teller for known in awaited if known.teller is not None}
            self.waited_in_vain(tellers, trio.current_time() - began)

    def _awaited(self) -> list[_Publisher]:
        since = trio.current_time() - _NEWCOMER
        return [
            known
            for known in self._publishers.values()
            if known.followed and known.teller is not None and known.since > since and self.is_patient(known.teller)
        ]

    def is_patient(self, neighbour: NodeId) -> bool:
        """Return whether to wait for a node without a record that a neighbour has named; of this node: one of any."""
        return self._neighbour(neighbour).patience.level(trio.current_time()) >= _PATIENCE

    def waited_in_vain(self, neighbours: Collection[NodeId], seconds: float) -> None:
        """Note that this node has waited for nodes that some neighbours have named, and that have not come."""
        for node in {*neighbours, self._mesh.node} if neighbours else ():
            self._neighbour(node).patience.owe(seconds)

    def interest_changed(self) -> None:
        """Keep links to the publishers that may publish what this node subscribes to, and to no others."""
        for node, known in self._publishers.items():
            if node != self._mesh.node:
                self._follow(node, known, wanted=self._own.wants(known.roots.names))

    def _follow(self, node: NodeId, known: _Publisher, *, wanted: bool) -> None:
        if wanted != known.followed:
            known.followed = wanted
            (self._members.keep if wanted else self._members.release)(node)

    def _learn(self, node: NodeId, roots: Collection[str], sender: NodeId) -> bool | None:
        """Note roots of a publisher; return whether there was news, None if there is no room."""
        is_stranger = node not in self._publishers and not self._members.is_known(node)
        if is_stranger and not self._has_room(sender):
            return None
        known = self._publisher(node, sender if is_stranger else None)
        if not known.roots.add(roots):
            return False
        known.away = known.away or not self._members.knows(node)
        if not known.followed:
            self._follow(node, known, wanted=self._own.wants(known.roots.names))
        return True

    def _has_room(self, sender: NodeId) -> bool:
        """Count one more publisher without a record that a neighbour tells of; return False if it is one too many."""
        neighbour = self._neighbour(sender)
        if neighbour.strangers >= _STRANGERS:
            self._sweep()
        neighbour.refused = neighbour.strangers >= _STRANGERS
        neighbour.strangers += not neighbour.refused
        return not neighbour.refused

    def _has_record(self, known: _Publisher) -> None:
        if known.teller is not None:
            self._neighbours[known.teller].strangers -= 1
            known.teller = None

    def _sweep(self) -> None:
        """Forget publishers of which no record came, and those that are dead for so long that theirs are forgotten."""
        now = trio.current_time()
        if now < self._swept + _SWEEP:
            return
        self._swept = now
        for node, known in list(self._publishers.items()):
            is_gone = known.since + _UNKNOWN <= now if known.teller is not None else not self._members.is_known(node)
            if is_gone and node != self._mesh.node:
                del self._publishers[node]
                self._has_record(known)
                self._follow(node, known, wanted=False)

    def _placed(self, node: NodeId) -> None:
        known = self._publishers.get(node)
        if known is not None:
            self._has_record(known)
            was_away, known.away = known.away, not self._members.knows(node)
            if was_away and not known.away:
                self._tell(node)
        elif any(neighbour.refused for neighbour in self._neighbours.values()):
            self._record_came = True
            self._news.wake()
        if len(self._publishers) > _STRANGERS and len(self._publishers) > 2 * len(self._members.others()):
            self._sweep()
        peer = self._mesh.peers.get(node)
        if peer is not None and not self._neighbour(node).compared:
            self.compare(peer)

    # -- between nodes --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Compare with all peers, now that it is known who is here, and from now on with each that is linked."""
        self._begun = True
        for peer in self._mesh.peers.values():
            if not self._neighbour(peer.node).compared:
                self.compare(peer)

    def compare(self, peer: Peer) -> None:
        """Send a peer the hash of what is known here, so that it sends what it knows if that is something else.

        If its link did not take something, it is sent all that is known here.
        """
        if self._begun and self._hears(peer):
            neighbour = self._neighbour(peer.node)
            if neighbour.lacks:
                neighbour.lacks = False
                self._send_living(peer.node)
            neighbour.compared = True
            self._send_digest(peer.node)

    def _send_digest(self, node: NodeId) -> None:
        self._post(node, kinds.Announced(self._digest()), 8)

    def _send_living(self, node: NodeId) -> None:
        for publisher in self._living():
            self._post_announce(node, publisher, 0, 0.0)

    def _digest(self) -> bytes:
        return digest_of(self._publishers[node].roots for node in self._living())

    def _living(self) -> list[NodeId]:
        """Return the publishers that are alive, or have no record yet: a peer that is linked anew is told of these."""
        return [
            node
            for node, known in self._publishers.items()
            if node == self._mesh.node or known.teller is not None or self._members.knows(node)
        ]

    def _hears(self, peer: Peer) -> bool:
        return (
            self._mesh.is_between_members(peer)
            and not (peer.other_realm or peer.at_remote_site or peer.leaving)
            and (self._neighbour(peer.node).speaks or self._members.announces(peer.node))
        )

    def _linked(self, but: NodeId | None = None) -> list[NodeId]:
        return [
            peer.node
            for peer in self._mesh.peers.values()
            if peer.node != but and peer.link.is_up and self._hears(peer)
        ]

    def _tell(self, publisher: NodeId, but: NodeId | None = None) -> None:
        """Pass on what is known of a publisher, and ask nothing."""
        for node in self._linked(but):
            self._post_announce(node, publisher, 0, 0.0)

    def _post_announce(self, node: NodeId, publisher: NodeId, number: int, left: float) -> None:
        roots = self._publishers[publisher].roots
        message = kinds.Announce(bytes.fromhex(publisher), number, int(left * 1000), tuple(sorted(roots.names)))
        self._post(node, message, 32 + roots.size)

    def _post(self, node: NodeId, message: Message, size: int) -> None:
        try:
            self._mesh.post(node, message, size, CONTROL_RESERVE)
        except NotSent:
            peer = self._mesh.peers.get(node)
            if peer is not None:
                self._neighbour(node).lacks = True
                self._retry.note(peer, _NO_ROOM)

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            publisher, number = effect.key
            match effect:
                case Ask(node, _, left):
                    self._post_announce(node, publisher, number, left)
                case Answer(node, _, reached, interested):
                    message = kinds.AnnounceReached(bytes.fromhex(publisher), number, reached, interested)
                    self._post(node, message, 32 + len(reached) + len(interested))

    def _may(self, sender: NodeId, cost: float) -> bool:
        """Return whether a peer may have this node do something for it that costs messages to others."""
        return self._neighbour(sender).work.spend(trio.current_time(), cost)

    def _may_ask(self, publisher: NodeId, sender: NodeId) -> bool:
        """Return whether a question is passed on.  None is signed: what others make up counts as its publisher's."""
        known = self._publishers[publisher]
        budget = known.questions if known.teller is None else self._neighbours[known.teller].about_strangers
        return self._may(sender, 1.0) and budget.spend(trio.current_time())

    def _check_untrusted(self, peer: Peer) -> None:
        if peer.at_remote_site:
            raise RemoteProtocolError("sites keep their announcements to themselves")

    def _receive(self, peer: Peer, message: kinds.Announce) -> None:
        self._check_untrusted(peer)
        if not all(map(is_root, message.roots)):
            raise RemoteProtocolError("a publisher announces first tokens of topics")
        publisher, sender, number = node_of(message.publisher), peer.node, message.number
        own = publisher == self._mesh.node
        news = False if own else self._learn(publisher, message.roots, sender)
        effects: list[Effect] = []
        if number:
            key, left, now = (publisher, number), min(message.left / 1000, _LONGEST), trio.current_time()
            if own or news is None or not (self._echo.knows(key) or self._may_ask(publisher, sender)):
                effects = [Answer(sender, key, b"", b"")]
            else:
                wanted = self._own.wants(self._publishers[publisher].roots.names)
                effects = self._echo.receive(key, sender, self._linked(sender), left, now, interested=wanted)
                self._news.wake()
        if news and not any(isinstance(effect, Ask) for effect in effects):
            self._tell(publisher, sender)
        self._perform(effects)

    def _receive_reached(self, peer: Peer, message: kinds.AnnounceReached) -> None:
        self._check_untrusted(peer)
        key = node_of(message.publisher), message.number
        self._perform(self._echo.receive_answer_untrusted(key, peer.node, message.nodes, message.interested))
        self._answered.unpark_all()

    def _receive_announced(self, peer: Peer, message: kinds.Announced) -> None:
        self._check_untrusted(peer)
        neighbour = self._neighbour(peer.node)
        neighbour.speaks = True
        if not neighbour.compared:
            self.compare(peer)
        differs = self._may(peer.node, 1.0) and message.digest != self._digest()
        if differs and self._may(peer.node, len(self._publishers) / 16):
            self._send_living(peer.node)

    # -- peers ----------------------------------------------------------------------------------------------

    def peer_gone(self, node: NodeId) -> None:
        """Forget a peer that is given up, but not what it owes."""
        neighbour = self._neighbour(node)
        neighbour.compared = neighbour.lacks = neighbour.refused = neighbour.speaks = False
        now, peers = trio.current_time(), self._mesh.peers
        for other, former in list(self._neighbours.items()):
            if (other == node or other not in peers) and not former.owes(now):
                del self._neighbours[other]
        self._perform(self._echo.link_ended(node))
        self._answered.unpark_all()

    async def run(self) -> None:
        """Wait no longer for those whose time is over; run it in exactly one task."""
        while True:
            await self._news.wait()
            while len(self._echo) or self._record_came:
                await trio.sleep(_TICK)
                self._perform(self._echo.expire(trio.current_time()))
                self._answered.unpark_all()
                if self._record_came:
                    self._record_came = False
                    for node, neighbour in list(self._neighbours.items()):
                        if neighbour.compared and neighbour.refused:
                            self._send_digest(node)
