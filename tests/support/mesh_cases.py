"""What tests of the mesh share."""

from __future__ import annotations

import trio

from benchmarks.messages import array, fields_of
from iris.cluster.mesh.peer import Peer
from iris.kernel.wire.kinds import Message
from tests.support.meshes import Fleet, MeshNode

MARK = 0x7E
"""A kind of message for these tests: (number)."""


class Marks:
    """The numbers that a node has received, by sender."""

    def __init__(self, node: MeshNode) -> None:
        self.received: list[int] = []
        self.peers: list[Peer] = []
        node.mesh.register(MARK, 1, self.receive)

    def receive(self, peer: Peer, message: Message) -> None:
        self.received.append(fields_of(message)[0])
        self.peers.append(peer)


def mark(node: MeshNode, other: MeshNode, *numbers: int) -> None:
    for number in numbers:
        node.mesh.post(other.id, array(MARK, number), 0)


async def settle() -> None:
    await trio.sleep(0.1)


def fill(fleet: Fleet, node: MeshNode, other: MeshNode) -> None:
    """Post until the link takes no more."""
    link = node.peer(other).link
    while link.waiting_bytes < fleet.config.link_bytes - 200:
        link.post(array(MARK, 0), 100)
