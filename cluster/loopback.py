"""The link of a node to itself: it serves its own requests and hears its own events, on the same way as others do.

Messages are encoded and decoded as for any peer, so that a handler never shares objects with its caller; nothing is
sealed and nothing leaves the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import trio

from iris.cluster.peer import Peer
from iris.kernel.config import Config
from iris.security.identity import PeerIdentity


@final
class _Unsealed:
    """Makes a frame of a batch that stays here."""

    def seal(self, body: bytes | bytearray | memoryview) -> bytes:
        """See ``FrameSession.seal``."""
        return bytes(body)


@final
class _Back:
    """An ``Outgoing`` that hands each batch to its own node."""

    def __init__(self, receive: Callable[[bytes], None]) -> None:
        self._receive = receive

    def send_nowait(self, frame: bytes) -> bool:
        """See ``Outgoing.send_nowait``."""
        self._receive(frame)
        return True

    async def wait_writable(self) -> None:
        """See ``Outgoing.wait_writable``; there is always room."""
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """See ``Outgoing.close``."""


def loopback(identity: PeerIdentity, config: Config, receive: Callable[[Peer, bytes], None]) -> Peer:
    """Return the node as its own peer; ``receive`` is called with each batch."""
    peer = Peer(identity, None, (), config)
    peer.link.use(_Unsealed())
    peer.link.attach(_Back(lambda batch: receive(peer, batch)))
    return peer
