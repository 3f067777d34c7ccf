"""``python -m benchmarks.state`` with less: what a change and a join cost."""

from __future__ import annotations

from trio.testing import MockClock

from benchmarks.state import join, overwrite, spread


async def test_changes_are_everywhere_for_few_bytes(autojump_clock: MockClock) -> None:
    run = await spread(5, 40, pause=0.02)  # in longer pauses members ask each other more than a change costs
    assert run.settled
    assert len(run.times) == 40
    assert run.percentile(0.5) <= run.percentile(1.0) == run.times[-1]
    assert 100 < run.bytes <= 2048


async def test_what_a_join_costs_grows_with_the_document() -> None:
    _, few = await join(1000)
    _, many = await join(4000)
    assert 2 * few < many < 200_000


async def test_what_is_overwritten_leaves_nothing(autojump_clock: MockClock) -> None:
    sizes, copy = await overwrite(20_000)
    assert len(sizes) == 1
    assert copy < 5000
