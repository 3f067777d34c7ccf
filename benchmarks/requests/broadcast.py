"""What a broadcast costs its sender, by the number of members: nodes in one process, on a network in memory.

Counted is the processor time of the sender's own tasks: what it sends, seals, signs and receives.  There are no system
calls, which would be two for each frame on a real network and favour the tree even more; and no membership, whose work
does not depend on broadcasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple, final

import trio
import trio.testing

import iris
from benchmarks.requests.task_time import TaskTime, marked
from iris.kernel.ids import NodeId
from iris.patterns.relay import divided
from tests.support.meshes import Fleet, MeshNode, open_meshes


class Cost(NamedTuple):
    """What one broadcast to so many members costs its sender."""

    members: int
    seconds: float
    messages: float
    told_once: bool


@final
class Crowd:
    """A sender and members, linked where broadcasts of this sender go."""

    def __init__(self, fleet: Fleet, stack: AsyncExitStack, sender: MeshNode) -> None:
        self.told: Counter[NodeId] = Counter()
        self.sender = sender
        self._fleet = fleet
        self._stack = stack
        self._members: dict[NodeId, MeshNode] = {}

    async def grow(self, count: int, nursery: trio.Nursery) -> None:
        """Add members until there are ``count``."""
        for index in range(len(self._members), count):
            member = await self._stack.enter_async_context(self._fleet.open_node(f"member-{index}"))
            crowd = iris.Service("crowd")

            async def note(_: iris.Message, node: NodeId = member.id) -> None:
                self.told[node] += 1

            crowd.broadcast(note)
            await self._stack.enter_async_context(member.serve(crowd))
            await self.sender.mesh.connect([member.url], expected=member.id)
            nursery.start_soon(member.relays.run)
            self._members[member.id] = member
        await self._link(self.sender.relays.tree(tuple(self._members)).parts)

    async def _link(self, parts: Sequence[Sequence[NodeId]]) -> None:
        for head, *behind in parts:
            for node in behind:
                await self._members[head].mesh.connect([self._members[node].url], expected=node)
            await self._link(divided(behind, self._fleet.config.relay_fan_out))

    def posted(self) -> int:
        """How many messages the sender has posted."""
        return sum(peer.link.statistics().posted for peer in self.sender.mesh.peers.values())

    async def cost(self, broadcasts: int) -> float:
        """Return the sender's processor time for one broadcast, the reports of relays included."""
        instrument = TaskTime()
        trio.lowlevel.add_instrument(instrument)
        with marked():
            for _ in range(broadcasts):
                await self.sender.broadcasts.broadcast("crowd", b"flush " * 10)
                await trio.sleep(0.005)
            await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(instrument)
        return instrument.seconds / broadcasts


async def _run(counts: Sequence[int], broadcasts: int) -> list[Cost]:
    costs: list[Cost] = []
    async with (
        open_meshes() as fleet,
        trio.open_nursery() as nursery,
        AsyncExitStack() as stack,
    ):
        with marked():
            sender = await stack.enter_async_context(fleet.open_node("sender"))
        crowd = Crowd(fleet, stack, sender)
        for count in counts:
            await crowd.grow(count, nursery)
            await crowd.cost(20)  # the first ones are slower
            crowd.told.clear()
            posted = crowd.posted()
            seconds = await crowd.cost(broadcasts)
            messages = (crowd.posted() - posted) / broadcasts
            costs.append(Cost(count, seconds, messages, list(crowd.told.values()) == [broadcasts] * count))
        nursery.cancel_scope.cancel()
    return costs


def run(counts: Sequence[int], broadcasts: int) -> list[Cost]:
    """Return, for each number of members, what one broadcast costs its sender."""
    return trio.run(_run, counts, broadcasts, clock=trio.testing.MockClock(autojump_threshold=0))


def conduct() -> bool:
    """Run it and print what it showed; tell whether 100 members cost at most three times as much as 10."""
    broadcasts = 400
    costs = run((10, 32, 33, 100, 200), broadcasts)
    print(f"\n{broadcasts} broadcasts of 60 bytes each\n")
    print("| members | sender's processor time for one | of that for 10 | messages it posts | each told once |")
    print("|---|---|---|---|---|")
    base = costs[0].seconds
    for cost in costs:
        times = f"{cost.seconds * 1e6:.0f} us | {cost.seconds / base:.1f}x"
        print(f"| {cost.members} | {times} | {cost.messages:.1f} | {'yes' if cost.told_once else 'NO'} |")
    (hundred,) = (cost.seconds for cost in costs if cost.members == 100)
    return hundred <= 3 * base and all(cost.told_once for cost in costs)
