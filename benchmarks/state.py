"""Documents of whole nodes, in one process on the network in memory and the real clock: what a change costs and takes.

    python -m benchmarks.state [MEMBERS] [CHANGES] [OVERWRITES]

Members write values of 100 bytes, one after the other, two a second.  Every member follows the document and notes when
it has each of them.  Bytes are those that all links have sent, sealed, in the time after each change, less what they
send in as long a time without one.  Two members overwrite 100 keys, and their sizes are compared meanwhile.  In memory
there is no kernel and no cable: the time is that of the processor, which all members share.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import sys
import time
from contextlib import AsyncExitStack
from typing import Final, final

import trio

import iris
import iris.testing
from iris.patterns.state.entries import encode

SIZE: Final = 100
_PAUSE: Final = 0.25
_JOIN_KEYS: Final = 100_000


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Result of a run.

    Attributes:
        changes: number of changes.
        times: seconds from each change until the last member had it, ascending.
        bytes: bytes that one change cost for each member that got it.
        settled: True if all members were equal at the end.
    """

    members: int
    changes: int
    times: tuple[float, ...]
    bytes: float
    settled: bool

    def percentile(self, share: float) -> float:
        """Return the time below which a share of the changes was everywhere."""
        return self.times[math.ceil(share * len(self.times)) - 1]


async def spread(members: int, changes: int, pause: float = _PAUSE) -> Spread:
    """Have members of one document write, and measure."""
    had: dict[str, list[float]] = {}

    async def follow(state: iris.SharedState) -> None:
        async for change in state.watch("change.*"):
            had.setdefault(change.key, []).append(trio.current_time())

    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node("prices")) for _ in range(members)]
        states = [await stack.enter_async_context(node.state("prices", timeout=60)) for node in nodes]
        for node in nodes:
            await node.wait_for("prices", members, timeout=60)
        nursery = await stack.enter_async_context(trio.open_nursery())
        for state in states:
            nursery.start_soon(follow, state)
        await trio.sleep(20 * pause)
        wrote: dict[str, float] = {}
        cost = 0
        for number in range(changes):
            key, before = f"change.{number}", sent(nodes)
            wrote[key] = trio.current_time()
            states[number % members][key] = "x" * SIZE
            await trio.sleep(pause)
            between = sent(nodes)
            await trio.sleep(pause)
            cost += between - before - (sent(nodes) - between)
        for state in states:
            await state.settled(timeout=60)
        times = sorted(max(had[key]) - began for key, began in wrote.items())
        everywhere = all(len(had[key]) == members for key in wrote)
        equal = len({state._replica.digest() for state in states}) == 1
        nursery.cancel_scope.cancel()
    share = cost / changes / (members - 1)
    return Spread(members=members, changes=changes, times=tuple(times), bytes=share, settled=equal and everywhere)


def sent(nodes: list[iris.Node]) -> int:
    """Return the bytes that the links of all nodes have sent."""
    return sum(link.bytes_sent for node in nodes for link in node.statistics().links.values())


async def join(keys: int) -> tuple[float, int]:
    """Return the seconds until a new member has a document of many keys, and the bytes that went over for it."""
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        first = await stack.enter_async_context(network.open_node("prices"))
        state = await stack.enter_async_context(first.state("prices"))
        for number in range(keys):
            state[f"key.{number}"] = number
        new = await stack.enter_async_context(network.open_node("prices"))
        before, began = sent([first, new]), trio.current_time()
        joined = await stack.enter_async_context(new.state("prices", timeout=60))
        taken = trio.current_time() - began
        assert len(joined) == keys
        return taken, sent([first, new]) - before


async def overwrite(count: int) -> tuple[set[int], int]:
    """Have one member overwrite 100 keys; return the sizes that two members had meanwhile, and that of their copies."""
    sizes: set[int] = set()
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node("prices")) for _ in range(2)]
        states = [await stack.enter_async_context(node.state("prices", timeout=60)) for node in nodes]
        await nodes[0].wait_for("prices", 2, timeout=60)
        for number in range(count):
            states[0][f"key.{number % 100}"] = 1_000_000 + number % 7
            if number % 1000 == 999:
                await trio.lowlevel.checkpoint()
            if number % (count // 20) == count // 20 - 1:
                await states[0].settled(timeout=60)
                sizes |= {state.statistics().bytes for state in states}
        copy = len(encode((states[1]._replica.vector, states[1]._replica.all_entries())))
    return sizes, copy


async def main(members: int, changes: int, overwrites: int) -> None:
    """Print the figures."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    began = time.thread_time()
    taken, size = await join(_JOIN_KEYS)
    print(
        f"a member joins a document of {_JOIN_KEYS:,} keys: {taken:.2f} s, {size / 1e6:.1f} MB; "
        f"{time.thread_time() - began:.2f} s of the processor with writing them"
    )
    began = time.thread_time()
    sizes, copy = await overwrite(overwrites)
    print(
        f"{overwrites:,} overwrites of 100 keys: {sorted(sizes)} bytes at each member, a copy of {copy} bytes; "
        f"{time.thread_time() - began:.0f} s of the processor"
    )
    run = await spread(members, changes)
    print(
        f"a change of {SIZE} bytes among {members} members: {run.bytes:.0f} bytes for each; {run.changes} changes were "
        f"everywhere within {run.percentile(0.5) * 1000:.0f} ms (p50), {run.percentile(0.99) * 1000:.0f} ms (p99), "
        f"{run.times[-1] * 1000:.0f} ms (most); equal at the end: {run.settled}"
    )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    members, changes, overwrites = (*given, *(50, 200, 1_000_000)[len(given) :])
    trio.run(main, members, changes, overwrites)
