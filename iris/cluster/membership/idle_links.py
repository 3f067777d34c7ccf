"""Idle links: those that neither end keeps or uses are ended, so that a node of a large realm has few.

One end proposes it.  The other one agrees, and asks nothing of the first any more; or it says nothing, because it uses
the link.  Then the first one says goodbye, unless it has found a use meanwhile: so nothing is on its way when the link
ends.  Members of versions that do not know the proposal keep their links.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final, Protocol, final

import trio

from iris.cluster.membership.membership import Membership
from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.kernel.errors import NotSent
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds

_ROUND: Final = 10.0
"""Seconds between looks at the links."""

IDLE: Final = 30.0
"""Seconds without a use after which a link is idle, give or take a look."""

_AGAIN: Final = 60.0
"""Seconds between proposals to a node that keeps the link."""

_AGREED: Final = 2.0
"""Seconds within which the other end has to agree."""

_WITHDRAWN: Final = 5.0
"""Seconds for which the end that has agreed waits for the goodbye; more than ``_AGREED``, or it would come later."""

PROPOSE, AGREE, KEEP = 0, 1, 2
"""Steps: see ``kinds.Unused``."""


class UsedMembers(Protocol):
    """Members that a program asks, as ``iris.cluster.sites.MemberReach`` knows them.  Plain calls."""

    def used_since(self, time: float, /) -> Collection[NodeId]:
        """Return the members of this site that were linked to be asked, as far as their clusters were asked since."""
        ...


@final
class IdleLinks(PeerObserver):
    """Ends the idle links of one member.

    Args:
        used: what the program asks.
    """

    of_clients = False

    def __init__(self, mesh: Mesh, membership: Membership, used: UsedMembers) -> None:
        self._mesh = mesh
        self._membership = membership
        self._used = used
        self._since: dict[NodeId, float] = {}
        """Time at which each node was linked; where a link stayed after all, when its end may be asked for again."""
        self._proposed: dict[NodeId, float] = {}
        self._withdrawn: dict[NodeId, float] = {}
        """Nodes that are asked nothing any more, and the time until which their goodbye is waited for."""
        self._looked = -math.inf
        self._asked: Collection[NodeId] = ()
        """Who was asked, at the last look."""
        mesh.register(kinds.Unused, self._receive)

    def __repr__(self) -> str:
        return f"<IdleLinks: {len(self._proposed)} proposed, {len(self._withdrawn)} withdrawn>"

    async def run(self) -> None:
        """Look at the links now and then; run it in one task."""
        while True:
            await trio.sleep(_ROUND)
            now = trio.current_time()
            for node in [node for node, until in self._withdrawn.items() if now >= until]:
                self._restore(node)
            used = self._look(now)
            for peer in self._mesh.peers.values():
                idle = now >= self._since.get(peer.node, now) + IDLE and peer.node not in self._withdrawn
                asked_lately = now < self._proposed.get(peer.node, -_AGAIN) + _AGAIN
                if idle and not asked_lately and self._may_end(peer, used):
                    self._proposed[peer.node] = now
                    self._post(peer, PROPOSE)

    def _look(self, now: float) -> Collection[NodeId]:
        """Return who is asked; looked up once a second, for a peer may propose as often as it likes."""
        if now >= self._looked + 1.0:
            self._looked, self._asked = now, self._used.used_since(now - IDLE)
        return self._asked

    def _may_end(self, peer: Peer, used: Collection[NodeId]) -> bool:
        node = peer.node
        return (
            node not in used
            and self._mesh.is_between_members(peer)
            and not (peer.other_realm or peer.at_remote_site or peer.leaving)
            and self._membership.knows(node)
            and not self._membership.wants(node)
            and not self._mesh.is_held(peer)
        )

    def _post(self, peer: Peer, step: int) -> bool:
        try:
            peer.link.post(kinds.Unused(step), 0, CONTROL_RESERVE)
        except NotSent:
            return False
        return True

    def _receive(self, peer: Peer, message: kinds.Unused) -> None:
        node, now = peer.node, trio.current_time()
        if message.step == KEEP:
            self._restore(node)
            return
        if message.step == PROPOSE and (node in self._withdrawn or now < self._since.get(node, now)):
            return  # who says neither goodbye nor that it stays would have callers wait for it for ever
        proposed = now < self._proposed.get(node, -_AGREED) + _AGREED
        if message.step == PROPOSE:
            # Of two that propose it at one time the one with the lesser id agrees.
            waits = proposed and self._mesh.node > node
            if not waits and self._may_end(peer, self._look(now)) and self._post(peer, AGREE):
                self._proposed.pop(node, None)
                self._withdrawn[node] = now + _WITHDRAWN
                peer.parting = True
                self._membership.withdraw(node)
        elif proposed and self._may_end(peer, self._used.used_since(now - IDLE)):  # what was asked meanwhile as well
            del self._proposed[node]
            self._membership.withdraw(node)
            self._mesh.part(peer, "neither end uses the link")
        else:
            self._post(peer, KEEP)

    def _restore(self, node: NodeId) -> None:
        """Use a link again that was to end."""
        if self._withdrawn.pop(node, None) is None:
            return
        peer = self._mesh.peers[node]
        peer.parting = False
        self._since[node] = trio.current_time() + _AGAIN / 2
        if peer.link.is_up:
            self._membership.restore(node)
        else:
            self._mesh.drop(node, "neither end used the link, and its connection has ended")

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """A link was made, and is used perhaps."""
        self._since[peer.node] = trio.current_time()

    def frames_lost(self, peer: Peer) -> None:
        """What was agreed may be lost: the link stays."""
        self._proposed.pop(peer.node, None)
        self._restore(peer.node)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """The link has ended, for this reason or another."""
        for table in (self._since, self._proposed, self._withdrawn):
            table.pop(peer.node, None)
