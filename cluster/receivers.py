"""Who takes the messages of each kind: one table for nodes of the same realm, and a smaller one for those of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from iris.cluster.peer import Peer
from iris.kernel import kinds
from iris.kernel.wire import Message

MessageReceiver = Callable[[Peer, Message], None]
"""Takes one message, without awaiting.  May raise RemoteProtocolError, which is counted against the peer."""


@final
class Receivers:
    """The receivers of one node, each with how long its messages are."""

    def __init__(self) -> None:
        self.own: Final[dict[int, tuple[MessageReceiver, int]]] = {}
        self.foreign: Final[dict[int, tuple[MessageReceiver, int]]] = {}

    def add(self, kind: int, fields: int, receiver: MessageReceiver) -> None:
        """Have messages of a kind handed to ``receiver``."""
        assert kind not in self.own, f"message kind {kind:#x} is taken"
        self.own[kind] = (receiver, fields + 1)
        if kind in kinds.BETWEEN_REALMS:
            self.foreign[kind] = self.own[kind]

    def clear(self) -> None:
        """Hand out nothing any more."""
        self.own.clear()
        self.foreign.clear()
