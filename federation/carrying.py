"""Frames on their way through a gateway: where each goes next, and which go no further.

Plain calls: this is on the way of every frame between two sites.  What is carried is never waited for: where the next
link is full the frame is dropped and counted, and its session notices.  A link holds at most ``Config.link_bytes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.cluster.peer import Peer
from iris.cluster.records import node_untrusted
from iris.cluster.site_ways import HOPS
from iris.cluster.sites import GONE, NO_ROUTE, NOT_EXPORTED, Sites
from iris.federation import checkpoint
from iris.federation.checkpoint import Checkpoint
from iris.kernel import kinds
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.link import Link
from iris.kernel.wire import Message

_CODES: Final = MappingProxyType({"gone": GONE, checkpoint.NOT_EXPORTED: NOT_EXPORTED, "no route": NO_ROUTE})
"""Reasons that a sender is told."""


@final
class Carrying:
    """The frames that pass one gateway.

    Args:
        near: the mesh of its own site.
        between: the mesh of gateways.
        is_exported: whether a node of this site serves something that this gateway exports.
        transit: whether frames between other sites pass.
        rate: bytes per second that one neighbour may send; None: any.
    """

    def __init__(
        self,
        near: Mesh,
        between: Mesh,
        sites: Sites,
        is_exported: Callable[[NodeId], bool],
        *,
        transit: bool,
        rate: float | None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Frames that were not carried, by reason."""
        self.received = self.carried = self.carried_bytes = 0
        self._near = near
        self._between = between
        self._sites = sites
        self._directory = sites.directory
        self._transit = transit
        self.checkpoint: Final = Checkpoint(is_exported, self._directory.offers, rate)
        sites.forward = self._forward_near
        sites.link_to = self._own_link_to
        between.on(kinds.CARRY, 6, self._forward_far)
        between.on(kinds.CARRY_REFUSED, 6, self._forward_far)

    def __repr__(self) -> str:
        return f"<Carrying: {self.carried} of {self.received} frames carried>"

    def _forward_near(self, peer: Peer, message: Message) -> None:
        """Carry what a node of this site has handed over, or another gateway of it."""
        kind, _, site, target, source_site, source, frame = message
        own = self._directory.own
        if not self._directory.is_local(peer.node) and (source_site, node_untrusted(source)) != (own.site, peer.node):
            raise RemoteProtocolError("a node hands over frames of its own only")
        self.received += 1
        if kind == kinds.CARRY and site != own.site and source_site == own.site and type(frame) is bytes:
            reason = self.checkpoint.refusal(node_untrusted(source), site, node_untrusted(target), frame)
            if reason is not None:
                self._refuse(message, reason)
                return
        self._carry(message)

    def _forward_far(self, peer: Peer, message: Message) -> None:
        """Carry what a gateway of another site has handed over."""
        kind, hops, site, target, source_site, source, frame = message
        own = self._directory.own
        if type(hops) is not int or not isinstance(site, str) or not isinstance(source_site, str):
            raise RemoteProtocolError("a carried frame says where it comes from and where it is to go")
        if kind == kinds.CARRY_REFUSED and type(frame) is not int:
            raise RemoteProtocolError("a refusal has a reason")
        self.received += 1
        if source_site == own.site:
            self.refused["comes from this site and from outside"] += 1
            return
        if kind == kinds.CARRY:
            if type(frame) is not bytes:
                raise RemoteProtocolError("a carried frame is bytes")
            if not self.checkpoint.within_rate(peer.node, len(frame), trio.current_time()):
                self.refused[checkpoint.TOO_FAST] += 1
                return
            if site == own.site:
                reason = self.checkpoint.refusal(node_untrusted(target), source_site, node_untrusted(source), frame)
                if reason is not None:
                    self._refuse(message, reason)
                    return
        if site != own.site and not self._transit:
            self.refused["no transit"] += 1
            return
        self._carry(message)

    def _carry(self, message: Message) -> None:
        kind, hops, site, target_id, source_site, source_id, frame = message
        target = node_untrusted(target_id)
        if hops <= 0:
            self.refused["too many hops"] += 1
            return
        if site != self._directory.own.site:
            way = self._directory.way(site)
            link = None if way is None else self.link_to(way.neighbour)
        elif target == self._directory.own.gateway:
            self._deliver(message)
            return
        else:
            peer = self._near.peer(target)
            link = None if peer is None or peer.foreign else peer.link
        if link is None:
            self._refuse(message, "gone" if site == self._directory.own.site else "no route")
            return
        size = len(frame) if kind == kinds.CARRY else 0
        if not link.has_room():
            self.refused["next link full"] += 1
            return
        try:
            link.post((kind, hops - 1, site, target_id, source_site, source_id, frame), size)
        except NotSent:
            self.refused["next link full"] += 1
            return
        self.carried += 1
        self.carried_bytes += size

    def _deliver(self, message: Message) -> None:
        """Take what is for this very node."""
        kind, _, _, _, source_site, source, content = message
        self.carried += 1
        if kind == kinds.CARRY:
            self._near.receive_carried(content)
        else:
            self._sites.refused(source_site, node_untrusted(source), content)

    def _refuse(self, message: Message, reason: str) -> None:
        """Count a frame that goes no further, and tell its sender where that helps it."""
        self.refused[reason] += 1
        code = _CODES.get(reason)
        kind, _, site, target, source_site, source, _ = message
        if code is not None and kind == kinds.CARRY:
            self.received += 1
            self._carry((kinds.CARRY_REFUSED, HOPS, source_site, source, site, target, code))

    def link_to(self, neighbour: NodeId) -> Link | None:
        """Return the link to the next gateway, if frames can leave over it now."""
        peer = self._between.peers.get(neighbour) or self._near.peer(neighbour)
        return None if peer is None or peer.foreign or not peer.link.is_up else peer.link

    def _own_link_to(self, neighbour: NodeId) -> Link | None:
        """Frames of this very node take the same way as those of others, by way of its link to itself."""
        return None if self.link_to(neighbour) is None else self._near.own.link
