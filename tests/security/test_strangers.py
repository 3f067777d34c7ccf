"""A crowd of strangers at the door of a real node: it stays small, lets honest nodes in, and shows the others out."""

from __future__ import annotations

from benchmarks.strangers import measure, percentile


async def test_a_node_under_siege_stays_small_and_reachable_and_ends_the_siege() -> None:
    outcome = await measure(half_open=200, slow=50, addresses=4)
    assert outcome.grown < 32 * 2**20
    # Beside what it takes before the crowd comes: the rest says more of what else this machine is doing.
    assert percentile(outcome.dials, 0.5) < 0.1 + 5 * percentile(outcome.quiet_dials, 0.5)
    assert percentile(outcome.dials, 0.9) < 0.5 + 5 * percentile(outcome.quiet_dials, 0.9)
    assert len(outcome.dials) > 10
    # All of them, also those that do not even greet.
    assert (len(outcome.closed), outcome.left) == (251, 0)
    assert outcome.closed[-1] < 10
