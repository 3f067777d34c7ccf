"""Takeovers by an election with real processes and real engines; ``tests.support.takeover`` says what is looked at."""

from __future__ import annotations

import pytest
import trio

from tests.spark_bridge.election.test_engines import needs_etcd, needs_postgres
from tests.support.takeover import run_away, run_turns


@needs_etcd
@pytest.mark.timeout(3600)  # a hundred take 20 minutes, and twice that on a busy machine
@pytest.mark.parametrize("turns", [3, pytest.param(100, marks=pytest.mark.long)])
def test_a_primary_that_is_gone_is_succeeded_by_etcds_election(turns: int) -> None:
    shown = trio.run(run_turns, "etcd", turns)
    assert len(shown.served) == turns
    assert shown.leases


@needs_postgres
@pytest.mark.parametrize("turns", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_primary_that_is_gone_is_succeeded_by_an_election_in_postgresql(turns: int) -> None:
    shown = trio.run(run_turns, "postgres", turns)
    assert len(shown.served) == turns


@needs_etcd
@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.long)])
def test_while_etcd_is_away_confirmations_go_on_and_nobody_takes_over(seconds: float) -> None:
    assert trio.run(run_away, seconds) > 0
