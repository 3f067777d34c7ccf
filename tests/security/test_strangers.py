"""A crowd of strangers at the door of a real node: it stays small, lets honest nodes in, and shows the others out."""

from __future__ import annotations

import pytest

from benchmarks.strangers import measure, percentile


@pytest.mark.parametrize("addresses", [1, 60])
async def test_a_node_under_siege_stays_small_and_reachable_and_ends_the_siege(addresses: int) -> None:
    outcome = await measure(half_open=200, slow=50, addresses=addresses)
    assert outcome.grown < 32 * 2**20
    # The median: how long the slowest ones take says more of what else this machine is doing.
    assert percentile(outcome.dials, 0.5) < 0.1
    assert len(outcome.dials) > 10
    assert len(outcome.closed) + outcome.left == 251
    assert outcome.left == 0
    assert outcome.closed[-1] < 13
