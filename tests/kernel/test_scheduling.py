"""The tests themselves: the same seed gives the same run."""

from __future__ import annotations

import trio

from tests.support.scheduling import seed_scheduler


def trace(seed: int) -> list[int]:
    """Return the order in which ten tasks came to run."""
    order: list[int] = []

    async def work(number: int) -> None:
        for _ in range(10):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(work, number)

    seed_scheduler(seed)
    trio.run(main)
    return order


def test_the_same_seed_gives_the_same_order_of_tasks() -> None:
    assert trace(1) == trace(1)


def test_another_seed_gives_another_order() -> None:
    assert len({tuple(trace(seed)) for seed in range(5)}) == 5
