"""Blocked members: those that say that a handler holds them up, so that they live and answer nothing."""

from __future__ import annotations

import logging
import math
from typing import Final, final

from iris.cluster.mesh import Peer
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds

_log: Final = logging.getLogger("iris")

_PAUSE: Final = 10.0
"""Seconds between two lines about one member: what it says is its own to say, as often as it likes."""

_MAX_MEMBERS: Final = 1024
"""Members that are remembered: those that have spoken last."""


@final
class BlockedMembers:
    """What members say of the handlers that hold them up."""

    def __init__(self) -> None:
        self._now: dict[NodeId, kinds.Blocked] = {}
        self._logged: dict[NodeId, float] = {}

    def __repr__(self) -> str:
        return f"<BlockedMembers: {len(self._now)}>"

    def receive(self, peer: Peer, message: kinds.Blocked, now: float, *, waits: bool) -> None:
        """Note what a member says of itself, and log it.

        Args:
            peer: the member.
            message: what it says.
            now: present time.
            waits: True if a request waits for it here.
        """
        node = peer.node
        self._now.pop(node, None)
        if not message.over:
            self._now[node] = message
            if len(self._now) > _MAX_MEMBERS:
                del self._now[next(iter(self._now))]
        if message.over or now >= self._logged.get(node, -math.inf) + _PAUSE:
            self._logged.pop(node, None)
            if not message.over:
                self._logged[node] = now
                if len(self._logged) > _MAX_MEMBERS:
                    del self._logged[next(iter(self._logged))]
            _log.log(
                logging.WARNING if waits else logging.INFO,
                "node %s of cluster %r %s",
                node,
                peer.identity.cluster,
                described(message),
                extra={
                    "cluster": message.cluster or None,
                    "operation": message.operation,
                    "peer": node,
                    "reason": "blocked",
                    "cause": f"{node} {message.over}",
                },
            )

    def of(self, node: NodeId) -> kinds.Blocked | None:
        """Return what holds up a member now.  None: it has not said that something does."""
        return self._now.get(node)

    def forget(self, node: NodeId) -> None:
        """Forget a member that is linked no more."""
        self._now.pop(node, None)
        self._logged.pop(node, None)


def described(message: kinds.Blocked) -> str:
    """Return what a member says, as the end of a sentence."""
    which = "" if message.operation is None else f" of operation {message.operation!r}"
    handler = f"its handler{which} in {message.cluster!r}" if message.cluster else "code of its program"
    seconds = message.elapsed / 1000
    if message.over:
        return f"was blocked for {seconds:.1f} s, and goes on: {handler} stood at {message.place}"
    return f"is blocked, not dead: {handler} stands at {message.place}, for {seconds:.1f} s so far"
