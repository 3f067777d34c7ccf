"""Choosing a member: power of two choices on latency times outstanding requests, own site first.

Plain calls: this is on the way of every request.  Two members are drawn and the better one is taken; its score is
the EWMA of its latency times the requests outstanding there plus one, plus the queue delay it reported.  Drawing two
is enough to keep the worst member almost free of load, and needs no scan of all (Mitzenmacher 2001).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from random import Random
from typing import Final, final

from iris.kernel.ids import NodeId

_WEIGHT: Final = 0.2
"""Of the newest latency in the average: about the last ten requests count."""

_UNKNOWN: Final = 0.001
"""Seconds assumed of a member that has not answered yet: it is tried early, and not flooded."""

_PENALTY: Final = 2.0
"""A request that failed counts like one that took so many times longer than the average, and at least _SLOW."""
_SLOW: Final = 0.05

_GRAY_DELAY: Final = 1.0
"""A member whose work waits this many seconds gets none while there are others."""

_SPILL_DELAY: Final = 0.25
"""Other sites are asked when every local member reports at least this queue delay."""


@final
class _Score:
    __slots__ = ("delay", "latency", "outstanding", "site", "suspended")

    def __init__(self, site: str) -> None:
        self.site = site
        self.latency = _UNKNOWN
        self.outstanding = 0
        self.delay = 0.0
        self.suspended = False

    @property
    def cost(self) -> float:
        return self.latency * (self.outstanding + 1) + self.delay


@final
class Balancer:
    """The members of one cluster that can be asked.

    Args:
        random: draws the two candidates.
        site: the asking node's own.
    """

    def __init__(self, random: Random, *, site: str = "") -> None:
        self._random = random
        self._site = site
        self._scores: dict[NodeId, _Score] = {}
        self._preferred: list[NodeId] = []

    def __repr__(self) -> str:
        return f"<Balancer over {len(self._scores)} members>"

    @property
    def nodes(self) -> Collection[NodeId]:
        """Every member here, suspended ones included."""
        return self._scores.keys()

    def add(self, node: NodeId, site: str = "") -> None:
        """Add a member."""
        self._scores[node] = _Score(site)
        self._arrange()

    def remove(self, node: NodeId) -> None:
        """Remove a member."""
        del self._scores[node]
        self._arrange()

    def suspend(self, node: NodeId) -> None:
        """Give a member no work for now."""
        self._scores[node].suspended = True
        self._arrange()

    def resume(self, node: NodeId) -> None:
        """Give it work again."""
        self._scores[node].suspended = False
        self._arrange()

    def gray(self, node: NodeId, delay: float) -> None:
        """Take the queue delay that a member reported, in seconds."""
        score = self._scores.get(node)
        if score is not None:
            crossed = (score.delay >= _SPILL_DELAY) != (delay >= _SPILL_DELAY)
            crossed |= (score.delay >= _GRAY_DELAY) != (delay >= _GRAY_DELAY)
            score.delay = delay
            if crossed:
                self._arrange()

    def _arrange(self) -> None:
        """Work out who is asked at all: those at work, of the own site unless that is empty or full."""
        at_work = [node for node, score in self._scores.items() if not score.suspended]
        lively = [node for node in at_work if self._scores[node].delay < _GRAY_DELAY] or at_work
        local = [node for node in lively if self._scores[node].site == self._site]
        if local and any(self._scores[node].delay < _SPILL_DELAY for node in local):
            lively = local
        self._preferred = lively

    def pick(
        self, *, exclude: Collection[NodeId] = (), key: str | None = None, prefer: NodeId | None = None
    ) -> NodeId | None:
        """Return the member to ask next, or None if there is none outside ``exclude``.

        With ``key`` it is the same member as long as that one can be asked (rendezvous hashing); ``prefer`` is taken
        if it can be asked.
        """
        nodes = self._preferred
        if exclude:
            nodes = [node for node in nodes if node not in exclude]
            if not nodes:
                nodes = [
                    node for node, score in self._scores.items() if node not in exclude and not score.suspended
                ]
        count = len(nodes)
        if count == 0:
            return None
        if prefer is not None and prefer in nodes:
            return prefer
        if key is not None:
            return max(nodes, key=lambda node: _weight(key, node))
        if count == 1:
            return nodes[0]
        first = int(self._random.random() * count)
        second = int(self._random.random() * (count - 1))
        if second >= first:
            second += 1
        one, other = nodes[first], nodes[second]
        return one if self._scores[one].cost <= self._scores[other].cost else other

    def started(self, node: NodeId) -> None:
        """Count a request as outstanding at ``node``."""
        score = self._scores.get(node)
        if score is not None:
            score.outstanding += 1

    def finished(self, node: NodeId, latency: float, *, ok: bool) -> None:
        """Count it as ended after ``latency`` seconds."""
        score = self._scores.get(node)
        if score is not None:
            score.outstanding = max(0, score.outstanding - 1)
            if not ok:
                latency = max(latency, score.latency * _PENALTY, _SLOW)
            score.latency += _WEIGHT * (latency - score.latency)


def _weight(key: str, node: NodeId) -> bytes:
    return hashlib.blake2b(f"{key}\0{node}".encode(), digest_size=8).digest()
