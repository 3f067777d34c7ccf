"""Local member: what this node says about itself.  Changes, refutations, graceful leave.

Rules of this file:

- Only this node raises its own incarnation.  Each change raises it by one and signs the record anew.
- An accusation counts only against the present incarnation: an older one is answered already, a newer one is not
  known to anybody honest.
- Refutations are spaced: an accuser without end gets at most two a second out of this node, and each still comes
  long before any suspicion ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, final

from msgspec import structs

from iris.cluster.swim.context import SignatureVerifier, SwimContext
from iris.cluster.swim.gossip import Renewal
from iris.cluster.swim.records import MAX_ADDRESSES, MAX_CLUSTERS, MAX_RECORD, ClusterEntry, NodeRecord
from iris.kernel.errors import ConfigError
from iris.kernel.wire import kinds

_REFUTATION_SPACING: Final = 0.5
_REPEAT_SPACING: Final = 1.0

_TOLD_AT_ONCE: Final = 256
"""Linked members that are sent a change directly: one message to each instead of twelve, and at once.  With more of
them it is left to gossip, for each costs this node 20 us or more in one go."""


def signed(record: NodeRecord, trust: SignatureVerifier) -> NodeRecord:
    """Return the record with this node's signature.

    Raises:
        ConfigError: it exceeds the limits of a record.
    """
    if record.size > MAX_RECORD or len(record.addresses) > MAX_ADDRESSES or len(record.clusters) > MAX_CLUSTERS:
        raise ConfigError(
            f"node record: {record.size} bytes, {len(record.addresses)} addresses, {len(record.clusters)} clusters: "
            f"the limits are {MAX_RECORD}, {MAX_ADDRESSES} and {MAX_CLUSTERS}"
        )
    return structs.replace(record, signature=trust.sign(record.statement()))


@final
class LocalMember:
    """This node's own record, and its refutations."""

    def __init__(self, ground: SwimContext) -> None:
        self._ground = ground
        self._refutable_from = -math.inf
        self._pending = False
        self._repeatable_from = -math.inf
        self.refutations = 0

    @property
    def renewal(self) -> Renewal:
        """The present incarnation in its short form."""
        own = self._ground.own
        return Renewal(node=own.node, incarnation=own.incarnation, signature=own.signature)

    def publish(self, record: NodeRecord) -> None:
        """Sign ``record``, one incarnation up, and publish it.

        Raises:
            ConfigError: it exceeds the limits of a record; nothing has changed.
        """
        ground = self._ground
        record = signed(structs.replace(record, incarnation=ground.own.incarnation + 1), ground.trust)
        ground.view.set_own(record)
        ground.spread(record)

    def change(
        self,
        *,
        addresses: Iterable[str] | None,
        site: str | None,
        clusters: Iterable[ClusterEntry] | None,
        interest_version: int | None,
        proof: bytes | None,
    ) -> None:
        """Publish what is not None and differs."""
        own = self._ground.own
        record = structs.replace(
            own,
            addresses=own.addresses if addresses is None else tuple(addresses),
            site=own.site if site is None else site,
            clusters=own.clusters if clusters is None else tuple(clusters),
            interest_version=own.interest_version if interest_version is None else interest_version,
            proof=own.proof if proof is None else proof,
        )
        if record != own:
            self.publish(record)
            self._tell_linked()

    def _tell_linked(self) -> None:
        """Send each linked member a change, unless they are too many; one that is linked later gets it then."""
        ground = self._ground
        linked = [node for node in ground.view.live if ground.links.is_linked(node)]
        if linked and len(linked) <= _TOLD_AT_ONCE:
            for node in linked:
                ground.send_updates(node, kinds.State, False, updates=[ground.own])
            ground.told(ground.own.node)

    def leave(self) -> None:
        """Publish that this node leaves, and tell a dozen members at once: it may be gone in a moment."""
        ground = self._ground
        self.publish(structs.replace(ground.own, leaving=True))
        for node in ground.view.pick(ground.random, ground.config.update_sends):
            ground.send_updates(node, kinds.Gossip, updates=[ground.own])

    def accused(self, incarnation: int) -> bool:
        """Somebody holds this node suspect or dead; True if this is the news that makes it refute."""
        ground = self._ground
        own = ground.own
        if own.leaving or incarnation > own.incarnation:
            # Nobody honest knows an incarnation that this node has not had.  To go above it would let a liar drive the
            # number to its limit, after which nothing could be refuted.
            return False
        if incarnation < own.incarnation:
            if ground.now >= self._repeatable_from:
                self._repeatable_from = ground.now + _REPEAT_SPACING
                ground.spread_record(own, self.renewal)
            return False
        if self._pending:
            return False
        if ground.now >= self._refutable_from:
            self._refute()
        else:
            self._pending = True
            ground.timers.at(self._refutable_from, self._refute_late)
        return True

    def _refute_late(self) -> None:
        self._pending = False
        if not self._ground.own.leaving:
            self._refute()

    def _refute(self) -> None:
        ground = self._ground
        self._refutable_from = ground.now + _REFUTATION_SPACING
        self.refutations += 1
        ground.health.refuted()
        own = ground.own
        record = signed(structs.replace(own, incarnation=own.incarnation + 1), ground.trust)
        # From here on every claim against the former incarnation is void, wherever and whenever it arrives.
        ground.view.set_own(record)
        ground.spread_record(record, self.renewal)
