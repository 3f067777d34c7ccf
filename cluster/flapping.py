"""Nodes whose links do not live: whoever breaks them all the time is dialled less often (a machine: no clock).

The term is that of routers: RFC 2439, "BGP Route Flap Damping".  The first breaks cost nothing, for a listener that
restarts or a line that comes and goes breaks a link several times, and is to be back at once.  But each handshake takes
both ends milliseconds, closes the route and has others asked; a node that drops its links ten times a second
would have all others shake hands with it as often, for ever.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.ids import NodeId

FREE: Final = 60
"""Breaks in a row after which a node is dialled again as soon as ever: transfers go on while a network is that bad."""

EVERY: Final = 1.0
"""Seconds after which one more break is free, so that a node whose links live for so long is never waited for; and for
which a node is waited for at the most.  With five a tunnel through a network that broke all connections ten times a
second was lost, because its member was given up meanwhile."""

_REMEMBERED: Final = 1024


@final
class Flapping:
    """How often the links to each node broke lately: a bucket of tokens for each."""

    def __init__(self) -> None:
        self._left: dict[NodeId, tuple[float, float]] = {}
        """The breaks that are free still, and when that was so; the oldest one first.  Below none: what is to wait."""

    def __repr__(self) -> str:
        return f"<Flapping: {len(self._left)} nodes>"

    def broke(self, node: NodeId, now: float) -> None:
        """A link to a node broke, and neither side meant it to."""
        left = self._free(node, now)
        self._left.pop(node, None)
        self._left[node] = (max(-1.0, left - 1), now)
        if len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]

    def pause(self, node: NodeId, now: float) -> float:
        """Return how many seconds from now on a node is not dialled."""
        return max(0.0, -self._free(node, now)) * EVERY

    def _free(self, node: NodeId, now: float) -> float:
        left, since = self._left.get(node, (FREE, now))
        return min(FREE, left + max(0.0, now - since) / EVERY)
