"""Support shared by tests of the mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.peer import Peer
from iris.kernel.wire import kinds
from tests.support.meshes import MeshNode

MARK: Final = kinds.TunnelMarked
"""A message with a number that tunnels alone use otherwise."""


def receive_marks(mesh: Mesh, receiver: Callable[[Peer, kinds.TunnelMarked], None]) -> None:
    """Hand marks to ``receiver``; the tunnels of that node get none."""
    mesh.receivers.own[MARK] = receiver


class Marks:
    """The numbers that a node has received, by sender."""

    def __init__(self, node: MeshNode) -> None:
        self.received: list[int] = []
        self.peers: list[Peer] = []
        receive_marks(node.mesh, self.receive)

    def receive(self, peer: Peer, message: kinds.TunnelMarked) -> None:
        self.received.append(message.mark)
        self.peers.append(peer)


def mark(node: MeshNode, other: MeshNode, *numbers: int) -> None:
    for number in numbers:
        node.mesh.post(other.id, MARK(number), 0)


async def settle() -> None:
    await trio.sleep(0.1)
