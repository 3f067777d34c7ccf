"""What a broadcast costs its sender, by the number of members: whole nodes in one process, on a network in memory.

Counted is the processor time of the sender's own tasks: what it sends, seals, signs and receives.  There are no system
calls, which would be two for each frame on a real network and favour the tree even more.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio
import trio.testing

import iris
import iris.testing
from benchmarks.requests.task_time import TaskTime, marked


async def _run(counts: tuple[int, ...], broadcasts: int) -> list[tuple[int, float, int]]:
    told = 0
    crowd = iris.Service("crowd")

    async def note(_: iris.Message) -> None:
        nonlocal told
        told += 1

    crowd.broadcast(note)
    costs: list[tuple[int, float, int]] = []
    async with iris.testing.open_network(seed=1) as network, AsyncExitStack() as stack:
        with marked():
            sender = await stack.enter_async_context(network.open_node("sender", host="sender"))
        members = 0
        for count in counts:
            for index in range(members, count):
                node = await stack.enter_async_context(network.open_node("crowd", host=f"crowd-{index}"))
                await stack.enter_async_context(node.join("crowd", crowd))
            members = count
            await sender.wait_for("crowd", members=count, timeout=60)
            await trio.sleep(10)  # gossip about the last ones is over
            idle = await _cost(sender, 0, broadcasts)
            told = 0
            cost = await _cost(sender, broadcasts, broadcasts)
            await trio.sleep(1)
            costs.append((count, (cost - idle) / broadcasts, told))
    return costs


async def _cost(sender: iris.Node, broadcasts: int, steps: int) -> float:
    instrument = TaskTime()
    trio.lowlevel.add_instrument(instrument)
    with marked():
        for number in range(steps):
            if number < broadcasts:
                await sender.broadcast("crowd", b"flush " * 10)
            await trio.sleep(0.005)
    await trio.sleep(0.2)
    trio.lowlevel.remove_instrument(instrument)
    return instrument.seconds


def run(counts: tuple[int, ...], broadcasts: int) -> list[tuple[int, float, int]]:
    """Return, for each number of members, the sender's processor time for one broadcast and how many were told."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_run, counts, broadcasts, clock=clock)


def conduct() -> bool:
    """Run it and print what it showed; tell whether 100 members cost at most three times as much as 10."""
    broadcasts = 400
    costs = run((10, 32, 33, 100), broadcasts)
    print(f"\n{broadcasts} broadcasts of 60 bytes each\n")
    print("| members | sender's processor time for one | of that for 10 | told |")
    print("|---|---|---|---|")
    base = costs[0][1]
    for count, seconds, told in costs:
        print(f"| {count} | {seconds * 1e6:.0f} us | {seconds / base:.1f}x | {told / broadcasts:.0f} |")
    return costs[-1][1] <= 3 * base and all(told == count * broadcasts for count, _, told in costs)
