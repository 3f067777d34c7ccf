"""Cases of work queues among real processes, with few jobs; ``python -m benchmarks.queue`` has many."""

from __future__ import annotations

import pytest

from benchmarks.queue.cases import expiry, kills, poison, shares
from benchmarks.queue.failovers import failovers


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_no_job_is_lost_by_kills_and_no_more_is_done_twice_than_was_in_hand(seed: int) -> None:
    found = kills(1_000, pause=0.5, seed=seed, workers=2, keys=250)
    assert found.good, found.figures


@pytest.mark.long  # tests/spark_bridge/copies/test_tables.py does it in one process
def test_no_job_is_lost_with_a_primary_and_its_disk_and_no_more_is_done_twice_than_was_in_hand() -> None:
    found = failovers(6_000, turns=3, pause=0.5, workers=2, keys=500, work=0.02)
    assert found.good, found.figures


@pytest.mark.long
def test_workers_share_the_jobs_of_many_keys_evenly() -> None:
    found = shares(1_000, work=0.01)
    assert found.good, found.figures


@pytest.mark.long  # tests/spark_bridge/queues/test_queues.py counts the attempts in one process
def test_poison_is_a_dead_letter_after_exactly_five_attempts() -> None:
    found = poison(150, every=30)
    assert found.good, found.figures


@pytest.mark.long
def test_no_job_is_begun_after_it_has_expired() -> None:
    found = expiry(600)
    assert found.good, found.figures
