"""Support shared by tests of the mesh."""

from __future__ import annotations

from typing import Final

import trio

from iris.cluster.mesh.peer import Peer
from iris.kernel.wire import kinds
from tests.support.meshes import Fleet, MeshNode

MARK: Final = kinds.TunnelMarked
"""A message with a number that meshes without tunnels do not use otherwise."""


class Marks:
    """The numbers that a node has received, by sender."""

    def __init__(self, node: MeshNode) -> None:
        self.received: list[int] = []
        self.peers: list[Peer] = []
        node.mesh.register(MARK, self.receive)

    def receive(self, peer: Peer, message: kinds.TunnelMarked) -> None:
        self.received.append(message.mark)
        self.peers.append(peer)


def mark(node: MeshNode, other: MeshNode, *numbers: int) -> None:
    for number in numbers:
        node.mesh.post(other.id, MARK(number), 0)


async def settle() -> None:
    await trio.sleep(0.1)


def fill(fleet: Fleet, node: MeshNode, other: MeshNode) -> None:
    """Post until the link takes no more."""
    link = node.peer(other).link
    while link.waiting_bytes < fleet.config.link_bytes - 200:
        link.post(MARK(0), 100)
