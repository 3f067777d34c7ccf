"""Many unauthenticated peers at a real node: it stays small, admits honest nodes, and disconnects the others."""

from __future__ import annotations

from tests.support.programs.strangers import SORTS, measure, percentile


async def test_a_node_under_siege_stays_small_and_reachable_and_ends_the_siege() -> None:
    """A tenth of the siege that docs/explanation/measured/security.md tells of, and every limit that it has to keep."""
    outcome = await measure(half_open=200, slow=50, addresses=4)
    assert outcome.grown < 32 * 2**20
    # Everybody came and everybody is gone: also those that do not even greet.
    assert [len(outcome.stays[sort]) for sort in SORTS] == [100, 100, 50, 1]
    assert outcome.left == 0
    # Who keeps his place is let stay until his time is over, so that the siege was one; a frame that is too large ends
    # at its claim.
    for sort in ("silent", "greeted", "slow"):
        assert outcome.stays[sort][-1] > 4.5, sort
    assert outcome.stays["huge"][0] < outcome.stays["slow"][-1]
    # A second, beside what a dial takes before they come: that says more of what else this machine is doing.
    assert len(outcome.dials) >= 3
    assert percentile(outcome.dials, 0.5) < 1 + 5 * percentile(outcome.quiet_dials, 0.5)
