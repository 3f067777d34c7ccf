"""Control messages between two nodes: goodbye (graceful leave) and ping barrier.

A node that leaves sends its peers a goodbye, after all else that it has to send, and waits a moment for theirs.
Nothing is taken from a peer behind its goodbye.  Such a peer is removed outside of the loop that reads its messages, by
one task however many peers leave at a time.

A ping barrier waits until a peer has dispatched everything that was posted to it before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, final

import trio

from iris.cluster.mesh.dispatch import MessageReceiver
from iris.cluster.mesh.peer import Peer, PeerTable
from iris.kernel.errors import NotSent
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import Entropy, NodeId
from iris.kernel.wire import Message, kinds


class DisconnectHost(Protocol):
    """The part of a mesh that goodbyes need."""

    closing: bool

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """The nodes that are linked."""
        ...

    @property
    def register(self) -> Callable[[type[Message], MessageReceiver], None]:
        """Registers who takes messages of a kind."""
        ...

    async def barrier(self, node: NodeId) -> None:
        """Wait until a peer has dispatched everything posted to it before."""
        ...

    def drop(self, node: NodeId, reason: str) -> None:
        """Drop a peer."""
        ...


@final
class Disconnects:
    """The goodbyes of one node, sent and received."""

    def __init__(self, mesh: DisconnectHost, nursery: trio.Nursery) -> None:
        self._mesh: Final = mesh
        self._nursery = nursery
        self._gone = trio.lowlevel.ParkingLot()
        self._leaving: dict[Peer, str] = {}
        """Peers of which nothing is taken any more, each with the reason."""
        mesh.register(kinds.Goodbye, self._receive)

    def gone(self) -> None:
        """A peer was removed."""
        self._gone.unpark_all()

    async def say(self, reason: str, timeout: float) -> None:
        """Send every peer a goodbye; see ``Mesh.disconnect_all``."""
        with trio.move_on_after(timeout):
            # Peers beyond another node get it first: the connection to them ends with the link to that node.
            with trio.move_on_after(timeout / 2):
                await self._part([peer for peer in self._mesh.peers.values() if peer.indirect], reason)
            await self._part(list(self._mesh.peers.values()), reason)
        await let_flushers_run()

    async def _part(self, peers: Sequence[Peer], reason: str) -> None:
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(self._mesh.barrier, peer.node)
        for peer in peers:
            with contextlib.suppress(NotSent):
                peer.link.post(kinds.Goodbye(reason), 0, CONTROL_RESERVE)
        while any(self._mesh.peers.get(peer.node) is peer for peer in peers):
            await self._gone.park()

    def _receive(self, peer: Peer, disconnect: kinds.Goodbye) -> None:
        self.part(peer, f"it said goodbye: {disconnect.reason[:200]}")

    def part(self, peer: Peer, reason: str) -> None:
        """Take nothing from a peer any more; say goodbye, and remove it outside of the loop that reads its batch."""
        peer.leaving = True
        self._leaving[peer] = reason
        if len(self._leaving) == 1:
            self._nursery.start_soon(self._drop_leaving)

    async def _drop_leaving(self) -> None:
        while self._leaving:
            leaving = dict(self._leaving)
            if not self._mesh.closing:
                for peer in leaving:
                    with contextlib.suppress(NotSent):
                        peer.link.post(kinds.Goodbye("goodbye"), 0, CONTROL_RESERVE)
                await let_flushers_run()
            for peer, reason in leaving.items():
                del self._leaving[peer]
                if self._mesh.peers.get(peer.node) is peer:
                    self._mesh.drop(peer.node, reason)


async def let_flushers_run() -> None:
    """Let what was posted leave, if there is room for it."""
    for _ in range(3):  # rounds of the scheduler
        await trio.lowlevel.cancel_shielded_checkpoint()


_PING_AGAIN: Final = 0.25
"""Seconds after which a barrier asks again: its question may have been lost with a connection."""


@final
class PingBarrier:
    """The pings in progress, and the answers to those of peers."""

    def __init__(self, peers: PeerTable, entropy: Entropy) -> None:
        self._peers = peers
        self._entropy = entropy
        self._waiting: dict[int, tuple[NodeId, trio.Event]] = {}

    async def wait(self, node: NodeId) -> None:
        """See ``Mesh.barrier``."""
        peer = self._peers.get(node)
        if peer is None:
            return
        token = int.from_bytes(self._entropy(6))
        asked: float | None = trio.current_time()
        _, done = self._waiting[token] = node, trio.Event()
        try:
            while self._peers.get(node) is peer and not done.is_set():
                try:
                    peer.link.post(kinds.Ping(token), 0, CONTROL_RESERVE)
                except NotSent:
                    await peer.link.wait_room()
                    continue
                with trio.move_on_after(_PING_AGAIN):
                    await done.wait()
                    if asked is not None:
                        peer.round_trip = trio.current_time() - asked
                asked = None  # asked again, and which question is answered cannot be told (Karn, 1987)
        finally:
            del self._waiting[token]

    def ask(self, peer: Peer) -> None:
        """Ping a peer, so that it sends something."""
        with contextlib.suppress(NotSent):  # a full link has a peer that has things to say
            peer.link.post(kinds.Ping(0), 0, CONTROL_RESERVE)

    def release(self, node: NodeId) -> None:
        """Release those who wait for a node that was removed."""
        for waited_for, done in self._waiting.values():
            if waited_for == node:
                done.set()

    def receive_ping(self, peer: Peer, ping: kinds.Ping) -> None:
        """Answer the ping of a peer."""
        peer.link.post(kinds.Pong(ping.token), 0, CONTROL_RESERVE)

    def receive_pong(self, peer: Peer, pong: kinds.Pong) -> None:
        """Receive the answer to a ping."""
        waited_for, done = self._waiting.get(pong.token, (None, None))
        if done is not None and waited_for == peer.node:
            done.set()
