"""Membership: the trio shell of SWIM.  It feeds the machine, performs its effects, links members, informs users.

The machine (``iris.cluster.swim.swim``) decides who is alive; the mesh holds the links; the roster knows who serves
what; a balancer for each cluster chooses whom to ask.  This file only joins them.

A member can be asked when it is seen alive *and* linked: every balancer holds the linked members and nobody else.
Which are linked before they are asked ``Partners`` decides; the others are by ``request_link``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from random import Random
from typing import Final, Protocol, assert_never, final, get_args

import trio
from msgspec import Struct, structs

from iris.cluster.balancing import Aperture, Balancer, SiteOrder
from iris.cluster.membership.link_states import LinkStates
from iris.cluster.membership.linking import Linking
from iris.cluster.membership.lookup_answers import LookupAnswers
from iris.cluster.membership.proofs import Proofs, ProofVerifier
from iris.cluster.membership.roster import Change, Departure, Member, NodeInfo, Roster, Watch, WatchedChanges
from iris.cluster.membership.unanswered import Misbehaviour, Unanswered
from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.cluster.swim import (
    MAX_CLUSTERS,
    Changed,
    ClusterEntry,
    Effect,
    LoadReport,
    MembershipView,
    MemberState,
    NodeRecord,
    Rejected,
    Routable,
    Send,
    Synchronized,
    Workload,
    signatures_in,
)
from iris.kernel.errors import IrisError, NotSent, RemoteProtocolError
from iris.kernel.names import NodeId, qualified
from iris.kernel.slots import Groups
from iris.kernel.tasks import Wakeup, protected_context, time_left
from iris.kernel.wire import CHECK, Message, kinds
from iris.security.identity import PeerIdentity

_MAX_EMPTIED: Final = 1024
"""Clusters without members that are remembered: their names come from others."""

_SUCCESSION: Final = 2.0
"""Seconds after the last member of a cluster has left in order in which another one may come in its place: who replaces
it may serve already, and not be known or linked here yet."""

_NEVER: Final = (-math.inf, False)

_MAX_DEPARTURES: Final = 256
"""Nodes that are here no more and are remembered, for operators."""

_TOGETHER: Final = 32
"""Signatures in a message that travels with others: receivers check ``wire.MAX_CHECKS`` for one frame."""

_HELD_BACK_SIZE: Final = 4096
"""Size in bytes assumed of a message that was held back for a node: most are smaller."""

_SETTLED: Final = 10.0
"""Seconds after its start within which a node takes no newcomer in the place of another partner."""

_LESS: Final = ("draining", "left", "lost")
"""Changes by which a cluster has one member less to ask."""

_LOOK: Final = 0.25
"""Share of ``Config.probe_timeout`` after which it is checked again which members owe an answer, while any does."""


class RemoteListing(Protocol):
    """The members that other sites export, linked or not.  Plain calls that read tables."""

    def ids(self, address: str) -> Collection[NodeId]:
        """Return the members that a cluster has at other sites."""
        ...

    def clusters(self) -> Iterator[str]:
        """Yield the clusters that other sites export."""
        ...


@final
class MembershipPorts(Struct, frozen=True, kw_only=True):
    """The parts that membership needs."""

    verifier: ProofVerifier
    """Verifier of the proofs that say which clusters each member may serve now."""
    links: LinkStates
    workload: Workload
    order: SiteOrder
    """Order in which sites are asked."""
    remote: RemoteListing | None = None
    """None: this node reaches no other site."""
    random: Random
    processor_time: Callable[[], float] | None = None
    """See ``Aperture``."""


@final
class Membership(PeerObserver):
    """Membership of one node: the trio shell of ``Swim``.

    Args:
        swim: the machine; of a client its ``ClientView``.
    """

    def __init__(self, mesh: Mesh, swim: MembershipView, nursery: trio.Nursery, ports: MembershipPorts) -> None:
        self.rejected: Counter[str] = Counter()
        """Operations that failed here, by reason."""
        self._offences = Misbehaviour()
        self.order: Final = ports.order
        """Order in which sites are asked."""
        self._workload = ports.workload
        self._mesh = mesh
        self._swim = swim
        self._verifier = ports.verifier
        self._remote = ports.remote
        self.proofs: Final = Proofs(ports.verifier)
        self._nursery = nursery
        self._config = mesh.config
        self._random = ports.random
        self._processor_time = ports.processor_time
        self._roster = Roster()
        self._departures: deque[Departure] = deque(maxlen=_MAX_DEPARTURES)
        self._balancers: dict[str, Balancer] = {}
        self._entered: Groups[NodeId, str] = Groups()
        """The names of those that each node is in: there may be many clusters, and members come and go."""
        self._emptied: dict[str, tuple[float, bool]] = {}
        """Times at which clusters lost their last members, the longest ago first."""
        self._records: dict[NodeId, NodeRecord] = {}
        self._remote_members: dict[NodeId, tuple[str, int]] = {}
        """Linked members at other sites, with how far these are."""
        self._closed_routes: set[NodeId] = set()
        self._silent: set[NodeId] = set()
        """Those of them to which no connection broke: they have said nothing for a while."""
        self._links = ports.links
        self._linking = Linking(mesh, nursery, self, ports.links)
        self._suspect_listeners: list[Callable[[NodeId], None]] = []
        self._placed_listeners: list[Callable[[NodeId], None]] = []
        self._watches: list[WatchedChanges] = []
        self._wakeup = Wakeup()
        self._sleep_scope = trio.CancelScope()
        """Scope in which ``run`` waits until something is due."""
        self._work = Wakeup()
        self._changed = trio.lowlevel.ParkingLot()
        self._synchronized = False
        self._introducing = 0
        """Introductions in progress: until one has told who is here, no partners are drawn."""
        self._met_by_chance: set[NodeId] = set()
        """Nodes that are being introduced, and were drawn among all."""
        self._version = 0
        self._withdrawn: dict[NodeId, bool] = {}
        """Linked nodes that are asked nothing any more, and whether they are to be linked again then."""
        self._began = trio.current_time()
        self._progress = -math.inf
        """Time at which a node was linked for the last time."""
        self._serving: dict[str, ClusterEntry] = {}
        self._answers = LookupAnswers(self)
        self._weights: dict[NodeId, dict[str, int]] = {}
        """Weights above 1, of members or of nodes that are about to be some, by node and cluster."""
        for kind in get_args(kinds.OfMembership):
            mesh.register(kind, self._receive)
        mesh.register(kinds.Weight, self._receive_weight)

    # -- for the patterns: Directory ------------------------------------------------------------------------

    def picker(self, cluster: str) -> Balancer | None:
        """See ``MemberDirectory.picker``.  A cluster may have ``@`` and the name of a site behind it."""
        balancer = self._balancers.get(cluster)
        if balancer is None and isinstance(cluster, str) and "@" in cluster:
            return self._at_site(cluster)
        return balancer

    def member_ids(self, cluster: str) -> Sequence[NodeId]:
        """See ``MemberDirectory.member_ids``."""
        balancer = self.picker(cluster)
        return () if balancer is None else tuple(balancer.nodes)

    def weight(self, cluster: str, node: NodeId) -> int:
        """See ``MemberDirectory.weight``."""
        return self._weights.get(node, {}).get(cluster.partition("@")[0], 1)

    def had_members(self, cluster: str) -> bool:
        """See ``MemberDirectory.had_members``."""
        emptied, _ = self._emptied.get(cluster, _NEVER)
        recently = emptied + self._config.absence_patience > trio.current_time()
        is_here = cluster in self._balancers or bool(self.without_link(cluster))
        return is_here or recently or self._swim.is_unanswered(cluster.partition("@")[0])

    def awaits_successor(self, cluster: str) -> bool:
        """See ``MemberDirectory.awaits_successor``."""
        emptied, in_order = self._emptied.get(cluster, _NEVER)
        return in_order and cluster not in self._balancers and emptied + _SUCCESSION > trio.current_time()

    def is_silent(self, cluster: str) -> bool:
        """See ``MemberDirectory.is_silent``."""
        return not self._silent.isdisjoint(self.member_ids(cluster))

    def knows(self, node: NodeId) -> bool:
        """Return whether a node is held alive, so that it is dialled until it is linked."""
        return node in self._records

    def record_of(self, node: NodeId) -> NodeRecord | None:
        """Return the record of a node, alive or dead; None if it is unknown."""
        return self._records.get(node) or self._swim.record(node)

    def is_known(self, node: NodeId) -> bool:
        """Return whether there is a record of a node, alive or dead."""
        return self.record_of(node) is not None

    def announces(self, node: NodeId) -> bool:
        """Return whether a member that is held alive knows of announcements of publishers, by its own word."""
        record = self._records.get(node)
        return record is not None and record.interest_version > 0

    def is_settled(self, node: NodeId) -> bool:
        """Return whether a node is linked, or was tried in vain, or is gone: nothing is gained by waiting for it."""
        if node not in self._records:
            return True
        peer = self._mesh.peers.get(node)
        if peer is None:
            return self._linking.is_unreached(node)
        return not (peer.leaving or node in self._withdrawn)

    def wants(self, node: NodeId) -> bool:
        """Return whether a link to a node is to be kept, used or not.

        A node that others cannot dial is to be linked with all, because it alone can see to that.
        """
        return node in self._links.kept or self._mesh.dial_only

    @property
    def version(self) -> int:
        """Number that grows when who is a member, or is linked, has changed."""
        return self._version

    def unlinked(self, address: str) -> list[NodeId]:
        """Return the members of a cluster at this site that can be linked and are not yet, by id."""
        return [
            member.node
            for member in self._without_link(address)
            if member.status == "alive" and not self.is_settled(member.node)
        ]

    def without_link(self, address: str) -> list[NodeId]:
        """Return the members of a cluster at this site that are not linked, whether they can be or not, by id."""
        return [member.node for member in self._without_link(address) if member.status != "draining"]

    def _without_link(self, address: str) -> Iterator[Member]:
        name, _, site = address.partition("@")
        balancer = self._balancers.get(name)
        placed: Collection[NodeId] = () if balancer is None else balancer.nodes
        for member in self._roster.members(name):
            if member.node in placed or (site and member.site != site):
                continue
            peer = self._mesh.peers.get(member.node)
            if peer is None or peer.leaving or member.node in self._withdrawn:
                yield member

    def request_link(self, node: NodeId) -> bool:
        """Begin to link to a member that is to be asked, unless that is done or in progress; return if it is alive.

        If its link is about to end, it is made again then.
        """
        self._request(node, alone=not self.wants(node))
        return node in self._records

    async def link(self, node: NodeId, timeout: float) -> float:
        """Link to a node that is to be asked, if it can be; return what is left of ``timeout`` seconds, above 0.

        It takes as long as a handshake may, at most.  Cancelling it leaves a handshake in progress that ends by itself.
        """
        deadline = trio.current_time() + timeout
        with trio.move_on_after(min(timeout, self._config.handshake_timeout)):
            if self.request_link(node):
                while not self.is_settled(node):
                    await self.wait_news()
        return time_left(deadline)

    def keep(self, node: NodeId) -> None:
        """Keep a link to a node from now on, whenever it is alive; begin with it.  The other end need not want it."""
        self._links.kept.needed.add(node)
        self._request(node, alone=True)

    def release(self, node: NodeId) -> None:
        """Keep that link no more."""
        self._links.kept.needed.discard(node)

    def _request(self, node: NodeId, *, alone: bool) -> None:
        peer = self._mesh.peer(node)
        if peer is not None and (peer.leaving or node in self._withdrawn):
            self._withdrawn[node] = True
        elif peer is None and node in self._records:
            self._linking.begin(node, alone=alone)

    def withdraw(self, node: NodeId) -> None:
        """Ask nothing of a linked node any more: its link is about to end."""
        self._withdrawn.setdefault(node, False)
        self._remove(node)
        self._version += 1

    def restore(self, node: NodeId) -> None:
        """Ask a linked node again, whose link stays after all."""
        if self._withdrawn.pop(node, None) is not None and node in self._mesh.peers and node in self._records:
            self._place(node)
            self._version += 1
            self._changed.unpark_all()

    def addresses(self) -> set[str]:
        """Return the addresses that members have by their own word."""
        return {address for record in self._records.values() for address in record.addresses}

    def link_everybody(self) -> None:
        """Keep a link to every member from now on; begin with those that are not linked."""
        if not self._links.kept.everybody:
            self._links.kept.everybody = True
            self._link_wanted()

    def _lacks_partners(self) -> bool:
        everybody = self._links.kept.everybody or self._mesh.dial_only
        wanted = self.others() if everybody else self._links.kept
        return any(not self.is_settled(other) and other not in self._closed_routes for other in wanted)

    def is_gone(self, node: NodeId) -> bool:
        """Return whether a node is known to have died or left."""
        return self._swim.state(node) in (MemberState.DEAD, MemberState.LEFT)

    def is_suspected(self, node: NodeId) -> bool:
        """Return whether a node is to get no new work for now."""
        return node in self._closed_routes

    def may_serve(self, peer: PeerIdentity, cluster: str, proof: bytes) -> bool:
        """Return whether a peer that has finished a handshake may serve a cluster; see ``ProofVerifier``."""
        return self._verifier.may_serve(peer, cluster, proof)

    def records_of(self, cluster: str) -> list[NodeRecord]:
        """See ``ClusterRecords.records_of``."""
        return [self._records[member.node] for member in self._roster.members(cluster) if member.node in self._records]

    def _at_site(self, address: str) -> Balancer | None:
        """Begin to keep the members that a cluster has at one site; only what is asked for is kept."""
        name, _, site = address.partition("@")
        site = qualified(name.rpartition("/")[0], site)
        members = [node for node in self.member_ids(name) if self.site_of(node) == site]
        if not members:
            return None
        balancer = self._balancers[address] = self._balancer(SiteOrder(site))
        for node in members:
            balancer.add(node, site)
            self._entered.add(node, address)
            if node in self._closed_routes:
                balancer.suspend(node)
            self._weigh(node, address, balancer)
        return balancer

    def _balancer(self, order: SiteOrder) -> Balancer:
        return Balancer(self._random, order=order, aperture=Aperture(self._processor_time), work=self._work)

    def refusals(self) -> dict[str, int]:
        """Return the counts of refused statements about members, and of failed links, by reason."""
        return {f"membership: {why}": count for why, count in (self.rejected + Counter(self._swim.rejected)).items()}

    def site_of(self, node: NodeId) -> str:
        """Return the site that a node is at; of another realm's, with that one's alias before it."""
        remote = self._remote_members.get(node)
        return self._swim.own.site if remote is None else remote[0]

    def place_remote(self, node: NodeId, site: str, distance: int, clusters: Collection[str]) -> None:
        """Have a linked node of another site in the balancers of just these clusters."""
        self._remote_members[node] = (site, distance)
        self._enter(node, clusters, site, distance)
        self._changed.unpark_all()

    def served_by(self, node: NodeId) -> dict[str, bytes]:
        """Return the clusters of this site for which a node takes work, each with its proof."""
        record = self._records.get(node)
        return {} if record is None else {entry.name: entry.proof for entry in record.clusters if not entry.draining}

    def on_placed(self, listener: Callable[[NodeId], None]) -> None:
        """Call ``listener`` with each node for which ``served_by`` may return something else."""
        self._placed_listeners.append(listener)

    async def wait_news(self) -> None:
        """Wait until something has changed in who is here."""
        await self._changed.park()

    def news(self) -> None:
        """Have those who wait for members look again."""
        self._changed.unpark_all()

    def on_suspected(self, listener: Callable[[NodeId], None]) -> None:
        """Call ``listener`` with each node that is to get no new work until it answers again."""
        self._suspect_listeners.append(listener)

    # -- for users ------------------------------------------------------------------------------------------

    def clusters(self, at_most: int | None = None) -> tuple[str, ...]:
        """See ``Node.clusters``; of those at other sites, which name any number, perhaps only so many."""
        exported = () if self._remote is None else self._remote.clusters()
        return tuple(sorted({*self._roster.clusters(), *itertools.islice(exported, at_most)}))

    def members(self, cluster: str) -> tuple[Member, ...]:
        """See ``Node.members``."""
        return self._roster.members(cluster)

    def nodes(self) -> tuple[NodeInfo, ...]:
        """Return every node of the site, the suspected ones included."""
        return self._roster.nodes()

    def departures(self) -> tuple[Departure, ...]:
        """Return the nodes that are here no more, the last 256 of them, oldest first."""
        return tuple(gone for gone in self._departures if self._roster.node(gone.node.node) is None)

    def count(self, cluster: str) -> int:
        """Return how many members ``cluster`` has, here or at other sites; 0 if none of them is to get work now."""
        listed = () if self._remote is None else self._remote.ids(cluster)
        members = {*self.member_ids(cluster), *listed}
        members.update(node for node in self.unlinked(cluster) if not self.wants(node))
        return 0 if members <= self._closed_routes else len(members)

    async def wait_for(self, cluster: str, count: int) -> None:
        """See ``Node.wait_for``."""
        while self.count(cluster) < count:
            await self._changed.park()
        await trio.lowlevel.checkpoint()

    @protected_context
    async def watch(self, cluster: str) -> AsyncIterator[Watch]:
        """See ``Node.watch``."""
        await trio.lowlevel.checkpoint()  # nothing else in it waits
        present = [Change(kind="joined", cluster=cluster, member=member) for member in self._roster.members(cluster)]
        watched = WatchedChanges(cluster, present)
        self._watches.append(watched)
        try:
            yield Watch(watched)
        finally:
            self._watches.remove(watched)
            watched.end()

    @property
    def linking(self) -> int:
        """Number of members that are being linked, or are to be."""
        return len(self._linking)

    @property
    def watches(self) -> int:
        """Number of watches that are open."""
        return len(self._watches)

    def end_watches(self) -> None:
        """End all watches: this node is closed."""
        for watched in self._watches:
            watched.end()

    # -- this node's own record -----------------------------------------------------------------------------

    def serve(self, entry: ClusterEntry) -> None:
        """Announce to all members that this node is a member of a cluster, draining or not."""
        self._serving[entry.name] = entry
        self._announce_own()

    def stop_serving(self, cluster: str) -> None:
        """Announce to all members that it no longer is."""
        if self._serving.pop(cluster, None) is not None:
            self._announce_own()

    def renew_addresses(self, addresses: tuple[str, ...]) -> None:
        """Announce the addresses of this node to all members; those of a client to nobody."""
        self._perform(self._swim.update_self(trio.current_time(), addresses=addresses))
        self._wakeup.wake()

    def renew_proof(self, proof: bytes) -> None:
        """Show everybody a fresh delegation; who has refused this node is dialled again at once."""
        self._perform(self._swim.update_self(trio.current_time(), proof=proof))
        self._linking.retry()
        self._wakeup.wake()

    def _announce_own(self) -> None:
        now = trio.current_time()
        self._perform(self._swim.update_self(now, clusters=tuple(self._serving.values())))
        self._apply_own()
        self._wakeup.wake()

    def _apply_own(self) -> None:
        own = self._swim.own
        self._apply(Changed(node=own.node, state=MemberState.ALIVE, record=own))

    # -- joining and leaving --------------------------------------------------------------------------------

    async def introduce(self, node: NodeId, *, by_chance: bool = False) -> None:
        """Exchange all that is known with a linked node, and link to the partners that are drawn of those it tells of.

        Returns at the latest after ``Config.subscribe_timeout``, and when it turns out that nobody talks to this node.
        Not waited for is who could not be reached at the first attempt; nor are those of whom none answers for
        ``DialLimiter.silence``: a firewall between here and there says nothing.  It is tried further to link to them.
        """
        self._progress = trio.current_time()
        self._introducing += 1
        if by_chance:
            self._met_by_chance.add(node)
        try:
            self._perform(self._swim.join([node], trio.current_time()))
            self._wakeup.wake()
            await self._wait_introduced()
        finally:
            self._introducing -= 1
            self._draw()
            self._met_by_chance.discard(node)

    async def _wait_introduced(self) -> None:
        with trio.move_on_after(self._config.subscribe_timeout):
            while self._mesh.expelled() is None and (not self._synchronized or self._lacks_partners()):
                silent = self._progress + self._mesh.turns.silence() if self._synchronized else math.inf
                if trio.current_time() >= silent:
                    return
                with trio.move_on_at(silent):
                    await self._changed.park()

    @property
    def settled(self) -> bool:
        """True once this node has sent all updates that it had to send."""
        return self._swim.settled

    def leave(self) -> None:
        """Announce to all members that this node leaves."""
        self._serving.clear()
        self._perform(self._swim.leave(trio.current_time()))

    # -- the machine ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive the machine; run it in exactly one task."""
        self._nursery.start_soon(self._look_for_silence)
        self._nursery.start_soon(self._follow_proofs)
        while True:
            now, deadline = trio.current_time(), self._swim.deadline
            if now >= deadline:
                with self._mesh.survive("membership"):
                    self._perform(self._swim.expire(now))
                deadline = self._swim.deadline
                if deadline <= now:
                    await trio.lowlevel.checkpoint()
                    continue
            with trio.CancelScope(deadline=deadline) as self._sleep_scope:
                await self._wakeup.wait()

    # -- certificates ---------------------------------------------------------------------------------------

    def recheck(self) -> None:
        """Verify everybody's certificates again, for somebody was revoked."""
        self._perform(self._swim.recheck(trio.current_time(), self._is_linked_rightly))
        self._wakeup.wake()
        self._recheck_proofs()

    def _is_linked_rightly(self, node: NodeId) -> bool:
        peer = self._mesh.peers.get(node)
        return peer is not None and self._verifier.are_current(peer.identity)

    async def _follow_proofs(self) -> None:
        while True:
            await self.proofs.wait_end()
            self._recheck_proofs()

    def _recheck_proofs(self) -> None:
        for node, held in list(self._records.items()):
            record, state = self._swim.record(node), self._swim.state(node)
            if record is not None and state is not None and (permitted := self.proofs.permitted(record)) != held:
                self._apply(Changed(node=node, state=state, record=record))
                self.proofs.compare(held, permitted)

    async def _look_for_silence(self) -> None:
        """Have members probed at once that owe an answer and say nothing: callers wait, and more would join them."""
        patience = self._config.probe_timeout
        doubts = Unanswered(patience)
        began = None  # when somebody owed an answer after a time when nobody did
        while True:
            now = trio.current_time()
            nodes = dict.fromkeys(node for balancer in self._balancers.values() for node in balancer.owing())
            owing = {node: self._linking.frames_from(node) for node in nodes if node in self._mesh.peers}
            for node in doubts.look(now, owing, began):
                self._perform(self._swim.doubt(node, now))
                self._wakeup.wake()
            began = None
            if not owing:  # an idle node is not woken up for this
                await self._work.wait()
                began = trio.current_time()
            await trio.sleep(patience * _LOOK)

    def _receive(self, peer: Peer, message: kinds.OfMembership) -> None:
        if peer.at_remote_site:
            raise RemoteProtocolError("sites keep their membership to themselves")
        if peer.client:
            delay = self._workload.queue_delay
            for answer, size in self._answers.to_untrusted(peer.node, message, trio.current_time(), delay):
                peer.link.post(answer, size)
            return
        self._mesh.work.check(signatures_in(message))
        self._perform(self._swim.receive(message, peer.node, trio.current_time()))
        # Not woken up: most answers only put off what is due, and an idle node's time goes into wake-ups.
        self._sleep_scope.deadline = self._swim.deadline

    def _receive_weight(self, peer: Peer, message: kinds.Weight) -> None:
        weights = self._weights.setdefault(peer.node, {})
        weights.pop(message.cluster, None)
        if message.weight > 1:
            if len(weights) >= MAX_CLUSTERS:
                raise RemoteProtocolError(f"a node serves at most {MAX_CLUSTERS} clusters")
            weights[message.cluster] = message.weight
        for address in self._entered.of(peer.node):
            if address.partition("@")[0] == message.cluster:
                self._balancers[address].weigh(peer.node, message.weight)

    def _weigh(self, node: NodeId, address: str, balancer: Balancer) -> None:
        weight = self.weight(address, node)
        if weight > 1:
            balancer.weigh(node, weight)

    def link_failed(self, error: IrisError) -> None:
        """See ``LinkingHost.link_failed``."""
        self.rejected[f"cannot link: {type(error).__name__}"] += 1

    def perform(self, effects: Sequence[Effect]) -> None:
        """Perform what the machine wants, when it was not this shell that has called it."""
        self._perform(effects)
        self._wakeup.wake()

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.node, effect.message, effect.size)
                case Changed():
                    self._apply(effect)
                case Routable():
                    self._route(effect)
                case LoadReport():
                    for name in self._entered.of(effect.node):
                        self._balancers[name].gray(effect.node, effect.queue_delay)
                    if (peer := self._mesh.peers.get(effect.node)) is not None:
                        peer.round_trip = effect.round_trip
                    self._report(self._roster.load(effect.node, effect.queue_delay))
                case Synchronized():
                    self._synchronized = True
                    self._progress = trio.current_time()
                    self._draw()
                    self._changed.unpark_all()
                case Rejected():
                    self._offences.report(effect, self._mesh.peers.get(effect.sender), trio.current_time())
                case _:
                    assert_never(effect)

    def _send(self, node: NodeId, message: Message, size: int) -> None:
        peer = self._mesh.peer(node)
        if peer is None:
            self._linking.hold(node, message)
            return
        checks = signatures_in(message)
        try:
            if checks > _TOGETHER:  # as much as a receiver checks for one frame
                peer.link.end_batch()
                peer.link.post(message, size)
                peer.link.end_batch()
            else:
                peer.link.post(message, size + CHECK * checks)
        except NotSent:
            self.rejected["no room on the link"] += 1

    # -- who can be asked -----------------------------------------------------------------------------------

    def _apply(self, changed: Changed) -> None:
        node = changed.node
        gone = changed.state in (MemberState.DEAD, MemberState.LEFT)
        if not gone:
            changed = structs.replace(changed, record=self.proofs.permitted(changed.record))
        elif (known := self._roster.node(node)) is not None:
            self._departures.append(
                Departure(
                    node=known,
                    reason="left" if changed.state is MemberState.LEFT else changed.evidence or "silent",
                    at=trio.current_time(),
                )
            )
        changes = self._roster.apply(changed)
        for change in changes:
            # Whether it was linked or not: those who never asked it wait for the next one as well.
            if change.kind in _LESS and all(left.status == "draining" for left in self._roster.members(change.cluster)):
                self._note_empty(change.cluster, change.kind != "lost")
        self._report(changes)
        self._version += 1
        if gone:
            self._records.pop(node, None)
            self._links.kept.forget(node)
            self._draw()
            self._closed_routes.discard(node)
            self._silent.discard(node)
            self._remove(node, in_order=changed.state is MemberState.LEFT)
            # Who leaves says goodbye on each link itself, after all else that it had to say.
            if changed.evidence == "expelled":
                self._linking.expelled(node)
            elif changed.state is MemberState.DEAD:
                self._linking.dead(node)
            else:
                self._linking.cleared(node)
        else:
            new = node not in self._records and node != self._mesh.node
            self._records[node] = changed.record
            if new:
                settled = trio.current_time() >= self._began + _SETTLED
                self._links.kept.meet(node, changed.record.name, settled=settled)
                self._linking.retry(node)
                self._draw()
            if changed.state is MemberState.SUSPECT:
                self._linking.suspected(node)
            else:
                self._linking.cleared(node)
            if self._mesh.peer(node) is not None:
                self._linking.straighten(node)
                self._place(node)
            elif self.wants(node):
                self._linking.begin(node, new=True, alone=self._dials_alone)
        for listener in self._placed_listeners:
            with self._mesh.survive("what a member serves"):
                listener(node)
        self._changed.unpark_all()

    @property
    def _draws(self) -> bool:
        return self._synchronized or not self._introducing

    def _draw(self) -> None:
        """Draw partners in the place of those that are gone, or that were not known yet."""
        if self._draws and self._links.kept.missing > 0:
            linked = {peer.node for peer in self._mesh.peers.values() if not peer.initiated}
            if self._links.kept.fill(linked | self._met_by_chance):
                self._link_wanted()

    def others(self) -> list[NodeId]:
        """Return the other members that are held alive."""
        return [node for node in self._records if node != self._mesh.node]

    def _link_wanted(self) -> None:
        alone = self._dials_alone
        for node in self.others():
            if self._mesh.peer(node) is None and self.wants(node):
                self._linking.begin(node, new=True, alone=alone)

    @property
    def _dials_alone(self) -> bool:
        """Whether the other end of a link that is to be kept may want none: in a small realm it does."""
        kept = self._links.kept
        return not (kept.everybody or self._mesh.dial_only or len(self._records) <= len(kept) + 1)

    def _report(self, changes: Sequence[Change]) -> None:
        for change in changes:
            for watched in self._watches:
                if watched.cluster == change.cluster:
                    watched.add(change)

    def _place(self, node: NodeId) -> None:
        """Have a linked node in the balancers of just those clusters that it serves."""
        if node in self._withdrawn:
            return
        record = self._records[node]
        self._enter(node, {entry.name for entry in record.clusters if not entry.draining}, record.site, 0)

    def _enter(self, node: NodeId, serves: Collection[str], site: str, distance: int) -> None:
        at = site.rpartition("/")[2]
        addresses = {address for name in serves if (address := f"{name}@{at}") in self._balancers}
        for name in addresses.union(serves):
            balancer = self._balancers.get(name)
            if balancer is None:
                balancer = self._balancers[name] = self._balancer(self.order)
            if node not in balancer.nodes:
                balancer.add(node, site, distance)
                self._entered.add(node, name)
                if node in self._closed_routes:
                    balancer.suspend(node)
                self._weigh(node, name, balancer)
        self._remove(node, but=addresses.union(serves), in_order=True)

    def _remove(self, node: NodeId, but: frozenset[str] | set[str] = frozenset(), *, in_order: bool = False) -> None:
        for name in self._entered.of(node):
            if name not in but:
                balancer = self._balancers[name]
                balancer.remove(node)
                self._entered.remove(node, name)
                if not balancer.nodes:
                    del self._balancers[name]
                    self._note_empty(name, in_order)

    def _note_empty(self, cluster: str, in_order: bool) -> None:
        self._emptied.pop(cluster, None)
        self._emptied[cluster] = trio.current_time(), in_order
        if len(self._emptied) > _MAX_EMPTIED:
            del self._emptied[next(iter(self._emptied))]

    def _route(self, route: Routable) -> None:
        if route.open:
            self._closed_routes.discard(route.node)
            self._silent.discard(route.node)
        else:
            self._closed_routes.add(route.node)
            if route.evidence == "silent":
                self._silent.add(route.node)
        for balancer in map(self._balancers.__getitem__, self._entered.of(route.node)):
            (balancer.resume if route.open else balancer.suspend)(route.node)
        if not route.open:
            for listener in self._suspect_listeners:
                with self._mesh.survive("a member that is suspected"):
                    listener(route.node)
        self._changed.unpark_all()

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """A node is linked: it can be asked, and gets what was held back for it.

        It also gets this node's own record.  Gossip alone would leave a gap: a change that everybody else has heard
        of by now is not repeated to a node that nobody knew of when it was spread.
        """
        if peer.at_remote_site:
            return
        self._progress = trio.current_time()
        if self._mesh.is_between_members(peer):
            own = self._swim.own
            self._send(peer.node, kinds.State(False, (own.as_update(),)), own.size)
        for message in self._linking.linked(peer.node):
            self._send(peer.node, message, _HELD_BACK_SIZE)
        if peer.node in self._records:
            self._place(peer.node)
        self._version += 1
        self._changed.unpark_all()

    def frames_lost(self, peer: Peer) -> None:
        """Gossip is repeated anyway.  A node of another site that answers again is asked again."""
        if peer.node in self._remote_members and peer.link.is_up:
            self._route(Routable(node=peer.node, open=True))

    def peer_unreachable(self, node: NodeId) -> None:
        """The connection broke: the machine closes the route at once."""
        if node in self._remote_members:
            self._route(Routable(node=node, open=False))
            return
        self._silent.discard(node)
        self._perform(self._swim.broken(node, trio.current_time()))
        self._wakeup.wake()

    def peer_refused(self, node: NodeId) -> None:
        """Nobody listens at the node's address any more: evidence for the machine."""
        if node not in self._remote_members:
            self._silent.discard(node)
            self._perform(self._swim.refused(node, trio.current_time()))
            self._wakeup.wake()

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """A node without a link cannot be asked."""
        self._answers.forget(peer.node)
        self._weights.pop(peer.node, None)
        self._remove(peer.node)
        if self._remote_members.pop(peer.node, None) is not None:
            self._closed_routes.discard(peer.node)
        self._version += 1
        again = self._withdrawn.pop(peer.node, False)
        if peer.node in self._records and not self._mesh.closing and (again or self.wants(peer.node)):
            self._linking.begin(peer.node, alone=again or self._dials_alone)
        self._changed.unpark_all()
