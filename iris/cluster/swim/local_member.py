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

_SENT_AT_ONCE: Final = 256
"""Linked members that are sent a change directly: one message to each instead of twelve, and at once.  With more of
them it is left to gossip, for each costs this node 20 us or more in one go."""


def signed(record: NodeRecord, trust: SignatureVerifier) -> NodeRecord:
    """Return the record with this node's signature; raise ConfigError if it exceeds the limits of a record."""
    if record.size > MAX_RECORD or len(record.addresses) > MAX_ADDRESSES or len(record.clusters) > MAX_CLUSTERS:
        raise ConfigError(
            f"node record: {record.size} bytes, {len(record.addresses)} addresses, {len(record.clusters)} clusters: "
            f"the limits are {MAX_RECORD}, {MAX_ADDRESSES} and {MAX_CLUSTERS}"
        )
    return structs.replace(record, signature=trust.sign(record.statement()))


@final
class LocalMember:
    """This node's own record, and its refutations."""

    def __init__(self, context: SwimContext) -> None:
        self._context = context
        self._refutable_from = -math.inf
        self._pending = False
        self._repeatable_from = -math.inf
        self.refutations = 0

    @property
    def renewal(self) -> Renewal:
        """The present incarnation in its short form."""
        own = self._context.view.own
        return Renewal(node=own.node, incarnation=own.incarnation, signature=own.signature)

    def publish(self, record: NodeRecord) -> None:
        """Sign ``record``, one incarnation up, and publish it.

        Raises:
            ConfigError: it exceeds the limits of a record; nothing has changed.
        """
        context = self._context
        record = signed(structs.replace(record, incarnation=context.view.own.incarnation + 1), context.trust)
        context.view.set_own(record)
        context.spread(record)

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
        own = self._context.view.own
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
            self._send_to_linked()

    def _send_to_linked(self) -> None:
        """Send each linked member a change, unless they are too many; one that is linked later gets it then."""
        context = self._context
        linked = [node for node in context.view.live if context.links.is_linked(node)]
        if linked and len(linked) <= _SENT_AT_ONCE:
            for node in linked:
                context.send_updates(node, kinds.State, False, updates=[context.view.own])
            if context.links.partners() is None:
                context.sent_directly(context.view.own.node)

    def leave(self) -> None:
        """Publish that this node leaves, and tell a dozen members at once: it may be gone in a moment."""
        context = self._context
        self.publish(structs.replace(context.view.own, leaving=True))
        for node in context.pick_partners(context.config.update_sends):
            context.send_updates(node, kinds.Gossip, updates=[context.view.own])

    def accused(self, incarnation: int) -> bool:
        """Somebody holds this node suspect or dead; True if this is the news that makes it refute."""
        context = self._context
        own = context.view.own
        if own.leaving or incarnation > own.incarnation:
            # Nobody honest knows an incarnation that this node has not had.  To go above it would let a liar drive the
            # number to its limit, after which nothing could be refuted.
            return False
        if incarnation < own.incarnation:
            if context.now >= self._repeatable_from:
                self._repeatable_from = context.now + _REPEAT_SPACING
                context.spread_record(own, self.renewal)
            return False
        if self._pending:
            return False
        if context.now >= self._refutable_from:
            self._refute()
        else:
            self._pending = True
            context.timers.at(self._refutable_from, self._refute_late)
        return True

    def _refute_late(self) -> None:
        self._pending = False
        if not self._context.view.own.leaving:
            self._refute()

    def _refute(self) -> None:
        context = self._context
        self._refutable_from = context.now + _REFUTATION_SPACING
        self.refutations += 1
        context.health.refuted()
        own = context.view.own
        record = signed(structs.replace(own, incarnation=own.incarnation + 1), context.trust)
        # From here on every claim against the former incarnation is void, wherever and whenever it arrives.
        context.view.set_own(record)
        context.spread_record(record, self.renewal)
