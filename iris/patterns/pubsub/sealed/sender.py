"""Sender keys, sending side: events for nodes of other sites are sealed once for all of them, whatever their number.

The nodes of other sites that want the same events are an *audience*.  Each audience has a sender key, which this node
sends to each of its nodes over their sessions.  When a node joins or leaves, that makes another audience with a key of
its own.  A key is never used again once one of its nodes was given up.  Gateways forward frames that they cannot open.

All events for other sites go through one queue, whatever their audience, so each node gets them in the order of
publication.  Events for groups, repeats of confirmed events and retained values go over sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.cluster.routes import CopyRoute, Targets
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.link import CONTROL_RESERVE, Link, OpenRun
from iris.kernel.names import Entropy, NodeId
from iris.kernel.wire import kinds
from iris.security.channel import KEY_SIZE, SendingKey
from iris.security.secret import Secret

MAX_AUDIENCE: Final = 512
"""Nodes of one audience: their 8 KiB fit into a frame beside the largest payload.  More are several audiences."""

MAX_AUDIENCES: Final = 1024
"""Audiences that are remembered.  When there are more, all get new keys."""

_KEY_FRAMES: Final = 2**20
"""Frames under one key.  At 64 KiB they are 64 GiB, 2^32 blocks of AES: far below where the bounds of GCM matter."""


@final
class Audience:
    """Nodes of other sites that get the same events.  Publishers use it as they use a ``Link``."""

    __slots__ = ("_of", "copies", "key", "nodes", "secret", "targets")

    node: Final = NodeId("")
    """Empty, as it leads to no node in particular."""

    def __init__(
        self, of: SealedSender, nodes: tuple[NodeId, ...], targets: Targets, key: SendingKey, secret: Secret
    ) -> None:
        self._of = of
        self.nodes: Final = nodes
        self.copies: Final = len(nodes)
        """Number of the nodes that it leads to."""
        self.targets: Final = targets
        self.key = key
        self.secret = secret

    def __repr__(self) -> str:
        return f"<Audience of {len(self.nodes)} nodes at {len(self.targets)} sites>"

    def post(self, message: wire.Message, size: int, reserve: int = 0, growing: OpenRun | None = None) -> None:
        """Post a message, which travels in the next frame for this audience; see ``Link.post``."""
        self._of.address(self)
        self._of.link.post(message, size, reserve, growing)

    def has_room(self) -> bool:
        """See ``Link.has_room``; all audiences share a queue."""
        return self._of.link.has_room()

    def is_stalled(self, after: float) -> bool:
        """See ``Link.is_stalled``."""
        return self._of.is_stalled(after)

    async def wait_room(self) -> None:
        """See ``Link.wait_room``."""
        await self._of.link.wait_room()


@final
class SealedSender:
    """Seals this node's events for other sites, once for each audience.

    Args:
        way: route by which frames leave.
        entropy: source of keys.
    """

    def __init__(self, mesh: Mesh, route: CopyRoute, config: Config, entropy: Entropy) -> None:
        self.link: Final = Link(mesh.node, config, self)
        """The queue.  What is posted goes to the audience that was addressed last."""
        self._mesh = mesh
        self._route = route
        self._entropy = entropy
        self._audiences: dict[tuple[NodeId, ...], Audience] = {}
        self._keys = 0
        self._sealed = 0
        self._addressed: Audience | None = None
        self._turns: deque[tuple[int, Audience, SendingKey]] = deque()
        """Audiences in the queue, each with its key and the number of frames before its first one."""
        self.link.use(self)
        self.link.attach(route)
        mesh.register(kinds.SenderKeyWanted, self._receive_wanted)

    def __repr__(self) -> str:
        return f"<SealedSender for {len(self._audiences)} audiences, {self._sealed} frames>"

    @property
    def frames(self) -> int:
        """Frames sealed, each once for all of its audience."""
        return self._sealed

    @property
    def keys(self) -> int:
        """Keys made."""
        return self._keys

    def refusals(self) -> dict[str, int]:
        """Return the frames that did not leave, once for each of their nodes, by reason."""
        return {f"copy for another site: {reason}": count for reason, count in self._route.lost.items()}

    def is_stalled(self, after: float) -> bool:
        """Return whether events wait, nothing has left for ``after`` seconds, and no gateway had asked for a pause."""
        return self.link.is_stalled(after) and trio.current_time() - self._route.pause_end > after

    def link_failed(self, link: Link, error: Exception) -> None:  # noqa: ARG002 -- there is one
        """See ``LinkOwner.link_failed``."""
        self._mesh.note_unexpected("copies of events", error)

    def audiences(self, peers: Collection[Peer]) -> tuple[Audience, ...]:
        """Return the audience that consists of these nodes, or the several."""
        ordered = sorted(peers, key=lambda peer: (peer.site, peer.node))
        parts = [ordered[at : at + MAX_AUDIENCE] for at in range(0, len(ordered), MAX_AUDIENCE)]
        return tuple(self._audience(part) for part in parts)

    def _audience(self, peers: list[Peer]) -> Audience:
        nodes = tuple(peer.node for peer in peers)
        known = self._audiences.get(nodes)
        if known is not None:
            return known
        if len(self._audiences) >= MAX_AUDIENCES:
            self._audiences.clear()
        targets: dict[str, bytes] = {}
        for peer in peers:
            targets[peer.site] = targets.get(peer.site, b"") + bytes.fromhex(peer.node)
        audience = self._audiences[nodes] = Audience(self, nodes, targets, *self._new_key())
        self._hand_out(audience)
        return audience

    def _new_key(self) -> tuple[SendingKey, Secret]:
        self._keys += 1
        secret = Secret(self._entropy(KEY_SIZE))
        return SendingKey(self._keys, secret), secret

    def _hand_out(self, audience: Audience) -> None:
        for node in audience.nodes:
            self._announce(node, audience)

    def _announce(self, node: NodeId, audience: Audience) -> None:
        key = audience.key
        message = kinds.SenderKey(key.number, int(key.suite), bytes(audience.secret))
        try:
            self._mesh.post(node, message, KEY_SIZE, CONTROL_RESERVE)
        except NotSent:
            self._mesh.refusals["sender key without room on the link"] += 1  # it will be asked for

    def address(self, audience: Audience) -> None:
        """Address what is posted to ``link`` from now on to an audience."""
        if audience is self._addressed and audience.key.frames < _KEY_FRAMES:
            return
        if audience.key.frames >= _KEY_FRAMES:
            audience.key, audience.secret = self._new_key()
            self._hand_out(audience)
        self._addressed = audience
        self._turns.append((self.link.end_batch(), audience, audience.key))

    # -- FrameSession ---------------------------------------------------------------------------------------

    def seal(self, body: bytes | bytearray | memoryview) -> bytes:
        """Return the next frame in the queue, and pass its targets to the route."""
        turns = self._turns
        while len(turns) > 1 and turns[1][0] <= self._sealed:
            turns.popleft()
        _, audience, key = turns[0]
        self._sealed += 1
        # Gateways learn for which nodes the frame is, and nothing of the events: these are under the sender key, which
        # travels over end-to-end sessions only.
        self._route.address(audience.targets)
        return key.seal(body, self._sealed, self._mesh.identity.sign)

    # -- who has the key ------------------------------------------------------------------------------------

    def _receive_wanted(self, peer: Peer, wanted: kinds.SenderKeyWanted) -> None:
        for audience in self._audiences.values():
            if audience.key.number == wanted.number and peer.node in audience.nodes:
                self._announce(peer.node, audience)

    def frames_lost(self, node: NodeId) -> None:
        """Send a node its keys again: those in flight may be lost."""
        for audience in self._audiences.values():
            if node in audience.nodes:
                self._announce(node, audience)

    def peer_gone(self, node: NodeId) -> None:
        """Drop the keys of a node that is given up: they are not used again, not even for the same nodes."""
        for nodes in [nodes for nodes in self._audiences if node in nodes]:
            # The node has the key for ever. A new audience, even of the same nodes later, gets a key that it never had.
            del self._audiences[nodes]

    async def wait_sent(self) -> None:
        """Wait until everything has left."""
        await self.link.wait_drained(0)
        await self._route.wait_sent()
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Send what is posted; run it in exactly one task."""
        await self.link.run()
