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
from typing import Final, Protocol, final

from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.token_bucket import TokenBucket

NOT_EXPORTED: Final = "not exported"
TOO_FAST: Final = "beyond the rate"

_FIRST: Final = bytes((wire.HANDSHAKE_INIT,))


class OwnExports(Protocol):
    """Exports of this gateway's own site.  Asked with each first frame of a handshake; must not block."""

    def is_exported(self, node: NodeId, site: str) -> bool:
        """Return whether a node of this site serves or subscribes to something that is exported to another site."""
        ...


class RemoteOffers(Protocol):
    """Exports of other sites, as far as this gateway imports them.  Asked as ``OwnExports`` is."""

    def offers(self, site: str, node: NodeId) -> bool:
        """Return whether something of a node of another site is imported."""
        ...


@final
class Firewall:
    """Firewall of a site: which frames pass its border, and at which rate.

    Args:
        own: exports of its own site.
        remote: exports of other sites.
        rate: bytes per second that one neighbour may send in the long run, and at once; None: any.
    """

    def __init__(self, own: OwnExports, remote: RemoteOffers, rate: float | None = None) -> None:
        self.refused: Counter[str] = Counter()
        """Frames that did not pass, by reason."""
        self._own = own
        self._remote = remote
        self._rate = rate
        self._buckets: dict[NodeId, TokenBucket] = {}

    def __repr__(self) -> str:
        return f"<Firewall: {sum(self.refused.values())} frames refused>"

    def refusal(self, member: NodeId, site: str, remote: NodeId, frame: bytes) -> str | None:
        """Return why a frame between a node of this site and one of another may not pass, or None."""
        # The type byte is all that a gateway reads of a frame. What follows is encrypted between the two ends, whose
        # keys it does not have; so the rule is about who may begin, and never about what is said.
        if frame[:1] != _FIRST or self._remote.offers(site, remote) or self._own.is_exported(member, site):
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
