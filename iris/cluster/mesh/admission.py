"""Admission: who may be linked, once it has proved who it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iris.kernel.wire import Message
from iris.security.identity import PeerIdentity


class PeerAdmission(Protocol):
    """The checks of a mesh on every node whose certificates are in order.  A mesh cannot be made without one.

    The methods are called while a frame is handled, with each handshake; none of them may block.
    """

    def check(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError for a node that is not to be linked."""
        ...

    def reason(self, peer: PeerIdentity) -> str | None:
        """Return why nobody of the realm talks to a node any more; None if they do."""
        ...

    def last_words(self, peer: PeerIdentity) -> Sequence[Message]:
        """Return what to send to a node of this realm that ``check`` has refused."""
        ...
