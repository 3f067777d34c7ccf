"""A slice of ``python -m benchmarks.security revoked``."""

from __future__ import annotations

import pytest

from benchmarks.revoked import measure


@pytest.mark.long  # tests/cli/keys and tests/node/credentials do it with one node less
def test_a_revoked_node_is_cut_off_by_other_processes_and_does_not_come_back() -> None:
    outcome = measure(nodes=4, processes=1, again=0.5)
    assert len(outcome.cut) == 3
    assert all(0 < moment < 60 for moment in outcome.cut)  # before or after the command itself has ended
    assert outcome.returned == 0
