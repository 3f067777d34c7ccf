"""What peers tell of members that cannot be: counted by the machine, and told to whoever runs this node."""

from __future__ import annotations

import logging
import math
from typing import Final, final

from iris.cluster.effects import Rejected
from iris.cluster.peer import Peer

_log: Final = logging.getLogger("iris")

TOLD_AGAIN: Final = 600.0
"""Seconds after which the same kind of offence is told once more, whoever commits it.  Where one node is revoked, many
others tell of it for a moment still."""


@final
class Offences:
    """Tells each kind of offence in one line, with the first who commits it."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Offences: {len(self._told)} kinds told>"

    def tell(self, rejected: Rejected, peer: Peer | None, now: float) -> None:
        """Say what was refused of whom; the reasons are few."""
        reason = rejected.reason
        if now >= self._told.get(reason, -math.inf) + TOLD_AGAIN:
            self._told[reason] = now
            cluster = "" if peer is None else f" of cluster {peer.identity.cluster!r}"
            _log.warning("node %s%s told of members what is refused: %s", rejected.sender, cluster, reason)
