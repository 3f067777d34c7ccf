"""Who takes the messages of each kind: one table for nodes of the same realm, and a smaller one for those of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, final

from iris.cluster.peer import Peer
from iris.cluster.work import Work
from iris.kernel import kinds
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.wire import BatchDecoder, Message

MessageReceiver = Callable[[Peer, Message], None]
"""Takes one message, without awaiting.  May raise RemoteProtocolError, which is counted against the peer."""


@final
class Receivers:
    """The receivers of one node, each with how long its messages are.

    Args:
        refusals: counts messages that nobody takes, by reason.
        failed: called with a peer, the kind of its message, and an error that nobody expected in what takes it.
    """

    def __init__(self, refusals: Counter[str], failed: Callable[[Peer, int, Exception], None]) -> None:
        self._refusals = refusals
        self._failed = failed
        self._decoder = BatchDecoder()
        self.own: Final[dict[int, tuple[MessageReceiver, int]]] = {}
        self.foreign: Final[dict[int, tuple[MessageReceiver, int]]] = {}

    def add(self, kind: int, fields: int, receiver: MessageReceiver) -> None:
        """Have messages of a kind handed to ``receiver``."""
        assert kind not in self.own, f"message kind {kind:#x} is taken"
        self.own[kind] = (receiver, fields + 1)
        if kind in kinds.BETWEEN_REALMS:
            self.foreign[kind] = self.own[kind]

    def dispatch_untrusted(self, peer: Peer, batch: bytes | memoryview, work: Work | None = None) -> None:
        """Hand out the messages of a batch, as long as nothing of them ends the link to the peer.

        Args:
            peer: who sent it.
            batch: the messages.
            work: what may still be done for the frame that it was carried in, if it was.

        Raises:
            RemoteProtocolError: it cannot be decoded, or is too much; nobody has got anything of it.
        """
        receivers = self.own if peer.identity.foreign is None else self.foreign
        if not receivers:
            return
        messages = self._decoder.decode_untrusted(batch)
        if work is not None:
            work.take(len(messages))
        for message in messages:
            if peer.leaving:
                self._refusals["message of a peer that is gone"] += 1
                return
            entry = receivers.get(message[0])
            if entry is None or len(message) != entry[1]:
                self._refusals["message of unknown kind or length"] += 1
                continue
            try:
                entry[0](peer, message)
            except RemoteProtocolError:
                self._refusals[f"message of kind {message[0]:#x}"] += 1
            except NotSent:
                self._refusals["answer without room on the link"] += 1
            except Exception as error:  # noqa: BLE001 -- a peer must not be able to end the node
                self._failed(peer, message[0], error)

    def clear(self) -> None:
        """Hand out nothing any more."""
        self.own.clear()
        self.foreign.clear()
