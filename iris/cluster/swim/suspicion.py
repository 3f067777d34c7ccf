"""Suspicion timeout: how long a suspect has to refute (Lifeguard, section "Suspicion").

Rules of this file:

- A suspicion starts long and shrinks with each independent witness, to its shortest at ``needed`` witnesses.
- A claim is one witness's signed word.  A witness counts once, whatever path and how often its claim arrives.
- With ``needed`` witnesses that were *refused*, the suspect has only ``refused_grace`` left.
"""

from __future__ import annotations

import math
from typing import final

from iris.cluster.swim.gossip import Claim, Evidence
from iris.kernel.config import Config
from iris.kernel.names import NodeId


def shortest(members: int, config: Config) -> float:
    """Return the seconds a suspect has when enough witnesses agree; ``members`` includes this node.

    Grows with the logarithm of the size, as does the time a refutation needs to reach everybody.
    """
    return config.suspicion_multiplier * max(1.0, math.log10(max(1, members))) * config.probe_interval


def suspicion_timeout(witnesses: int, needed: int, members: int, config: Config) -> float:
    """Return the seconds from the first claim to death when ``witnesses`` of ``needed`` have spoken."""
    low = shortest(members, config)
    if needed <= 1 or witnesses >= needed:
        return low
    high = low * config.suspicion_max_multiplier
    return max(low, high - (high - low) * math.log(witnesses) / math.log(needed))


def witnesses_needed(others: int, config: Config) -> int:
    """Return how many witnesses settle it when ``others`` live members (this node too) could be one."""
    return max(1, min(config.suspicion_witnesses, others))


@final
class Suspicion:
    """The claims against one suspect at one incarnation."""

    __slots__ = ("claims", "incarnation", "refused_since", "since")

    def __init__(self, incarnation: int, since: float) -> None:
        self.incarnation = incarnation
        self.since = since
        self.claims: dict[NodeId, Claim] = {}
        self.refused_since = math.inf

    def __repr__(self) -> str:
        return f"<Suspicion of incarnation {self.incarnation} by {len(self.claims)}>"

    def would_help(self, witness: NodeId, evidence: Evidence, needed: int) -> bool:
        """Return whether a claim adds something, before its signature is checked."""
        held = self.claims.get(witness)
        if held is not None:
            return evidence > held.evidence
        return len(self.claims) < needed or (evidence is Evidence.REFUSED and self.refused() < needed)

    def add(self, claim: Claim, now: float) -> None:
        """Accept a claim that ``would_help`` and whose signature is good."""
        self.claims[claim.witness] = claim
        if claim.evidence is Evidence.REFUSED and self.refused_since == math.inf:
            self.refused_since = now

    def refused(self) -> int:
        """Return how many witnesses were refused."""
        return sum(claim.evidence is Evidence.REFUSED for claim in self.claims.values())

    def evidence(self) -> Evidence:
        """Return the stronger evidence of those claimed."""
        return Evidence.REFUSED if self.refused_since != math.inf else Evidence.SILENT

    def deadline(self, needed: int, members: int, config: Config) -> float:
        """Return when the suspect is dead unless it refutes."""
        deadline = self.since + suspicion_timeout(len(self.claims), needed, members, config)
        if self.refused() >= needed:
            # Its operating system said to each of them that no process listens.  Silence has to be waited for, since it
            # may be slowness; this is not slowness.
            deadline = min(deadline, self.refused_since + config.refused_grace)
        return deadline
