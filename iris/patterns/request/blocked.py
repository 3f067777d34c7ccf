"""Blocked members: those that say that a handler holds them up, so that they live and answer nothing."""

from __future__ import annotations

import logging
import math
from typing import Final, final

from iris.cluster.mesh import Peer
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds

_log: Final = logging.getLogger("iris")

_PAUSE: Final = 10.0
"""Seconds between two lines about one member: what it says is its own to say, as often as it likes."""

_MAX_MEMBERS: Final = 1024
"""Members that are remembered: those that have spoken last."""


@final
class BlockedMembers:
    """Reports of members of the handlers that hold them up.  They may say anything, and as often as they like.

    Attributes:
        now: what holds up each member that has said so, and has neither gone on nor answered since.
    """

    def __init__(self) -> None:
        self.now: Final[dict[NodeId, kinds.Blocked]] = {}
        self._logged: dict[NodeId, float] = {}
        self._begun: set[NodeId] = set()
        """Members of which the beginning was logged, and the end was not."""

    def __repr__(self) -> str:
        return f"<BlockedMembers: {len(self.now)}>"

    def receive(self, node: NodeId, message: kinds.Blocked, now: float) -> bool:
        """Note what a member says of itself; return whether it is to be logged, at the time ``now``."""
        self.now.pop(node, None)
        if not message.over:
            self.now[node] = message
            if len(self.now) > _MAX_MEMBERS:
                del self.now[next(iter(self.now))]
        elif node in self._begun:
            self._begun.discard(node)
            return True
        if now < self._logged.get(node, -math.inf) + _PAUSE:
            return False
        self._logged.pop(node, None)
        self._logged[node] = now
        if len(self._logged) > _MAX_MEMBERS:
            oldest = next(iter(self._logged))
            del self._logged[oldest]
            self._begun.discard(oldest)
        if not message.over:
            self._begun.add(node)
        return True

    def of(self, node: NodeId) -> kinds.Blocked | None:
        """Return what holds up a member now.  None: it has not said that something does."""
        return self.now.get(node)

    def forget(self, node: NodeId) -> None:
        """Forget what holds up a member that is linked no more.

        When it was logged is remembered: else a member would have a line for each link that it makes anew.
        """
        self.now.pop(node, None)


def log_blocked(peer: Peer, message: kinds.Blocked, *, waits: bool) -> None:
    """Log what a member says of itself; ``waits`` if a request waits for it here."""
    _log.log(
        logging.WARNING if waits else logging.INFO,
        "node %s of cluster %r %s",
        peer.node,
        peer.identity.cluster,
        described(message),
        extra={
            "cluster": message.cluster or None,
            "operation": message.operation,
            "peer": peer.node,
            "reason": "blocked",
            "cause": f"{peer.node} {message.over}",
        },
    )


def check_blocked(message: kinds.Blocked) -> None:
    """Raise RemoteProtocolError if a place would command a terminal or begin a line: it is in texts of errors."""
    if not message.place.isprintable():
        raise RemoteProtocolError("a place in a program is text of one line")


def place_in(message: kinds.Blocked) -> str:
    """Return the part of ``described`` that is for programs of the realm only."""
    return f" at {message.place}"


def described(message: kinds.Blocked) -> str:
    """Return what a member says, as the end of a sentence."""
    which = "" if message.operation is None else f" of operation {message.operation!r}"
    handler = f"its handler{which} in {message.cluster!r}" if message.cluster else "code of its program"
    seconds = message.elapsed / 1000
    if message.over:
        return f"was blocked for {seconds:.1f} s, and goes on: {handler} stood{place_in(message)}"
    return f"is blocked, not dead: {handler} stands{place_in(message)}, for {seconds:.1f} s so far"
