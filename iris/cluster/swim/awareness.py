"""Awareness, the local health multiplier: how much this node doubts itself before it doubts others.

Source: Lifeguard, section "Local Health".

A node that is starved of CPU or network sees everybody else fail.  The score counts the signs of that; probes
are sent less often and waited for longer, and gossip is sent less often, by the factor ``1 + score``.

Beside it stands how late this node has done lately what was due: where processors are short, everything that takes
several processes takes so many times that, and a node that waits for it has to wait longer.
"""

from __future__ import annotations

from typing import Final, final

MAX_SCORE: Final = 8
"""Probes are at most nine times slower.  The value of Lifeguard and of memberlist."""

_MAX_BY_OTHERS: Final = 2
"""A malicious accuser must not be able to blind this node."""

_FADING: Final = 0.9
"""Share of a lateness that remains when the next thing is done in time: 1 % after 44 of them, or 4 s of gossip."""


@final
class Awareness:
    """The local health score, from 0 (well) to ``MAX_SCORE``.

    Attributes:
        lateness: seconds by which this node did lately what was due too late; the worst counts, and fades.
    """

    __slots__ = ("lateness", "score")

    def __init__(self) -> None:
        self.score = 0
        self.lateness = 0.0

    def __repr__(self) -> str:
        return f"<Awareness {self.score}>"

    @property
    def factor(self) -> int:
        """Factor by which probing slows down: 1 when well."""
        return 1 + self.score

    def late(self, seconds: float) -> None:
        """Note that something that was due was done so many seconds late."""
        self.lateness = max(seconds, _FADING * self.lateness)

    def answered(self) -> None:
        """A probe was answered in time."""
        self.score = max(0, self.score - 1)

    def missed(self, asked: int, reported: int) -> None:
        """A probe failed.  ``reported`` of the ``asked`` helpers at least reported so.

        Each silent helper speaks against this node.  If all have reported in time its own network works, as an
        answer would have shown: else the smaller side of a partition, where most probes fail, would probe ever
        more slowly.  With nobody to ask, the failure itself counts.
        """
        if asked and reported >= asked:
            self.answered()
        else:
            self._add(asked - reported if asked else 1)

    def refuted(self) -> None:
        """Others suspected this node: it may have been slow.  Their word alone slows it no further than this."""
        if self.score < _MAX_BY_OTHERS:
            self._add(1)

    def stalled(self) -> None:
        """This node was not run when it should have been."""
        self._add(1)

    def _add(self, points: int) -> None:
        self.score = min(MAX_SCORE, self.score + points)
