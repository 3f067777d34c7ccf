"""Waiting until a peer has dispatched everything that was posted to it before."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final, final

import trio

from iris.cluster.peer import Peer
from iris.kernel import kinds
from iris.kernel.errors import NotSent
from iris.kernel.ids import Entropy, NodeId
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.wire import Message, number_untrusted

_PING_AGAIN: Final = 0.25
"""Seconds after which a barrier asks again: its question may have been lost with a connection."""


@final
class Barriers:
    """The questions under way, and the answers to those of others."""

    def __init__(self, peers: Mapping[NodeId, Peer], entropy: Entropy) -> None:
        self._peers = peers
        self._entropy = entropy
        self._waiting: dict[int, tuple[NodeId, trio.Event]] = {}

    async def wait(self, node: NodeId) -> None:
        """See ``Mesh.barrier``."""
        peer = self._peers.get(node)
        if peer is None:
            return
        token = int.from_bytes(self._entropy(6))
        _, done = self._waiting[token] = node, trio.Event()
        try:
            while self._peers.get(node) is peer and not done.is_set():
                try:
                    peer.link.post((kinds.PING, token), 0, CONTROL_RESERVE)
                except NotSent:
                    await peer.link.wait_room()
                    continue
                with trio.move_on_after(_PING_AGAIN):
                    await done.wait()
        finally:
            del self._waiting[token]

    def ask(self, peer: Peer) -> None:
        """Have a peer say something, whatever."""
        with contextlib.suppress(NotSent):  # a full link has a peer that has things to say
            peer.link.post((kinds.PING, 0), 0, CONTROL_RESERVE)

    def release(self, node: NodeId) -> None:
        """Let go whoever waits for a node: it is given up."""
        for waited_for, done in self._waiting.values():
            if waited_for == node:
                done.set()

    def receive_ping(self, peer: Peer, message: Message) -> None:
        """Answer a question of a peer."""
        token = number_untrusted(message[1], "the token of a ping")
        peer.link.post((kinds.PONG, token), 0, CONTROL_RESERVE)

    def receive_pong(self, peer: Peer, message: Message) -> None:
        """Take an answer."""
        waited_for, done = self._waiting.get(message[1], (None, None))
        if done is not None and waited_for == peer.node:
            done.set()
