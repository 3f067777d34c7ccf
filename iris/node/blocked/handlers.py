"""Blocked handlers of one node: counted, and told to the peers, who cannot know what a silent node does."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, final

import trio
from msgspec import structs

from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.kernel.errors import NotSent
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.statistics import Statistics
from iris.kernel.wire import kinds
from iris.node.blocked.stacks import Standing
from iris.patterns.latency import OTHERS
from iris.patterns.service import Server

_MAX_HANDLERS: Final = 128
"""Handlers that are counted by name; further ones are one."""

_MOST_TOLD: Final = 256
"""Peers that are told, at most: those that wait for an answer, then others."""

_NEWS: Final = 30.0
"""Seconds for which peers that connect are told what blocked this node: they may have taken it for dead."""

_SIZE: Final = 512
"""Size in bytes that a message is counted with."""


@final
class BlockedStatistics(Statistics, frozen=True, kw_only=True):
    """Times that one handler has held up the event loop of its node for half a second or more."""

    cluster: str
    """Cluster that the handler serves.  Empty: it was no handler, but other code of the program."""
    operation: str | None
    count: int
    seconds: float
    """All of them together."""
    place: str
    """File, line and function where it stood the last time."""


@final
class BlockedHandlers(PeerObserver):
    """Counts what blocks one node, and tells its peers.  A ``BlockObserver``."""

    def __init__(self, mesh: Mesh, serving: Server) -> None:
        self._mesh = mesh
        self._serving = serving
        self._counted: dict[tuple[str, str | None], BlockedStatistics] = {}
        self._last: kinds.Blocked | None = None
        self._ended = 0.0
        self._told: set[NodeId] = set()
        """Peers that have been told of the last one."""

    def statistics(self) -> tuple[BlockedStatistics, ...]:
        """Return a snapshot of the counters, by handler."""
        return tuple(self._counted.values())

    def blocked(self, standing: Standing, seconds: float) -> None:
        """See ``BlockObserver``."""
        with self._mesh.survive("telling of a blocked handler"):
            self._told.clear()
            self._notify(_message(standing, seconds, over=False), standing)

    def went_on(self, standing: Standing, seconds: float) -> None:
        """See ``BlockObserver``."""
        with self._mesh.survive("telling of a blocked handler"):
            self._count(standing, seconds)
            self._told.clear()
            self._last, self._ended = _message(standing, seconds, over=True), trio.current_time()
            self._notify(self._last, standing)

    def peer_connected(self, peer: Peer) -> None:
        """A node is linked again, perhaps, after it has taken this one for dead."""
        if self._last is not None and peer.node not in self._told and trio.current_time() < self._ended + _NEWS:
            self._post(peer, self._last)

    def _count(self, standing: Standing, seconds: float) -> None:
        name = (standing.cluster, standing.operation)
        if name not in self._counted and len(self._counted) >= _MAX_HANDLERS:
            name = (OTHERS, None)
        before = self._counted.get(name)
        self._counted[name] = BlockedStatistics(
            cluster=name[0],
            operation=name[1],
            count=1 if before is None else before.count + 1,
            seconds=seconds if before is None else before.seconds + seconds,
            place=standing.place,
        )

    def _notify(self, message: kinds.Blocked, standing: Standing) -> None:
        waiting, number, asker = set[NodeId](), 0, None
        for job in self._serving.in_progress:
            waiting.add(job.peer.node)
            # Each request has headers of its own, be they empty, and its handler has the same object.
            if getattr(standing.given, "headers", None) is job.headers:
                asker, number = job.peer.node, job.identifier
        peers = sorted(self._mesh.peers.values(), key=lambda peer: peer.node not in waiting)[:_MOST_TOLD]
        for peer in peers:
            self._post(peer, structs.replace(message, id=number) if peer.node == asker else message)

    def _post(self, peer: Peer, message: kinds.Blocked) -> None:
        """Tell one peer.  File and line are for nodes of this realm only."""
        if peer.identity.other_realm is None:
            self._told.add(peer.node)
            with suppress(NotSent):
                peer.link.post_apart(message, _SIZE, CONTROL_RESERVE)


def _message(standing: Standing, seconds: float, *, over: bool) -> kinds.Blocked:
    operation = standing.operation
    return kinds.Blocked(0, standing.cluster, operation and operation[:256], standing.place, int(seconds * 1000), over)
