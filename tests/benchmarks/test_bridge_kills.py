"""The kills of docs/spark.md, a few of them: a real standalone cluster, master and two workers, loses what it runs."""

from __future__ import annotations

from benchmarks.bridge.kills import VICTIMS, run_kills


def test_what_was_confirmed_is_in_sparks_output_once_whoever_is_killed() -> None:
    outcome = run_kills(4, seed=1, pause=1.0, rate=300.0)
    assert dict(outcome.kills) == dict.fromkeys(VICTIMS, 1)
    assert outcome.acknowledged > 100
    assert outcome.good, outcome
