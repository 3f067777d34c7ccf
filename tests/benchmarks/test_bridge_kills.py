"""The kills of docs/reference/spark.md, a few of them: a real cluster, master and workers, loses what it runs."""

from __future__ import annotations

import collections

import pytest

from benchmarks.bridge.kills import VICTIMS, choose_victims, run_kills

SEED = 141
"""With it the driver dies early, and the others while it starts again; of twenty an executor is the last: Spark's start
is what takes time, and happens twice."""


def test_what_was_confirmed_is_in_sparks_output_once_when_driver_and_bridge_are_killed() -> None:
    outcome = run_kills(["driver", "bridge"], seed=SEED, pause=0.3, rate=300.0, executors=0)
    assert outcome.kills == {"bridge": 1, "driver": 1}
    assert outcome.acknowledged > 50
    assert outcome.good, outcome


@pytest.mark.long
@pytest.mark.parametrize(("count", "executors"), [(4, 1), (20, 2)])
def test_what_was_confirmed_is_in_sparks_output_once_whoever_is_killed(count: int, executors: int) -> None:
    victims = choose_victims(count, seed=SEED, costly=1)
    outcome = run_kills(victims, seed=SEED, pause=0.3, rate=300.0, executors=executors)
    cheap = count // 2 - 1
    assert outcome.kills == {"publisher": cheap, "bridge": cheap, "driver": 1, "executor": 1}
    assert outcome.acknowledged > 100
    assert outcome.good, outcome


@pytest.mark.parametrize(("count", "costly"), [(20, None), (21, None), (20, 2), (4, 1), (3, 0), (1, None)])
def test_the_victims_are_as_many_as_wanted_and_the_same_for_the_same_seed(count: int, costly: int | None) -> None:
    victims = choose_victims(count, 7, costly)
    assert victims == choose_victims(count, 7, costly)
    assert len(victims) == count
    assert set(victims) <= set(VICTIMS)
    counts = collections.Counter(victims)
    if costly is None:
        assert max(counts.values()) - min(counts[victim] for victim in VICTIMS) <= 1
    else:
        assert counts["driver"] == counts["executor"] == costly
        assert abs(counts["publisher"] - counts["bridge"]) <= 1
