"""The counters of one pattern over one stage of the demo, as they travel from a process to the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from iris.patterns.counters import PatternStatistics


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What became of the messages of a stage; after it, sent = answered + handed over + expired + refused + lost."""

    sent: int
    answered: int
    handed_over: int
    expired: int
    refused: int
    lost: Mapping[str, int]
    """By reason."""
    waiting: int

    @property
    def add_up(self) -> bool:
        """Whether the fate of every message is known."""
        ended = self.answered + self.handed_over + self.expired + self.refused + sum(self.lost.values())
        return self.waiting == 0 and self.sent == ended

    @property
    def nothing_failed(self) -> bool:
        """Whether everything was answered, or handed over where nobody answers."""
        return self.sent == self.answered + self.handed_over

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Counters:
        """Read what ``as_fields`` wrote."""
        return cls(**fields)

    def as_fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dataclasses.asdict(self)


def count_since(before: PatternStatistics, after: PatternStatistics) -> Counters:
    """Return what was counted between two snapshots of one node."""
    lost = {reason: number - before.lost.get(reason, 0) for reason, number in after.lost.items()}
    return Counters(
        sent=after.sent - before.sent,
        answered=after.answered - before.answered,
        handed_over=after.handed_over - before.handed_over,
        expired=after.expired - before.expired,
        refused=after.refused - before.refused,
        lost={reason: number for reason, number in lost.items() if number},
        waiting=after.waiting - before.waiting,
    )
