"""A crowd of strangers at the door of a real node: it stays small, lets honest nodes in, and shows the others out."""

from __future__ import annotations

from benchmarks.strangers import measure, percentile


async def test_a_node_under_siege_stays_small_and_reachable_and_ends_the_siege() -> None:
    outcome = await measure(half_open=200, slow=50, addresses=4)
    assert outcome.grown < 32 * 2**20
    # The median: how long the slowest ones take says more of what else this machine is doing.
    assert percentile(outcome.dials, 0.5) < 0.5
    assert len(outcome.dials) > 10
    assert len(outcome.closed) + outcome.left == 251
    # Who says nothing may never have been seen by the node: the kernel lets go of such in its own time.
    assert outcome.left < 10
    assert percentile(outcome.closed, 0.99) < 15
