"""Admission of a node: whom the newest revocation list names is not linked, nor who takes the id of another node.

It is there before the mesh, so that no handshake is finished without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import trio

from iris.cluster.membership.proofs import ProofVerifier
from iris.cluster.swim import MembershipView
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.wire import Message, kinds
from iris.security.identity import NewestRevocations, PeerIdentity

_FINAL_MESSAGES: Final = 64
_FINAL_MESSAGE_RATE: Final = 1.0
"""Revoked nodes that are shown the list at once, and each second.  A holder of the key of a revoked cluster can come as
ever other nodes; at 256 KiB for a list that would be worth his while."""


@final
class NodeAdmission:
    """The rules for links to one node; see ``PeerAdmission``.

    Args:
        revocations: the newest list that the node has seen.
        view: the membership, which knows the nodes.
        verifier: compares a node with what is known of it.
    """

    def __init__(self, revocations: NewestRevocations, view: MembershipView, verifier: ProofVerifier) -> None:
        self._revocations = revocations
        self._view = view
        self._verifier = verifier
        self._final_messages = TokenBucket(_FINAL_MESSAGES, _FINAL_MESSAGE_RATE, trio.current_time())

    def check(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError if a node is revoked, or its id is known as another node's."""
        self._revocations.check(peer)
        record = self._view.record(peer.node_id)
        if record is not None:
            self._verifier.check_known(record, peer)

    def reason(self, peer: PeerIdentity) -> str | None:
        """Return why a node is revoked; None if it is not."""
        return self._revocations.reason(peer)

    def final_messages(self, peer: PeerIdentity) -> Sequence[Message]:
        """Return what shows a node of this realm that it is revoked; not too often, for a list may be large.

        The owner's signature in it is the proof.
        """
        current = self._revocations.current
        if current is None or self._revocations.reason(peer) is None:
            return ()
        return (kinds.Revocations(current.signed),) if self._final_messages.spend(trio.current_time()) else ()
