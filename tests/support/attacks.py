"""Members that break the rules: frames of any content, sealed with a session that the victim has with them."""

from __future__ import annotations

import contextlib
from typing import Final, final

import trio

import iris
from iris.cluster.mesh import Mesh
from iris.kernel import kinds
from iris.kernel.wire import Message, encode_batch


@final
class Attacker:
    """A member of the realm that sends what it likes to one other node, in the session that they have.

    Attributes:
        mesh: of the member.
        victim: the mesh that it attacks.
        url: where that one is linked to again when it has ended the link.
    """

    def __init__(self, mesh: Mesh, victim: Mesh, url: str | None = None) -> None:
        self.mesh: Final = mesh
        self.victim: Final = victim
        self.url: Final = url or victim.listening[0]

    def seal(self, *messages: Message) -> bytes:
        """Return the frame that carries these messages."""
        return self.seal_batch(encode_batch(list(messages)))

    def seal_batch(self, batch: bytes) -> bytes:
        """Return the frame that carries a batch."""
        session = self.mesh.peers[self.victim.node].session
        assert session is not None
        return session.seal(batch)

    def send(self, frame: bytes) -> None:
        """Send a frame by the connection to the victim, if it is still there."""
        peer = self.mesh.peers.get(self.victim.node)
        outgoing = None if peer is None else peer.link.outgoing
        if outgoing is not None:
            with contextlib.suppress(trio.ClosedResourceError):
                outgoing.send_nowait(frame)

    def nested(self, kind: int, depth: int, inner: Message = (kinds.PING, 1)) -> bytes:
        """Return a frame in a FORWARD to the victim in a frame in a FORWARD ...: so many, or of CARRY."""
        session = self.mesh.peers[self.victim.node].session
        assert session is not None
        first = session._sequence
        frame = b""
        for number in range(depth, -1, -1):  # what is outside is opened first, and has the lowest number
            session._sequence = first + number
            frame = self.seal(inner if number == depth else self.around(kind, frame))
        session._sequence = first + depth + 1
        return frame

    def around(self, kind: int, frame: bytes) -> Message:
        """Return the FORWARD or CARRY that brings a frame to the victim."""
        node = bytes.fromhex(self.victim.node)
        if kind == kinds.FORWARD:
            return (kind, node, frame)
        return (kind, 16, self.victim.tag.site, node, self.mesh.tag.site, bytes.fromhex(self.mesh.node), frame)

    async def wait_linked(self) -> None:
        """Wait until both ends have the link, which the last frame may have ended."""
        with trio.fail_after(60):
            while not self.is_linked:
                with contextlib.suppress(iris.IrisError):
                    await self.mesh.connect([self.url])
                await trio.sleep(0.05)

    @property
    def is_linked(self) -> bool:
        """Whether both ends have the link."""
        near, far = self.mesh.peers.get(self.victim.node), self.victim.peers.get(self.mesh.node)
        return near is not None and far is not None and near.link.is_up and not far.leaving
