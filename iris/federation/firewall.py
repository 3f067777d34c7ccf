"""Firewall: which frames a gateway forwards between its own site and others, though it cannot read them (sans-IO).

A session may begin if one of its two ends is exported to the other's site, whichever end begins it: after a failure
either may.  Only first frames of handshakes are examined.  All other frames are useless to a node that has neither
begun the session nor answered to it.  They may also take another route than the first frame, so no gateway could keep
state for them.

Each neighbour has a rate in bytes; frames beyond it are dropped.  The sessions notice: a gap in their counters is a
loss, and what depended on it is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, final

from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.token_bucket import TokenBucket

NOT_EXPORTED: Final = "not exported"
TOO_FAST: Final = "beyond the rate"

_FIRST: Final = bytes((wire.HANDSHAKE_INIT,))


@final
class Firewall:
    """Firewall of a site: which frames pass its border, and at which rate.

    Args:
        is_exported: tells whether this gateway exports something to a site that a node here serves or subscribes to.
        is_offered: tells the same of a node of another site, as far as this gateway imports it.
        rate: bytes per second that one neighbour may send in the long run, and at once; None: any.
    """

    def __init__(
        self,
        is_exported: Callable[[NodeId, str], bool],
        is_offered: Callable[[str, NodeId], bool],
        rate: float | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        """Frames that did not pass, by reason."""
        self._is_exported = is_exported
        self._is_offered = is_offered
        self._rate = rate
        self._buckets: dict[NodeId, TokenBucket] = {}

    def __repr__(self) -> str:
        return f"<Firewall: {sum(self.refused.values())} frames refused>"

    def refusal(self, member: NodeId, site: str, remote: NodeId, frame: bytes) -> str | None:
        """Return why a frame between a node of this site and one of another may not pass, or None."""
        # The type byte is all that a gateway reads of a frame. What follows is encrypted between the two ends, whose
        # keys it does not have; so the rule is about who may begin, and never about what is said.
        if frame[:1] != _FIRST or self._is_offered(site, remote) or self._is_exported(member, site):
            return None
        self.refused[NOT_EXPORTED] += 1
        return NOT_EXPORTED

    @property
    def is_limited(self) -> bool:
        """True if neighbours have a rate, so that every frame counts."""
        return self._rate is not None

    def within_rate(self, neighbour: NodeId, size: int, now: float) -> bool:
        """Return whether a neighbour may send so many bytes more; they count if it may.

        A frame passes while anything is left, and what it takes beyond that is paid back first: one that is larger than
        all that may come at once would never pass otherwise.
        """
        if self._rate is None:
            return True
        bucket = self._buckets.get(neighbour)
        if bucket is None:
            bucket = self._buckets[neighbour] = TokenBucket(self._rate, self._rate, now)
        if bucket.level(now) <= 0:
            self.refused[TOO_FAST] += 1
            return False
        bucket.owe(size)
        return True

    def forget(self, neighbour: NodeId) -> None:
        """A neighbour is gone."""
        self._buckets.pop(neighbour, None)
