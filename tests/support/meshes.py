"""Nodes without membership, wired by hand on a network in memory: meshes, patterns, and a directory fed by the test.

On leaving the block everything must add up: no waiter, job, handshake or connection is left, and every counter that
promises to balance does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast, final

import trio

from iris.cluster.balancing.locality import AtSite
from iris.cluster.membership import Member, Membership
from iris.cluster.mesh.mesh import Mesh, open_mesh
from iris.cluster.mesh.peer import Peer, PeerObserver
from iris.cluster.mesh.ports import FrameFilter, MeshPorts, MeshSetting
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.tasks.background import open_background
from iris.kernel.transport.memory import MemoryNetwork, MemoryTransport
from iris.kernel.wire.header import largest_frame
from iris.node.build import build_patterns
from iris.node.environment import Environment
from iris.patterns.books import PatternStatistics, Tally
from iris.patterns.pubsub.subscribe.subscription import Subscription
from iris.patterns.service.service import Limits, Service
from iris.patterns.service.worker_pool import Role, WorkerPool, WorkerPools
from iris.security.identity.permissions import Rights
from tests.support.accounts import check_refusals
from tests.support.admission import TestAdmission
from tests.support.realms import WALL, TestRealm


@final
class StaticPicker:
    """Picks the first member that is not excluded, and keeps the books."""

    def __init__(self, members: Sequence[NodeId]) -> None:
        self.members = members
        self.outstanding: Counter[NodeId] = Counter()
        self.outcomes: list[tuple[NodeId, bool]] = []
        self.keys: list[str | None] = []

    def pick(
        self,
        *,
        exclude: Collection[NodeId] = (),
        key: str | None = None,
        prefer: NodeId | AtSite | None = None,
        now: float = 0.0,
    ) -> NodeId | None:
        self.keys.append(key)
        if isinstance(prefer, str) and prefer in self.members and prefer not in exclude:
            return prefer
        return next((member for member in self.members if member not in exclude), None)

    def started(self, node: NodeId) -> None:
        self.outstanding[node] += 1

    def has_other(self, exclude: Collection[NodeId]) -> bool:
        return any(member not in exclude for member in self.members)

    def may_repeat(self, now: float, *, forced: bool = False) -> bool:
        return True

    def finished(
        self, node: NodeId, latency: float, *, ok: bool, answered: bool | None = True, now: float = 0.0
    ) -> None:
        assert latency >= 0
        self.outstanding[node] -= 1
        self.outcomes.append((node, ok))


@final
class StaticDirectory:
    """Directory of the members of each cluster, as the test sets it: nobody is suspected, lost or at another site."""

    def __init__(self) -> None:
        self.proofs: Final = self
        self._members: dict[str, list[NodeId]] = {}
        self.pickers: dict[str, StaticPicker] = {}
        self.alive: set[NodeId] = set()
        """Nodes that a link can be begun to; nothing comes of it."""
        self.begun: list[NodeId] = []
        """Nodes that a link was begun to."""

    def add(self, cluster: str, node: NodeId) -> None:
        self._members.setdefault(cluster, []).append(node)

    def picker(self, cluster: str) -> StaticPicker | None:
        members = self._members.get(cluster)
        return self.pickers.setdefault(cluster, StaticPicker(members)) if members else None

    def is_silent(self, cluster: str) -> bool:
        return False

    def had_members(self, cluster: str) -> bool:
        return cluster in self._members

    def awaits_successor(self, cluster: str) -> bool:
        return False

    async def wait_news(self) -> None:
        await trio.sleep_forever()

    def clusters(self, at_most: int | None = None) -> Sequence[str]:
        return sorted(self._members)

    def member_ids(self, cluster: str) -> Sequence[NodeId]:
        return tuple(self._members.get(cluster, ()))

    def weight(self, cluster: str, node: NodeId) -> int:
        return 1

    def members(self, cluster: str) -> Sequence[Member]:
        return ()

    def is_suspected(self, node: NodeId) -> bool:
        return False

    def site_of(self, node: NodeId) -> str:
        return ""

    def matters(self, address: str, *, keyed: bool = False) -> bool:
        return False

    def lists(self, address: str) -> bool:
        return False

    async def reach(
        self, address: str, timeout: float, *, everybody: bool, keyed: bool = False, tried: Collection[NodeId] = ()
    ) -> float:
        await trio.lowlevel.checkpoint()
        return timeout

    async def reach_node(self, node: NodeId, timeout: float) -> float:
        await trio.lowlevel.checkpoint()
        return timeout

    def others(self) -> Sequence[NodeId]:
        """All are linked."""
        return ()

    def knows(self, node: NodeId) -> bool:
        return True

    def is_known(self, node: NodeId) -> bool:
        return True

    def announces(self, node: NodeId) -> bool:
        return False

    def is_settled(self, node: NodeId) -> bool:
        return True

    def keep(self, node: NodeId) -> None:
        """See ``Membership``."""

    def release(self, node: NodeId) -> None:
        """See ``Membership``."""

    def on_placed(self, listener: object) -> None:
        """See ``Membership``."""

    def request_link(self, node: NodeId) -> bool:
        if node in self.alive:
            self.begun.append(node)
        return node in self.alive

    def without_link(self, address: str) -> Collection[NodeId]:
        return ()

    def on_suspected(self, listener: object) -> None:
        """See ``Membership``."""

    def on_lost(self, listener: object) -> None:
        """See ``Proofs``."""


@final
class PeerLog(PeerObserver):
    """Events of a mesh on its peers, as short texts."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, NodeId]] = []
        self.reasons: list[str] = []

    def of(self, node: NodeId) -> list[str]:
        return [what for what, whom in self.entries if whom == node]

    def peer_connected(self, peer: Peer) -> None:
        self.entries.append(("up", peer.node))

    def frames_lost(self, peer: Peer) -> None:
        self.entries.append(("reset", peer.node))

    def peer_unreachable(self, node: NodeId) -> None:
        self.entries.append(("refused", node))

    def peer_removed(self, peer: Peer, reason: str) -> None:
        self.entries.append(("down", peer.node))
        self.reasons.append(reason)


@final
class MeshNode:
    """One node: its mesh, its patterns, its place on the network."""

    def __init__(
        self,
        name: str,
        mesh: Mesh,
        transport: MemoryTransport,
        directory: StaticDirectory,
        admission: TestAdmission,
    ) -> None:
        self.name: Final = name
        self.mesh: Final = mesh
        self.admission: Final = admission
        self.transport: Final = transport
        self.directory: Final = directory
        self.log: Final = PeerLog()
        patterns = build_patterns(
            mesh,
            cast("Membership", directory),
            WorkerPools(),
            reach=directory,
            elsewhere=None,
            lookups=None,
            environment=Environment(),
            tracing=None,
        )
        self.books: Final = patterns.books
        self.requests: Final = patterns.requests
        self.relays: Final = patterns.relays
        self.serving: Final = patterns.serving
        self.broadcasts: Final = patterns.broadcasts
        self.pubsub: Final = patterns.pubsub
        mesh.observe(self.log, *patterns.observers)
        self.memberships: Final[list[WorkerPool]] = []

    @property
    def id(self) -> NodeId:
        return self.mesh.node

    @property
    def url(self) -> str:
        return self.mesh.listening[0]

    def peer(self, other: MeshNode) -> Peer:
        """Return what this node knows of another one that it is linked to."""
        return self.mesh.peers[other.id]

    async def request(self, cluster: str, payload: object, **options: Any) -> Any:
        """Ask a member of a cluster; see ``Requests.call``."""
        return await self.requests.request(self.requests.call(cluster, payload, **options))

    @asynccontextmanager
    async def serve(self, service: Service, *, concurrency: int = 256, queue: int = 1024) -> AsyncIterator[WorkerPool]:
        """Be a member of the service's cluster, known to everybody at once."""
        limits = Limits(concurrency=concurrency, queue=queue)
        async with self.serving.serve(service.name, Role(service, limits)) as membership:
            self.memberships.append(membership)
            self.directory.add(service.name, self.id)
            yield membership

    def break_connections(self, other: MeshNode | None = None) -> None:
        """Break every connection from this node to another one, or to all."""
        self.transport.reset(None if other is None else other.transport.host)


@final
class Fleet:
    """Some nodes of one realm on one network.  Made by ``open_meshes``."""

    def __init__(self, network: MemoryNetwork, config: Config, seed: int) -> None:
        self.network: Final = network
        self.config: Final = config
        self.realm: Final = TestRealm(seed)
        self.directory: Final = StaticDirectory()
        self.nodes: Final[dict[str, MeshNode]] = {}
        self.has_bugs = False
        """True if the test has planted unexpected errors."""

    def __getitem__(self, name: str) -> MeshNode:
        return self.nodes[name]

    @asynccontextmanager
    async def open_node(
        self,
        name: str,
        *,
        realm: TestRealm | None = None,
        rights: Rights | None = None,
        url: str | None = None,
        frames: FrameFilter | None = None,
        wall_clock: Callable[[], float] | None = None,
    ) -> AsyncIterator[MeshNode]:
        """Add a node on a host of its own; it speaks for the cluster of its name."""
        began = trio.current_time()
        realm = realm or self.realm
        limit = largest_frame(self.config)  # as over nng
        transport = self.network.transport(name, limit)
        listening = await transport.listen([url or f"mem://{name}"])
        admission = TestAdmission()
        setting = MeshSetting(
            config=self.config,
            entropy=realm.entropy,
            wall_clock=wall_clock or (lambda: WALL + trio.current_time() - began),
        )
        ports = MeshPorts(admission=admission, frames=frames)
        async with open_mesh(realm.identity(name, rights), transport, listening, ports, setting) as mesh:
            node = self.nodes[name] = MeshNode(name, mesh, transport, self.directory, admission)
            mesh.begin_reading()
            async with open_background() as nursery:
                nursery.start_soon(node.requests.run)
                yield node

    async def link(self, *names: str) -> None:
        """Link every one of these nodes, or of all, to every other, and let them exchange what they subscribe to."""
        nodes = [self.nodes[name] for name in names or self.nodes]
        for index, node in enumerate(nodes):
            for other in nodes[index + 1 :]:
                await node.mesh.connect([other.url], expected=other.id)
        await trio.sleep(0.1)

    async def check(self) -> None:
        """Let everything come to rest, then see that nothing is left over and every counter adds up."""
        await trio.sleep(self.config.handshake_timeout + 2)
        for node in self.nodes.values():
            if not self.has_bugs:
                check_refusals(node.mesh.refusals)
            if not node.transport.closed:
                check_node(node)
        for picker in self.directory.pickers.values():
            assert not +picker.outstanding, "a picker was not told of an end"


def check_node(node: MeshNode) -> None:
    """See that a node at rest has nothing left over, and that its counters add up."""
    mesh = node.mesh
    assert mesh.statistics().half_open == 0, "a handshake is left"
    linked = sum(peer.link.outgoing is not None for peer in mesh.peers.values())
    assert mesh.statistics().outbound == linked, "a connection leaks"
    sessions = [mesh.sessions_of(peer) for peer in mesh.peers.values()]
    assert all(sessions), "a peer has no session"
    assert mesh.statistics().sessions == sum(sessions), "a session leaks"
    assert not node.requests.waiting, "a request is left"
    assert not node.pubsub.confirming.waiting, "a confirmed publish is left"
    for tally in (node.requests.tally, node.broadcasts.tally, node.pubsub.publishing.tally):
        check_tally(tally)
    running = sum(membership.statistics().running + membership.statistics().queued for membership in node.memberships)
    assert len(node.serving.in_progress) == running, "a job is left"
    for membership in node.memberships:
        check_membership(membership)
    for subscription in node.pubsub.subscriptions:
        check_subscription(subscription)


def check_tally(tally: Tally, waiting: int = 0) -> PatternStatistics:
    """sent = answered + handed over + expired + refused + lost, and ``waiting`` are still in progress."""
    statistics = tally.statistics()
    ended = (
        statistics.answered
        + statistics.handed_over
        + statistics.expired
        + statistics.refused
        + sum(statistics.lost.values())
    )
    assert statistics.sent == ended + waiting, statistics
    assert statistics.waiting == waiting
    return statistics


def check_membership(membership: WorkerPool) -> None:
    """Every request that was received had one end."""
    it = membership.statistics()
    ended = it.served + it.failed + it.expired + it.cancelled + it.refused
    assert it.received == ended + it.running + it.queued, it


def check_subscription(subscription: Subscription) -> None:
    """received = delivered + dropped + malformed + expired + waiting."""
    it = subscription.statistics()
    assert it.received == it.delivered + it.dropped + it.malformed + it.expired + it.waiting, it
    assert it.waiting_bytes >= 0
    assert (it.waiting == 0) <= (it.waiting_bytes == 0), it


@asynccontextmanager
async def open_meshes(
    *names: str,
    config: Config | None = None,
    seed: int = 0,
    latency: tuple[float, float] = (0.0001, 0.0005),
    loss: float = 0.0,
    capacity: int = 64,
    linked: bool = True,
) -> AsyncIterator[Fleet]:
    """Open so many nodes and link them to each other; use it with the ``autojump_clock`` fixture.

    Whatever happens inside takes at most a day of virtual time.
    """
    network = MemoryNetwork(seed=seed, latency=latency, loss=loss, capacity=capacity)
    fleet = Fleet(network, config or Config(), seed)
    with trio.fail_after(86_400):
        async with AsyncExitStack() as stack:
            for name in names:
                await stack.enter_async_context(fleet.open_node(name))
            if linked:
                await fleet.link()
            yield fleet
            network.loss = 0.0
            await fleet.check()
