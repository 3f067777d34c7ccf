"""Dispatch table: the handler of each message kind, with smaller ones for clients and other realms, and the loopback.

The loopback is the link of a node to itself: it serves its own requests and receives its own events as others do.
Messages are encoded and decoded as for any peer, so that a handler never shares objects with its caller; nothing is
sealed and nothing leaves the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol, final

import trio

from iris.cluster.mesh.peer import Peer
from iris.cluster.work import Work
from iris.kernel.config import Config
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import LinkOwner
from iris.kernel.wire import BatchDecoder, Message, kinds
from iris.security.identity import PeerIdentity

MessageReceiver = Callable[[Peer, Any], None]
"""Receiver of one message, which does not wait.  May raise RemoteProtocolError, which is counted against the peer."""

_decoder: Final[BatchDecoder[Message]] = BatchDecoder(*kinds.BY_KIND.values())


class FailedMessages(Protocol):
    """The owner of the links, which an unexpected error costs: ``Mesh``."""

    def message_failed(self, peer: Peer, kind: str, error: Exception) -> None:
        """A receiver has raised what nobody expected.  Called while the frame is handled; must not block or raise."""
        ...

    def kinds_unknown(self, peer: Peer, unknown: set[int]) -> None:
        """A peer has sent messages of kinds that this version does not have.  Called as the other one is."""
        ...


@final
class Dispatcher:
    """The handlers of one node by the type of message.

    Args:
        refusals: counts messages that nobody takes, by reason.
        failures: notified of messages whose receivers failed.
    """

    def __init__(self, refusals: Counter[str], failures: FailedMessages) -> None:
        self._refusals = refusals
        self._failures = failures
        self.own: Final[dict[type[Message], MessageReceiver]] = {}
        self.other_realm: Final[dict[type[Message], MessageReceiver]] = {}
        self.clients: Final[dict[type[Message], MessageReceiver]] = {}

    def add(self, kind: type[Message], receiver: MessageReceiver) -> None:
        """Register ``receiver`` for messages of a kind."""
        assert kind not in self.own, f"there is a receiver of {kind.__name__}"
        self.own[kind] = receiver
        if kind in kinds.BETWEEN_REALMS:
            self.other_realm[kind] = receiver
        if kind in kinds.OF_CLIENTS:
            self.clients[kind] = receiver

    def dispatch_untrusted(self, peer: Peer, batch: bytes | memoryview, work: Work | None = None) -> None:
        """Hand out the messages of a batch, as long as nothing of them ends the link to the peer.

        Args:
            peer: the sender.
            batch: the messages.
            work: work that may still be done for the frame that it was carried in, if it was.

        Raises:
            RemoteProtocolError: it cannot be decoded, or is too much; nobody has got anything of it.  Messages of kinds
                that this version does not have are left out: later versions send them, and what both know goes on.
        """
        # Tables rather than a check in each receiver: for clients and peers of other realms other kinds do not exist.
        receivers = (
            self.other_realm if peer.identity.other_realm is not None else self.clients if peer.client else self.own
        )
        if not receivers:
            return
        unknown: set[int] = set()
        messages = _decoder.decode_untrusted(batch, None, unknown)
        if unknown:
            self._refusals["message of a kind that this version does not have"] += 1
            self._failures.kinds_unknown(peer, unknown)
        if work is not None:
            work.add_messages(len(messages))
        for message in messages:
            if peer.leaving:
                self._refusals["message of a peer that is gone"] += 1
                return
            receiver = receivers.get(type(message))
            if receiver is None:
                self._refusals["message of a kind that is not taken"] += 1
                continue
            try:
                receiver(peer, message)
            except RemoteProtocolError:
                self._refusals[f"message of kind {type(message).__name__}"] += 1
            except NotSent:
                self._refusals["answer without room on the link"] += 1
            except Exception as error:  # noqa: BLE001 -- a peer must not be able to end the node
                self._failures.message_failed(peer, type(message).__name__, error)

    def deliver(self, peer: Peer, message: Message) -> None:
        """Hand out a message that came inside of another one; raises what its receiver raises."""
        receiver = self.own.get(type(message))
        if receiver is not None:
            receiver(peer, message)

    def clear(self) -> None:
        """Hand out nothing any more."""
        self.own.clear()
        self.other_realm.clear()
        self.clients.clear()


@final
class _Unsealed:
    """A session that does not seal: its frames stay in this process."""

    def seal(self, body: bytes | bytearray | memoryview) -> bytes:
        """See ``FrameSession.seal``."""
        return bytes(body)


@final
class _Back:
    """The loopback: an ``OutgoingConnection`` that hands each batch to its own node."""

    def __init__(self, peer: Peer, receivers: Dispatcher) -> None:
        self._peer = peer
        self._receivers = receivers

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        self._receivers.dispatch_untrusted(self._peer, frame)
        return True

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``; there is always room."""
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""


def loopback(identity: PeerIdentity, config: Config, receivers: Dispatcher, owner: LinkOwner | None = None) -> Peer:
    """Return the node as its own peer; ``receivers`` get each batch."""
    peer = Peer(identity, None, (), config, owner=owner)
    peer.link.use(_Unsealed())
    peer.link.attach(_Back(peer, receivers))
    return peer
