"""Announcements: what nodes of a site know of who publishes on which roots, and who of them wants to hear it.

Every node keeps the announced roots of all publishers.  What is news to it, it passes on to all that it is linked with;
each peer that is linked anew compares.  So what one node knows has left for all its neighbours, and a publisher's new
root is known to all nodes when an echo (``iris.patterns.pubsub.echo``) has come back.  A subscriber keeps links to the
publishers that may publish what it subscribes to.

Nodes of 0.9 know nothing of this, and are linked with everybody themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
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
from iris.patterns.pubsub.roots import RootTable, is_root

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
"""Publishers that no record is known of, of those that one neighbour told of first: they may be newcomers."""

_NEWCOMER: Final = 0.5
"""Seconds within which the record of a newcomer comes, which may publish before."""

_UNKNOWN: Final = 60.0
"""Seconds after which one of whom no record has come is none."""

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
        self._table = RootTable()
        self._echo = Echo(mesh.node)
        self._news = Wakeup()
        self._compared: set[NodeId] = set()
        """Peers that were sent the hash of what is known here."""
        self._lacking: set[NodeId] = set()
        """Peers whose links did not take something."""
        self._speaking: set[NodeId] = set()
        """Peers that have sent theirs, and so know of announcements whatever their records say."""
        self._strangers: dict[NodeId, tuple[NodeId, float]] = {}
        """Publishers without a record, the longest known first: the peer that told of them, and when."""
        self._told: Counter[NodeId] = Counter()
        """How many of those each peer told of."""
        self._away: set[NodeId] = set()
        """Publishers of the table that are not held alive: when one is, peers that were linked meanwhile are told."""
        self._refused: dict[NodeId, float] = {}
        """Peers that told of publishers without a record that there was no room for, and when last."""
        self._again: set[NodeId] = set()
        """Those of them to compare with again, for a record has come."""
        self._begun = False
        self._limits: dict[NodeId, TokenBucket] = {}
        """What neighbours may have this node do."""
        self._budgets: dict[tuple[NodeId, bool], TokenBucket] = {}
        """Questions of each publisher; of all without a record that a peer told of, with True."""
        self._followed: set[NodeId] = set()
        self._answered = trio.lowlevel.ParkingLot()
        mesh.register(kinds.Announce, self._receive)
        mesh.register(kinds.AnnounceReached, self._receive_reached)
        mesh.register(kinds.Announced, self._receive_announced)
        members.on_placed(self._placed)

    def __repr__(self) -> str:
        return f"<Announcements: {len(self._table)} publishers, {len(self._followed)} followed>"

    # -- publishing -----------------------------------------------------------------------------------------

    def announce(self, root: str) -> None:
        """Tell of a root of this node, and wait for nobody."""
        if self._table.add(self._mesh.node, (root,)):
            self._tell(self._mesh.node)

    def ask(self, root: str, left: float) -> Wave:
        """Tell of a root, and ask who is interested; the answer, due within ``left`` seconds, is done then."""
        self._table.add(self._mesh.node, (root,))
        wave, effects = self._echo.begin(self._neighbours(), left, trio.current_time())
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
        return self._followed

    def publishers(self) -> Collection[NodeId]:
        """Return all other publishers that are known."""
        return [node for node in self._table if node != self._mesh.node]

    def awaits_records(self) -> bool:
        """Return whether a publisher that this node follows may be a newcomer, whose record is on its way."""
        since = trio.current_time() - _NEWCOMER
        told = (self._strangers.get(node) for node in self._followed)
        return any(stranger is not None and stranger[1] > since for stranger in told)

    async def wait_records(self, news: Callable[[], Awaitable[None]]) -> None:
        """Wait for that, by ``news`` of members, as long as it may be so."""
        with trio.move_on_after(_NEWCOMER):
            while self.awaits_records():
                await news()

    def interest_changed(self) -> None:
        """Keep links to the publishers that may publish what this node subscribes to, and to no others."""
        wanted = {node for node in self.publishers() if self._own.wants(self._table.of(node))}
        for node in self._followed - wanted:
            self._members.release(node)
        for node in wanted - self._followed:
            self._members.keep(node)
        self._followed = wanted

    def _learn(self, publisher: NodeId, roots: Collection[str], sender: NodeId) -> bool | None:
        """Note roots of a publisher; return whether there was news, None if there is no room."""
        if publisher not in self._table and not self._has_room(publisher, sender):
            return None
        if not self._table.add(publisher, roots):
            return False
        if not self._members.knows(publisher):
            self._away.add(publisher)
        if publisher not in self._followed and self._own.wants(self._table.of(publisher)):
            self._followed.add(publisher)
            self._members.keep(publisher)
        return True

    def _has_room(self, publisher: NodeId, sender: NodeId) -> bool:
        """Return whether one more publisher may be noted: there is a record of it, or few of that sender have none."""
        if self._members.is_known(publisher):
            return True
        now = trio.current_time()
        while (oldest := next(iter(self._strangers), None)) and self._strangers[oldest][1] + _UNKNOWN <= now:
            self._no_stranger(oldest)
            self._forget(oldest)
        if self._told[sender] >= _STRANGERS:
            self._refused[sender] = now
            return False
        self._strangers[publisher] = sender, now
        self._told[sender] += 1
        return True

    def _no_stranger(self, publisher: NodeId) -> None:
        if (stranger := self._strangers.pop(publisher, None)) is not None:
            via = stranger[0]
            self._told[via] -= 1
            if not self._told[via]:
                del self._told[via]

    def _forget(self, publisher: NodeId) -> None:
        self._table.forget(publisher)
        self._budgets.pop((publisher, False), None)
        self._away.discard(publisher)
        if publisher in self._followed:
            self._followed.discard(publisher)
            self._members.release(publisher)

    def _placed(self, node: NodeId) -> None:
        self._no_stranger(node)
        if node in self._table:
            if not self._members.knows(node):
                self._away.add(node)
            elif node in self._away:
                self._away.remove(node)
                self._tell(node)
        elif self._refused:
            since = trio.current_time() - _UNKNOWN
            self._again.update(via for via, last in self._refused.items() if last >= since)
            self._news.wake()
        if len(self._table) > _STRANGERS and len(self._table) > 2 * len(self._members.others()):
            self._forget_gone()
        peer = self._mesh.peers.get(node)
        if peer is not None and node not in self._compared:
            self.compare(peer)

    def _forget_gone(self) -> None:
        """Forget publishers that are dead for so long that their records are forgotten."""
        for node in self.publishers():
            if not self._members.is_known(node) and node not in self._strangers:
                self._forget(node)

    # -- between nodes --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Compare with all peers, now that it is known who is here, and from now on with each that is linked."""
        self._begun = True
        for peer in self._mesh.peers.values():
            if peer.node not in self._compared:
                self.compare(peer)

    def compare(self, peer: Peer) -> None:
        """Send a peer the hash of what is known here, so that it sends what it knows if that is something else.

        If its link did not take something, it is sent all that is known here.
        """
        if self._begun and self._hears(peer):
            if peer.node in self._lacking:
                self._lacking.remove(peer.node)
                self._send_living(peer.node)
            self._compared.add(peer.node)
            self._send_digest(peer.node)

    def _send_digest(self, node: NodeId) -> None:
        self._post(node, kinds.Announced(self._digest()), 8)

    def _send_living(self, node: NodeId) -> None:
        for publisher in self._living():
            self._post_announce(node, publisher, 0, 0.0)

    def _digest(self) -> bytes:
        return self._table.digest(self._living())

    def _living(self) -> list[NodeId]:
        """Return the publishers that are alive, or have no record yet: a peer that is linked anew is told of these."""
        return [
            node
            for node in self._table
            if node == self._mesh.node or node in self._strangers or self._members.knows(node)
        ]

    def _hears(self, peer: Peer) -> bool:
        node = peer.node
        return (
            self._mesh.is_between_members(peer)
            and not (peer.other_realm or peer.at_remote_site or peer.leaving)
            and (node in self._speaking or self._members.announces(node))
        )

    def _neighbours(self, but: NodeId | None = None) -> list[NodeId]:
        return [
            peer.node
            for peer in self._mesh.peers.values()
            if peer.node != but and peer.link.is_up and self._hears(peer)
        ]

    def _tell(self, publisher: NodeId, but: NodeId | None = None) -> None:
        """Pass on what is known of a publisher, and ask nothing."""
        for node in self._neighbours(but):
            self._post_announce(node, publisher, 0, 0.0)

    def _post_announce(self, node: NodeId, publisher: NodeId, number: int, left: float) -> None:
        roots = tuple(sorted(self._table.of(publisher)))
        message = kinds.Announce(bytes.fromhex(publisher), number, int(left * 1000), roots)
        self._post(node, message, 32 + sum(map(len, roots)))

    def _post(self, node: NodeId, message: Message, size: int) -> None:
        try:
            self._mesh.post(node, message, size, CONTROL_RESERVE)
        except NotSent:
            peer = self._mesh.peers.get(node)
            if peer is not None:
                self._lacking.add(node)
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
        now = trio.current_time()
        limit = self._limits.get(sender)
        if limit is None:
            limit = self._limits[sender] = TokenBucket(_AT_ONCE, _RATE, now)
        return limit.spend(now, cost)

    def _may_ask(self, publisher: NodeId, sender: NodeId) -> bool:
        """Return whether a question is passed on.  None is signed: what others make up counts as its publisher's."""
        stranger = self._strangers.get(publisher)
        payer = (publisher, False) if stranger is None else (stranger[0], True)
        now = trio.current_time()
        budget = self._budgets.get(payer)
        if budget is None:
            at_once = _OF_PUBLISHER if stranger is None else _OF_STRANGERS
            budget = self._budgets[payer] = TokenBucket(at_once, _OF_PUBLISHER_RATE, now)
        return self._may(sender, 1.0) and budget.spend(now, 1.0)

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
        if not number:
            if news:
                self._tell(publisher, sender)
            return
        known = self._echo.knows((publisher, number))
        if own or news is None or not (known or self._may_ask(publisher, sender)):
            if news:
                self._tell(publisher, sender)
            self._perform([Answer(sender, (publisher, number), b"", b"")])
            return
        left, now = min(message.left / 1000, _LONGEST), trio.current_time()
        interested = self._own.wants(self._table.of(publisher))
        neighbours = self._neighbours(sender)
        effects = self._echo.receive((publisher, number), sender, neighbours, left, now, interested=interested)
        if news and not any(isinstance(effect, Ask) for effect in effects):
            self._tell(publisher, sender)
        self._perform(effects)
        self._news.wake()

    def _receive_reached(self, peer: Peer, message: kinds.AnnounceReached) -> None:
        self._check_untrusted(peer)
        key = node_of(message.publisher), message.number
        self._perform(self._echo.receive_answer_untrusted(key, peer.node, message.nodes, message.interested))
        self._answered.unpark_all()

    def _receive_announced(self, peer: Peer, message: kinds.Announced) -> None:
        self._check_untrusted(peer)
        self._speaking.add(peer.node)
        if peer.node not in self._compared:
            self.compare(peer)
        if message.digest != self._digest() and self._may(peer.node, 1.0 + len(self._table) / 16):
            self._send_living(peer.node)

    # -- peers ----------------------------------------------------------------------------------------------

    def peer_gone(self, node: NodeId) -> None:
        """Forget a peer that is given up."""
        self._compared.discard(node)
        self._speaking.discard(node)
        self._limits.pop(node, None)
        self._budgets.pop((node, True), None)
        self._refused.pop(node, None)
        self._lacking.discard(node)
        self._perform(self._echo.link_ended(node))
        self._answered.unpark_all()

    async def run(self) -> None:
        """Wait no longer for those whose time is over; run it in exactly one task."""
        while True:
            await self._news.wait()
            while len(self._echo) or self._again:
                await trio.sleep(_TICK)
                self._perform(self._echo.expire(trio.current_time()))
                self._answered.unpark_all()
                again, self._again = self._again, set()
                for node in again & self._compared:
                    self._send_digest(node)
