"""Tunnels of a node: picks the member to open one to, and starts the handler of one that was opened to this node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, final, get_args

import trio

from iris.cluster.balancing import AtSite
from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.cluster.sites import Reach
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import (
    IrisError,
    NotSent,
    RemoteProtocolError,
    RequestTimeout,
    TunnelBroken,
)
from iris.kernel.names import NodeId, cluster_of
from iris.kernel.tasks import time_left
from iris.kernel.wire import kinds
from iris.patterns.books import Bookkeeper
from iris.patterns.messages import Sender
from iris.patterns.picker import MemberDirectory, Picker, nobody_serves, wait_reachable
from iris.patterns.receive_limits import Arriving
from iris.patterns.request import (
    DRAINING,
    ELSEWHERE,
    NO_SUCH_OPERATION,
    NOT_A_MEMBER,
    NOT_ALLOWED,
    PAUSED,
    TOO_LARGE,
    refusal_of,
)
from iris.patterns.service.server import Server, paused_text, refusal_text
from iris.patterns.service.service import EVERY
from iris.patterns.tunnel import (
    CloseCode,
    Ending,
    Refusal,
    Tunnel,
    TunnelEndpoint,
    TunnelsStatistics,
    TunnelState,
    TunnelTable,
)

_LOST: Final = frozenset({CloseCode.LOST, CloseCode.SILENT})

_MAX_ATTEMPTS: Final = 4


@final
class Tunnels(PeerObserver):
    """The tunnels of one node: those that it opens and those that its handlers serve.

    Args:
        reach: links another member where those that are linked refuse.
    """

    def __init__(
        self,
        mesh: Mesh,
        directory: MemberDirectory,
        serving: Server,
        config: Config,
        books: Bookkeeper,
        reach: Reach,
    ) -> None:
        self._mesh = mesh
        self._directory = directory
        self._reach = reach
        self._serving = serving
        self._config = config
        self._arriving = Arriving(mesh.refusals, mesh.node, config)
        self._table = TunnelTable(mesh, config, books.ledger, self)
        books.in_progress.append(self._table.in_progress)
        for kind in get_args(kinds.OfTunnel):
            mesh.register(kind, self._receive)
        mesh.register(kinds.TunnelMarked, self._receive_marked)

    def is_at_remote_site(self, node: NodeId) -> bool:
        """See ``TunnelHost``."""
        peer = self._mesh.peers.get(node)
        return peer is not None and peer.at_remote_site

    def now(self) -> float:
        """See ``TunnelHost``."""
        return trio.current_time()

    def statistics(self) -> TunnelsStatistics:
        """Return a snapshot of the counters."""
        return self._table.statistics()

    async def run(self) -> None:
        """Let the tunnels look at the time, until cancelled."""
        while True:
            with self._mesh.survive("tunnels"):
                self._table.expire()
            if len(self._table):
                await trio.sleep(self._config.tunnel_retry / 2)
            else:  # a node without tunnels is not woken up for them
                await self._table.wait_begun()

    # -- opening --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(
        self,
        cluster: str,
        *,
        timeout: float,
        operation: str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
        prefer: NodeId | AtSite | None = None,
    ) -> AsyncIterator[Tunnel]:
        """See ``Node.open_tunnel``."""
        flat = wire.encode_headers(headers, self._config.max_headers)
        async with await self._open(cluster, timeout, operation, flat, key, prefer) as tunnel:
            yield tunnel

    async def _open(
        self,
        cluster: str,
        timeout: float,
        operation: str | None,
        headers: wire.Headers,
        key: str | None,
        prefer: NodeId | AtSite | None,
    ) -> Tunnel:
        deadline = trio.current_time() + timeout
        picker = await wait_reachable(self._directory, cluster, deadline)
        if picker is None:
            raise nobody_serves(cluster, self._mesh, self._directory)
        tried: set[NodeId] = set()
        failure: IrisError | None = None
        for _ in range(_MAX_ATTEMPTS):
            member = picker.pick(exclude=tried, key=key, prefer=prefer)
            if member is None and tried:
                await self._reach.reach(cluster, time_left(deadline), everybody=False, tried=tried)
                picker = self._directory.picker(cluster) or picker
                member = picker.pick(exclude=tried, key=key, prefer=prefer)
            if member is None:
                break
            tried.add(member)
            try:
                end = self._table.open(member, cluster_of(cluster), operation, headers)
            except NotSent as error:
                failure = error
                continue
            await self._wait_opened(end, picker, deadline)
            if end.machine.accepted:  # the handler may have ended it already; the opener then reads how
                return self._wrap(end, cluster, operation, wire.decode_headers_untrusted(headers))
            match end.machine.refusal, end.machine.ending:
                case Refusal() as refusal, _:
                    failure = refusal_of(cluster, member, refusal.code, refusal.text, refusal.retry_after)
                    if refusal.code not in ELSEWHERE:
                        raise failure
                case _, Ending(code=CloseCode.ABORTED, by_peer=False):
                    raise RequestTimeout(f"no member of cluster {cluster!r} took the tunnel within {timeout:g} s")
                case _, ending:
                    assert ending is not None
                    if ending.code not in _LOST:
                        raise TunnelBroken(
                            f"the tunnel to cluster {cluster!r} with node {member} broke: {ending.reason}"
                        )
                    raise TunnelBroken(
                        f"node {member} of cluster {cluster!r} was lost while a tunnel to it was being opened: "
                        f"{ending.reason}"
                    )
        raise failure or nobody_serves(cluster, self._mesh, self._directory)

    async def _wait_opened(self, end: TunnelEndpoint, picker: Picker, deadline: float) -> None:
        """Wait until the opening is answered; if it is not, or this is cancelled, nothing of it is left."""
        machine = end.machine
        started = trio.current_time()
        picker.started(end.node)
        finished = False
        try:
            with trio.move_on_at(deadline):
                await end.wait(lambda: machine.state is not TunnelState.OPENING)
            finished = True
        finally:
            # Cancelled just as the acceptance arrives, the tunnel is open and nobody has it.
            answered = finished and machine.state is not TunnelState.OPENING
            if not answered and machine.ending is None:
                machine.close(CloseCode.ABORTED, "the one who asked for it no longer waits")
                end.settle()
            taken = machine.accepted or (machine.ending is not None and machine.ending.code is CloseCode.ABORTED)
            ok = answered and taken  # of a handler that fails the member is not to blame
            picker.finished(end.node, trio.current_time() - started, ok=ok)

    # -- being opened to ------------------------------------------------------------------------------------

    def accept(self, opening: kinds.TunnelOpen, end: TunnelEndpoint) -> Refusal | None:
        """See ``TunnelHost``."""
        membership = self._serving.memberships.get(opening.cluster)
        peer = self._mesh.peer(end.node)
        # First: whether a cluster that is not exported is served here does not show in the answer.
        if peer is not None and not peer.may_ask(opening.cluster):
            return Refusal(code=NOT_ALLOWED, text=refusal_text(opening.cluster, peer))
        if membership is None or membership.draining:
            return Refusal(code=NOT_A_MEMBER if membership is None else DRAINING)
        if peer is None or not membership.service.allows(peer.identity):
            text = "the caller is unknown" if peer is None else refusal_text(opening.cluster, peer)
            return Refusal(code=NOT_ALLOWED, text=text)
        if membership.is_paused():
            membership.paused += 1
            return Refusal(code=PAUSED, text=paused_text(membership.service))
        tunnels = membership.service.tunnels
        handler = tunnels.get(opening.operation) or tunnels.get(EVERY)
        if handler is None:
            wanted = "tunnels" if opening.operation is None else f"tunnels for {opening.operation!r}"
            return Refusal(code=NO_SUCH_OPERATION, text=f"cluster {opening.cluster!r} does not serve {wanted}")
        excess = self._arriving.headers_excess(opening.headers)
        if excess is not None:
            self._arriving.refused("tunnel", excess, peer.node, peer.identity.caller, opening.cluster)
            return Refusal(code=TOO_LARGE, text=excess.text)
        try:
            headers = wire.decode_headers_untrusted(opening.headers)
        except RemoteProtocolError as error:
            return Refusal(code="malformed", text=str(error))
        membership.accept_tunnel(handler, self._wrap(end, opening.cluster, opening.operation, headers))
        return None

    def _wrap(self, end: TunnelEndpoint, cluster: str, operation: str | None, headers: Mapping[str, str]) -> Tunnel:
        peer = self._mesh.peer(end.node)
        return Tunnel(
            end,
            limit=self._config.max_payload,
            sender=Sender(peer.identity.caller if peer is not None else "", end.node),
            cluster=cluster,
            operation=operation,
            headers=headers,
        )

    # -- what the mesh says ---------------------------------------------------------------------------------

    def _receive(self, peer: Peer, message: kinds.OfTunnel) -> None:
        self._table.receive(peer.node, message)

    def _receive_marked(self, peer: Peer, marked: kinds.TunnelMarked) -> None:
        self._table.receive_marked(peer.node, marked.mark)

    def holds(self, node: NodeId) -> bool:
        """Return whether there is a tunnel with a node."""
        return self._table.has(node)

    def frames_lost(self, peer: Peer) -> None:
        """Compare the progress of both ends: frames may be lost."""
        self._table.link_reset(peer.node)

    def member_expelled(self, node: NodeId, cluster: str) -> None:
        """Break the tunnels that were opened to a node as a member of a cluster that it may serve no more."""
        self._table.member_lost(node, cluster, f"node {node} is no member of cluster {cluster!r} any more")

    def peer_removed(self, peer: Peer, reason: str) -> None:
        """Break every tunnel with the node."""
        self._table.node_lost(peer.node, reason)
