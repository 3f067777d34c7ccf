"""Unanswered requests (a passive health check), and the misbehaviour of peers that the machine has counted.

A member that owes an answer and says nothing may be dead, or gray (alive for probes, and nothing else).  Its silence is
evidence before its next probe is due.  A long request to a member that is quiet otherwise looks the same.  Asking it
costs one probe, and as long as it answers these the probes become rarer, down to one in four times the patience.

Misbehaviour is what peers say of members that cannot be: it is reported to the operator of this node.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final, final

from iris.cluster.mesh import Peer
from iris.cluster.swim import Rejected
from iris.kernel.names import NodeId

_RAREST: Final = 4.0


@final
class _Silence:
    __slots__ = ("factor", "frames", "since")

    def __init__(self, since: float, frames: int) -> None:
        self.since = since
        self.frames = frames
        self.factor = 1.0


@final
class Unanswered:
    """The requests that one node has left unanswered.  Sans-IO: the shell reports what it counts.

    Args:
        patience: seconds of silence of a member that owes an answer.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._silent: dict[NodeId, _Silence] = {}

    def __repr__(self) -> str:
        return f"<Unanswered: {len(self._silent)} members owe an answer>"

    def look(self, now: float, owing: Mapping[NodeId, int], began: float | None = None) -> list[NodeId]:
        """Return the members to be asked whether they are there.

        Args:
            now: present time in seconds.
            owing: the members that owe an answer, each with the number of frames that have come from it so far.
            began: time from which on those owe one that owed none at the last look.  None: ``now``.
        """
        for node in [node for node in self._silent if node not in owing]:
            del self._silent[node]
        doubted: list[NodeId] = []
        for node, frames in owing.items():
            silence = self._silent.get(node)
            if silence is None:
                self._silent[node] = _Silence(now if began is None else began, frames)
                continue
            if frames != silence.frames:
                if frames - silence.frames > 1:  # more than the answer to a probe: it is at work
                    silence.factor = 1.0
                silence.since, silence.frames = now, frames
            elif now - silence.since >= self._patience * silence.factor:
                doubted.append(node)
                silence.since = now
                silence.factor = min(_RAREST, 2 * silence.factor)
        return doubted


_log: Final = logging.getLogger("iris")

REPEAT_AFTER: Final = 600.0
"""Seconds after which the same kind of misbehaviour is reported once more, no matter which peer shows it.  Where one
node is revoked, many others still send its record for a moment."""


@final
class Misbehaviour:
    """Reports each kind of misbehaviour in one line, with the first node that shows it."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Misbehaviour: {len(self._reported)} kinds told>"

    def report(self, rejected: Rejected, peer: Peer | None, now: float) -> None:
        """Say what was refused of whom; the reasons are few."""
        reason = rejected.reason
        if now >= self._reported.get(reason, -math.inf) + REPEAT_AFTER:
            self._reported[reason] = now
            cluster = "" if peer is None else f" of cluster {peer.identity.cluster!r}"
            _log.warning(
                "node %s%s told of members what is refused: %s",
                rejected.sender,
                cluster,
                reason,
                extra={"peer": rejected.sender, "reason": reason, "cause": reason},
            )
