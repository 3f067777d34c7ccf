"""One probe of one member, and the order in which members are probed (SWIM, sections 3.1 and 4.3).

Rules of this file:

- A probe is asked directly; unanswered after ``timeout`` it is asked once more, and helpers are asked to ask.
- After twice the timeout it is over: answered directly, answered to a helper, or failed.
- Members are probed in a shuffled round, so that each is probed within one round; a new member enters the
  running round at a random place.
"""

from __future__ import annotations

import enum
from random import Random
from typing import final

from iris.cluster.timers import Timer
from iris.kernel.ids import NodeId


@final
class Verdict(enum.IntEnum):
    """What a helper reports about the member that it was asked to probe."""

    ANSWERED = 0
    SILENT = 1
    REFUSED = 2


@final
class Probe:
    """A probe under way."""

    __slots__ = ("alone", "helpers", "reached", "reports", "sent", "target", "timeout", "timer", "widened")

    def __init__(self, target: NodeId, now: float, timeout: float, *, alone: bool = False) -> None:
        self.target = target
        self.sent = now
        self.timeout = timeout
        self.alone = alone
        """Only to learn whether the direct way works: nobody is asked to help, and failing means nothing new."""
        self.timer: Timer | None = None
        self.widened = False
        self.helpers: list[NodeId] = []
        self.reports: list[NodeId] = []
        self.reached = False

    def __repr__(self) -> str:
        return f"<Probe of {self.target[:8]}>"

    @property
    def deadline(self) -> float:
        """When the next step is due: helpers, then the end."""
        return self.sent + (2 if self.widened else 1) * self.timeout

    def widen(self, helpers: list[NodeId]) -> None:
        """Unanswered so far: these helpers are asked."""
        self.widened = True
        self.helpers = helpers

    def report(self, helper: NodeId, verdict: Verdict) -> bool:
        """Take a helper's report; False if this helper was not asked or has reported."""
        if helper not in self.helpers or helper in self.reports:
            return False
        self.reports.append(helper)
        if verdict is Verdict.ANSWERED:
            self.reached = True
        return True


@final
class ProbeOrder:
    """The shuffled round."""

    __slots__ = ("_random", "_round")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._round: list[NodeId] = []

    def insert(self, node: NodeId) -> None:
        """A member joined: it may come up in the running round."""
        at = self._random.randrange(len(self._round) + 1)
        self._round.append(node)
        self._round[at], self._round[-1] = self._round[-1], self._round[at]

    def pop(self) -> NodeId | None:
        """Return the next of the round, which may have died meanwhile; None when the round is over."""
        return self._round.pop() if self._round else None

    def refill(self, members: list[NodeId]) -> None:
        """Start a new round."""
        self._round = members.copy()
        self._random.shuffle(self._round)
