"""An outcome of the demo in which everything is right, for tests to spoil."""

from __future__ import annotations

import dataclasses
from typing import Any

from iris.demo.checks import Outcome
from iris.demo.data import CarrierFigures

SHA = "ab" * 32


def counters(sent: int, **others: Any) -> dict[str, Any]:
    """Return counters of a stage in which everything was answered, except for ``others``."""
    right: dict[str, Any] = {
        "sent": sent,
        "answered": sent,
        "handed_over": 0,
        "expired": 0,
        "refused": 0,
        "lost": {},
        "waiting": 0,
    }
    return right | others


def right_outcome(**changes: Any) -> Outcome:
    """Return the outcome of five flights: 0, 1 and 4 of one carrier, 2 and 3 of another that never arrived."""
    figures = {
        "AA": CarrierFigures(flights=3, arrived=2, mean_delay=1.5, id_sum=5, id_square_sum=17),
        "ZZ": CarrierFigures(flights=2, arrived=0, mean_delay=None, id_sum=5, id_square_sum=13),
    }
    board = {"changes": 4, "digest": SHA}
    outcome = Outcome(
        rows=5,
        pandas=figures,
        spark=dict(figures),
        asked={
            "asked": 12,
            "hours": 10,
            "right": 12,
            "wrong": 0,
            "failed": 0,
            "errors": [],
            "counters": counters(12),
        },
        killed="SIGKILL",
        changed={
            **board,
            "boards": [board] * 3,
            "surveys": 2,
            "counters": counters(12),
            "survey_counters": counters(6),
        },
        boards=3,
        archived={
            "bytes": 100,
            "sha256": SHA,
            "receipt": {"bytes": 100, "sha256": SHA},
            "counters": counters(4),
        },
        published={"confirmed": 5, "counters": counters(5)},
        seconds={"Publish the flights": 1.0},
        total_seconds=2.0,
        peak_memory=2**30,
    )
    return dataclasses.replace(outcome, **changes)
