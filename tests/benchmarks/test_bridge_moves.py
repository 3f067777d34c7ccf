"""A driver dies, a member gets another name: few of what docs/explanation/measured/spark.md has."""

from __future__ import annotations

import pytest

from benchmarks.bridge.moves import run_moves


@pytest.mark.long  # tests/spark_bridge/datasource/test_repeated_batches.py moves members in one process
@pytest.mark.parametrize(("events", "kills"), [(2_000, 1), (100_000, 14)])
def test_each_event_is_out_once_wherever_the_notes_of_batches_are_looked_for(events: int, kills: int) -> None:
    moved = run_moves(events, kills)
    assert (moved.lost, moved.doubled) == (0, 0), moved
    assert moved.drivers + moved.members == kills
    assert moved.moves == ["member of shard 1 renamed"]
