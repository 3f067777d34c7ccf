"""Checks of the demo: a pure function from the outcome of its stages to what is right and what is not.

Nothing here starts, asks or waits for anything: the same outcome gives the same checks.  ``Counters`` are those of one
pattern over one stage, as they travel from a process to the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from iris.demo.data import CarrierFigures
from iris.patterns.books import PatternStatistics


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Fates of the messages of a stage; after it, sent = answered + handed over + expired + refused + lost."""

    sent: int
    answered: int
    handed_over: int
    expired: int
    refused: int
    lost: Mapping[str, int]
    """Lost messages by reason."""
    waiting: int

    @property
    def add_up(self) -> bool:
        """True if the fate of every message is known."""
        ended = self.answered + self.handed_over + self.expired + self.refused + sum(self.lost.values())
        return self.waiting == 0 and self.sent == ended

    @property
    def nothing_failed(self) -> bool:
        """True if everything was answered, or handed over where nobody answers."""
        return self.sent == self.answered + self.handed_over

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Counters:
        """Read what ``as_fields`` wrote."""
        return cls(**fields)

    def as_fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dataclasses.asdict(self)


def count_all(statistics: PatternStatistics) -> Counters:
    """Return what was counted since the node started."""
    return Counters(
        sent=statistics.sent,
        answered=statistics.answered,
        handed_over=statistics.handed_over,
        expired=statistics.expired,
        refused=statistics.refused,
        lost=dict(statistics.lost),
        waiting=statistics.waiting,
    )


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


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that one run of the demo has seen.  The results are those that the processes reported."""

    rows: int
    pandas: Mapping[str, CarrierFigures]
    spark: Mapping[str, CarrierFigures]
    asked: Mapping[str, Any]
    """Result of ``Tower.ask``."""
    killed: str
    """The signal that ended one weather member."""
    changed: Mapping[str, Any]
    """Result of ``Tower.change_gates``."""
    boards: int
    """Members of the boards cluster."""
    archived: Mapping[str, Any]
    """Result of ``Tower.fill_archive``."""
    published: Mapping[str, Any]
    """Result of the publisher."""
    seconds: Mapping[str, float]
    """Duration of each stage in seconds."""
    total_seconds: float
    peak_memory: int
    """Peak memory in bytes; 0 if unknown."""

    @property
    def counters(self) -> dict[str, Counters]:
        """The sender's counters of each pattern."""
        found = {
            "request": self.asked["counters"],
            "broadcast": self.changed["counters"],
            "survey": self.changed["survey_counters"],
            "tunnel": self.archived["counters"],
            "publish": self.published["counters"],
        }
        return {pattern: Counters.from_fields(fields) for pattern, fields in found.items()}

    @property
    def expected_sent(self) -> dict[str, int | None]:
        """Number of messages of each pattern that must have been sent; None if any number is right."""
        return {
            "request": self.asked["asked"],
            "broadcast": self.changed["changes"] * self.boards,
            "survey": self.changed["surveys"] * self.boards,
            "tunnel": None,
            "publish": self.rows,
        }


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so, and what was found."""

    name: str
    ok: bool
    found: str


def figures_from_report(reported: Mapping[str, Mapping[str, Any]]) -> dict[str, CarrierFigures]:
    """Read what the Spark process reported."""
    return {carrier: CarrierFigures(**fields) for carrier, fields in reported.items()}


def check_outcome(outcome: Outcome) -> tuple[Check, ...]:
    """Check everything that the demo promises."""
    return (
        *_check_figures(outcome),
        *_check_requests(outcome),
        *_check_boards(outcome),
        _check_archive(outcome),
        *_check_counters(outcome),
    )


def differing_carriers(spark: Mapping[str, CarrierFigures], pandas: Mapping[str, CarrierFigures]) -> list[str]:
    """Return the carriers about which the two do not say exactly the same."""
    return sorted(carrier for carrier in spark.keys() | pandas.keys() if spark.get(carrier) != pandas.get(carrier))


def _check_figures(outcome: Outcome) -> Iterator[Check]:
    wrong = differing_carriers(outcome.spark, outcome.pandas)
    yield Check(
        "Spark and pandas agree",
        not wrong,
        f"they differ about {', '.join(wrong)}" if wrong else f"on all {len(outcome.pandas)} carriers, to the last bit",
    )
    counted = sum(figures.flights for figures in outcome.spark.values())
    # A lost event and a doubled one leave the count right, but not the sum of the numbers and that of their squares.
    ids = sum(figures.id_sum for figures in outcome.spark.values())
    squares = sum(figures.id_square_sum for figures in outcome.spark.values())
    rows = outcome.rows
    once = (counted, ids, squares) == (rows, rows * (rows - 1) // 2, (rows - 1) * rows * (2 * rows - 1) // 6)
    yield Check("every event is counted once", once, f"{counted:,} of {rows:,} flights")


def _check_requests(outcome: Outcome) -> Iterator[Check]:
    asked = outcome.asked
    errors: Sequence[str] = asked["errors"]
    yield Check(
        "no idempotent request failed",
        outcome.killed == "SIGKILL" and asked["failed"] == 0 and asked["asked"] >= asked["hours"],
        f"{asked['asked']:,} asked, {asked['failed']:,} failed, one of three members ended with {outcome.killed}"
        + "".join(f"; {error}" for error in errors),
    )
    yield Check(
        "every observation is that of the table",
        asked["wrong"] == 0 and asked["right"] == asked["asked"],
        f"{asked['right']:,} right, {asked['wrong']:,} wrong",
    )


def _check_boards(outcome: Outcome) -> Iterator[Check]:
    changed = outcome.changed
    expected = {"changes": changed["changes"], "digest": changed["digest"]}
    same = sum(board == expected for board in changed["boards"])
    yield Check(
        "every board shows every gate change in order",
        same == len(changed["boards"]) == outcome.boards,
        f"{changed['changes']:,} changes on {same} of {outcome.boards} boards",
    )


def _check_archive(outcome: Outcome) -> Check:
    sent = {"bytes": outcome.archived["bytes"], "sha256": outcome.archived["sha256"]}
    receipt: Mapping[str, Any] = outcome.archived["receipt"]
    return Check(
        "the archive holds the table, bit by bit",
        receipt == sent,
        f"{sent['bytes']:,} bytes, SHA-256 {sent['sha256'][:12]}...; archive: {receipt['sha256'][:12]}...",
    )


def _check_counters(outcome: Outcome) -> Iterator[Check]:
    expected = outcome.expected_sent
    for pattern, counters in outcome.counters.items():
        right_number = expected[pattern] in {None, counters.sent}
        lost = sum(counters.lost.values())
        yield Check(
            f"{pattern} counters add up, nothing is lost",
            counters.add_up and right_number and counters.nothing_failed,
            f"{counters.sent:,} = {counters.answered:,} + {counters.handed_over:,} + {counters.expired:,} "
            f"+ {counters.refused:,} + {lost:,}"
            + (f"; {counters.waiting:,} without a fate" if counters.waiting else "")
            + ("" if right_number else f"; {expected[pattern]:,} were to be sent"),
        )
