"""Inspection: what a node knows and keeps, as a frozen snapshot, for tests of programs and of Iris."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from iris.cluster.mesh import Mesh, Peer
from iris.kernel.link import LinkStatistics
from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.patterns.state import SharedState

if TYPE_CHECKING:
    import iris.aio


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInspection:
    """A linked node."""

    cluster: str
    """Cluster that it speaks for."""
    site: str
    """Site of the node; empty for none."""
    kind: str
    """``tcp``, ``ipc`` or ``ws``; ``gateway``: through the gateways of two sites; ``relay``: through a third node."""
    addresses: tuple[str, ...]
    """URLs that it says it listens at."""
    client: bool
    """True if it is no member."""
    connected: bool
    """True if there is a connection to it now."""
    sessions: int
    """Number of sessions in which its frames may arrive."""
    link: LinkStatistics


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A snapshot of what a node knows and keeps.  It holds nothing of the node itself."""

    listening: tuple[str, ...]
    """URLs bound, those of the local network of processes among them."""
    peers: Mapping[NodeId, PeerInspection]
    """Nodes that it is linked to."""
    handshakes: int
    """Number of handshakes in progress."""
    suspected: frozenset[NodeId]
    """Nodes that get no new work for now."""
    sites: tuple[str, ...]
    """Other sites that gateways lead to."""
    subscribers: Mapping[str, frozenset[NodeId]]
    """Other nodes of this site that subscribe, by pattern."""
    publishers: Mapping[NodeId, frozenset[str]]
    """Roots that other nodes of this site have announced that they publish on; ``>``: on any topic."""
    kept: frozenset[NodeId]
    """Linked nodes whose links it keeps, used or not."""
    requests: int
    """Number of requests that wait for their outcomes, surveys' among them."""
    handlers: int
    """Number of requests of others that have no outcome yet."""
    confirmations: int
    """Number of runs of events that wait to be confirmed."""
    watches: int
    """Number of watches on members that are open."""
    subscriptions: int
    """Number of the node's own subscriptions that are open."""
    revocations: int
    """Number of the revocation list in force; 0 for none."""
    reports: frozenset[str]
    """Names of what is built on the node and reports on itself: ``gateway``, ``bridge``, ``door.http`` and others."""
    expelled: str | None
    """Reason why the realm has this node no more.  None if it has."""

    @property
    def waiting(self) -> int:
        """Number of entries that the node keeps for callers that wait, its own and others, and for open iterations."""
        return self.requests + self.handlers + self.confirmations + self.watches + self.subscriptions


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentInspection:
    """A snapshot of one member's copy of a document."""

    digest: bytes
    """The same at members that hold the same."""
    writer: int
    """The number with which this member writes; -1 while it has none."""
    hidden: int
    """Number of entries written anew, because another member used the number of this one."""
    claims: int
    """Number of writers' numbers that other members are known to use."""
    changes: int
    """Number of changes that are kept for watches."""
    rivals: int
    """Number of members that are known to use the number of this one."""


def inspect_document(document: SharedState) -> DocumentInspection:
    """Return a snapshot of a copy of a document; counters are in ``SharedState.statistics``."""
    replica = document._replica
    return DocumentInspection(
        digest=replica.digest(),
        writer=replica.writer,
        hidden=replica.hidden,
        claims=len(document._claimed()),
        changes=len(document._changes),
        rivals=len(document._rivals),
    )


def inspect(node: Node | iris.aio.Node) -> Inspection:
    """Return a snapshot of what a node knows and keeps; counters are in ``Node.statistics``."""
    inner = node if isinstance(node, Node) else node._inner
    parts = inner._parts
    mesh, membership, patterns = parts.mesh, parts.membership, parts.patterns
    subscribers: dict[str, set[NodeId]] = {}
    for other, pattern in patterns.pubsub.wanted():
        if other != node.id:
            subscribers.setdefault(pattern, set()).add(other)
    return Inspection(
        listening=mesh.listening,
        peers={other: _peer(mesh, peer) for other, peer in mesh.peers.items()},
        handshakes=mesh.statistics().half_open,
        suspected=frozenset(filter(membership.is_suspected, mesh.peers)),
        sites=() if parts.sites is None else parts.sites.directory.sites(),
        subscribers={pattern: frozenset(nodes) for pattern, nodes in subscribers.items()},
        publishers=patterns.pubsub.announcements.publishers,
        kept=frozenset(filter(membership.wants, mesh.peers)),
        requests=patterns.requests.waiting,
        handlers=len(patterns.serving.in_progress),
        confirmations=patterns.pubsub.confirming.waiting,
        watches=membership.watches,
        subscriptions=len(patterns.pubsub.subscriptions),
        revocations=parts.revoking.revocations.number,
        reports=frozenset(inner._reports),
        expelled=mesh.expelled(),
    )


def _peer(mesh: Mesh, peer: Peer) -> PeerInspection:
    return PeerInspection(
        cluster=peer.identity.cluster,
        site=peer.site,
        kind=peer.kind,
        addresses=peer.addresses,
        client=peer.client,
        connected=peer.link.outgoing is not None,
        sessions=mesh.sessions_of(peer),
        link=peer.link.statistics(),
    )
