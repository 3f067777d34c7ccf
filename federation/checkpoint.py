"""Which frames a gateway carries between its own site and others, though it cannot read them: a machine.

A session may begin with a node that the other side exports, in either direction.  Once its first frame has passed,
frames between the two nodes pass both ways until nothing has passed for ``IDLE`` seconds.

Each neighbour has a rate in bytes; what is beyond is dropped.  The sessions notice: a gap in their counters is a loss,
and what depended on it is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, final

from iris.kernel import wire
from iris.kernel.ids import NodeId

IDLE: Final = 200.0
"""Seconds after which a pair of nodes has to begin anew; sessions are renewed more often."""

MAX_PAIRS: Final = 65_536
"""Pairs of nodes at one time; the one that was idle for longest makes place."""

NOT_EXPORTED: Final = "not exported"
NO_SESSION: Final = "no session"
TOO_FAST: Final = "beyond the rate"


@final
class Checkpoint:
    """The frames that pass the border of a site.

    Args:
        is_exported: whether a node of this site serves something that this gateway exports.
        is_offered: whether a node of another site does there.
        rate: bytes per second that one neighbour may send in the long run, and at once; None: any.
    """

    def __init__(
        self,
        is_exported: Callable[[NodeId], bool],
        is_offered: Callable[[str, NodeId], bool],
        rate: float | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Frames that did not pass, by reason."""
        self._is_exported = is_exported
        self._is_offered = is_offered
        self._rate = rate
        self._pairs: dict[tuple[NodeId, NodeId], float] = {}
        self._buckets: dict[NodeId, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<Checkpoint: {len(self._pairs)} pairs, {sum(self.refused.values())} frames refused>"

    def outward(self, near: NodeId, site: str, far: NodeId, frame: bytes, now: float) -> str | None:
        """Return why a frame of a node of this site may not leave, or None."""
        return self._pass(near, far, frame, now, lambda: self._is_offered(site, far))

    def inward(self, far: NodeId, near: NodeId, frame: bytes, now: float) -> str | None:
        """Return why a frame from another site may not come in, or None."""
        return self._pass(near, far, frame, now, lambda: self._is_exported(near))

    def _pass(self, near: NodeId, far: NodeId, frame: bytes, now: float, is_open: Callable[[], bool]) -> str | None:
        pair = (near, far)
        last = self._pairs.pop(pair, None)
        if last is None or now - last > IDLE:
            if not is_open():
                reason = NOT_EXPORTED if frame[:1] == bytes((wire.HANDSHAKE_INIT,)) else NO_SESSION
                self.refused[reason] += 1
                return reason
            if len(self._pairs) >= MAX_PAIRS:
                del self._pairs[next(iter(self._pairs))]
        self._pairs[pair] = now
        return None

    def within_rate(self, neighbour: NodeId, size: int, now: float) -> bool:
        """Tell whether a neighbour may send so many bytes more; they count if it may."""
        if self._rate is None:
            return True
        tokens, since = self._buckets.get(neighbour, (self._rate, now))
        tokens = min(self._rate, tokens + (now - since) * self._rate)
        if tokens < size:
            self._buckets[neighbour] = (tokens, now)
            self.refused[TOO_FAST] += 1
            return False
        self._buckets[neighbour] = (tokens - size, now)
        return True

    def forget(self, neighbour: NodeId) -> None:
        """A neighbour is gone."""
        self._buckets.pop(neighbour, None)
