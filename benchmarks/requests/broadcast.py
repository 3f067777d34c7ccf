"""Cost of a broadcast or a survey to its sender, by the number of members: nodes in one process, in memory.

Counted is the processor time of the sender's own tasks: what it sends, seals, signs and receives.  There are no system
calls, which would be two for each frame on a real network and favour the tree even more; and no membership, whose work
does not depend on broadcasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple, final

import trio
import trio.testing

import iris
from benchmarks.requests.task_time import TaskTime, marked
from iris.kernel.names import NodeId
from iris.patterns.multicast.answers import StopRules
from iris.patterns.multicast.survey import Surveys
from iris.patterns.multicast.tree import divided
from tests.support.meshes import Fleet, MeshNode, open_meshes

_SURVEYS: Final = 8
"""One survey for so many broadcasts: every member's work for it is done in this process, too."""


class Cost(NamedTuple):
    """Cost of one broadcast to so many members to its sender, and of one survey of them."""

    members: int
    seconds: float
    messages: float
    told_once: bool
    survey_seconds: float
    survey_messages: float
    """Messages that the asker posts; each member posts one to it."""
    all_answered: bool


@final
class Crowd:
    """A sender and members, linked where broadcasts of this sender go."""

    def __init__(self, fleet: Fleet, stack: AsyncExitStack, sender: MeshNode) -> None:
        self.told: Counter[NodeId] = Counter()
        self.answered = 0
        self.sender = sender
        self._surveys = Surveys(sender.mesh, sender.requests, sender.directory, sender.relays, fleet.config)
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

            async def answer(_: iris.Request) -> bytes:
                return b"here"

            crowd.broadcast(note)
            crowd.request(answer)
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
        """Return the number of messages that the sender has posted."""
        return sum(peer.link.statistics().posted for peer in self.sender.mesh.peers.values())

    async def broadcast(self) -> None:
        """Tell every member something."""
        await self.sender.broadcasts.broadcast("crowd", b"flush " * 10)

    async def survey(self) -> None:
        """Ask every member something, and take the answers."""
        async with self._surveys.open(
            "crowd", b"full? " * 10, StopRules(timeout=5), None, None, None, timeout=5
        ) as answers:
            async for _ in answers:
                self.answered += 1

    async def cost(self, operation: Callable[[], Awaitable[None]], times: int) -> tuple[float, float]:
        """Return the sender's processor time for one operation, reports of relays included, and its messages."""
        posted = self.posted()
        instrument = TaskTime()
        trio.lowlevel.add_instrument(instrument)
        with marked():
            for _ in range(times):
                await operation()
                await trio.sleep(0.005)
            await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(instrument)
        return instrument.seconds / times, (self.posted() - posted) / times


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
            for operation in (crowd.broadcast, crowd.survey):
                await crowd.cost(operation, 5)  # the first ones are slower
            crowd.told.clear()
            crowd.answered = 0
            told = await crowd.cost(crowd.broadcast, broadcasts)
            surveys = max(1, broadcasts // _SURVEYS)
            asked = await crowd.cost(crowd.survey, surveys)
            once = list(crowd.told.values()) == [broadcasts] * count
            costs.append(Cost(count, *told, once, *asked, crowd.answered == surveys * count))
        nursery.cancel_scope.cancel()
    return costs


def run(counts: Sequence[int], broadcasts: int) -> list[Cost]:
    """Return, for each number of members, what one broadcast and one survey cost their sender."""
    return trio.run(_run, counts, broadcasts, clock=trio.testing.MockClock(autojump_threshold=0))


def conduct() -> bool:
    """Run it and print what it showed; return whether 100 members cost at most three times as much as 10."""
    broadcasts = 400
    costs = run((10, 32, 33, 100, 200), broadcasts)
    print(f"\n{broadcasts} broadcasts and {broadcasts // _SURVEYS} surveys of 60 bytes each\n")
    print(
        "| members | broadcast: sender's processor time | of that for 10 | messages it posts | each told once ", end=""
    )
    print("| a survey: processor time | messages posted | all answered |")
    print("|---|---|---|---|---|---|---|---|")
    base = costs[0].seconds
    for cost in costs:
        times = f"{cost.seconds * 1e6:.0f} us | {cost.seconds / base:.1f}x"
        print(f"| {cost.members} | {times} | {cost.messages:.1f} | {'yes' if cost.told_once else 'NO'} ", end="")
        survey = f"{cost.survey_seconds * 1e6:.0f} us | {cost.survey_messages:.1f}"
        print(f"| {survey} | {'yes' if cost.all_answered else 'NO'} |")
    (hundred,) = (cost.seconds for cost in costs if cost.members == 100)
    return hundred <= 3 * base and all(cost.told_once and cost.all_answered for cost in costs)
