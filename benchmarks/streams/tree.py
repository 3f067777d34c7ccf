"""Cost of publishing, by the number of subscribed nodes: nodes in one process, on a network in memory.

Counted is the processor time of the publisher's own tasks: what it sends, seals, signs and receives.  There are no
system calls, which would be two for each frame on a real network and favour the tree even more; and no membership,
whose work does not depend on events.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple, final

import trio
import trio.testing

from benchmarks.requests.task_time import TaskTime, marked
from benchmarks.streams.table import heading, row
from iris.kernel.names import NodeId
from iris.patterns.pubsub.subscribe.subscription import Subscription
from iris.patterns.pubsub.tree.topology import shaped
from tests.support.meshes import Fleet, MeshNode, open_meshes

_BURST: Final = 1000
_PAYLOAD: Final = b"event " * 10


class Cost(NamedTuple):
    """Cost of one event to so many nodes, for its publisher."""

    nodes: int
    alone: float
    """Seconds, when events come one at a time."""
    burst: float
    """Seconds, when a thousand come at a time."""
    messages: float
    """Messages that it posts for one event that comes alone."""
    complete: bool
    """True if all nodes got all events."""


@final
class Audience:
    """A publisher, and nodes that subscribe, linked where its events go."""

    def __init__(self, fleet: Fleet, publisher: MeshNode) -> None:
        self._publisher = publisher
        self._fleet = fleet
        self._nodes: dict[NodeId, MeshNode] = {}
        self._subscriptions: list[Subscription] = []
        self._published = 0

    async def gather(self, count: int, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        """Have so many nodes subscribe, and the publisher turn to the tree that it has for them."""
        for index in range(count):
            node = await stack.enter_async_context(self._fleet.open_node(f"node-{index}"))
            await self._publisher.mesh.connect([node.url], expected=node.id)
            nursery.start_soon(node.pubsub.run)
            self._nodes[node.id] = node
        shape = shaped(self._publisher.id, [list(self._nodes)], self._fleet.config.relay_fan_out)
        for above, place in shape.places.items():
            for child in place.children:
                below = self._nodes[child.node]
                await self._nodes[above].mesh.connect([below.url], expected=below.id)
        for node in self._nodes.values():
            self._subscriptions.append(await stack.enter_async_context(node.pubsub.subscribe("t")))
        for _ in range(20):  # the first ones are slower, and the very first one begins the tree
            await self.publish(1)
            await trio.sleep(0.1)

    async def publish(self, count: int) -> None:
        """Publish, without waiting in between."""
        self._published += count
        for _ in range(count):
            await self._publisher.pubsub.publishing.publish("t", _PAYLOAD)

    async def cost(self, rounds: int, burst: int) -> tuple[float, float]:
        """Return the publisher's processor time for one event, and the messages that it posts for a burst."""
        posted = self._posted()
        instrument = TaskTime()
        trio.lowlevel.add_instrument(instrument)
        with marked():
            for _ in range(rounds):
                await self.publish(burst)
                await trio.sleep(0.005)
            await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(instrument)
        return instrument.seconds / rounds / burst, (self._posted() - posted) / rounds

    def _posted(self) -> int:
        return sum(peer.link.statistics().posted for peer in self._publisher.mesh.peers.values())

    def is_complete(self) -> bool:
        """Return whether everybody got everything."""
        statistics = [subscription.statistics() for subscription in self._subscriptions]
        return all((it.received, it.missed) == (self._published, 0) for it in statistics)


async def _run(count: int, rounds: int) -> Cost:
    async with open_meshes() as fleet, AsyncExitStack() as stack:
        with marked():
            publisher = await stack.enter_async_context(fleet.open_node("publisher"))
        async with trio.open_nursery() as nursery:
            with marked():
                nursery.start_soon(publisher.pubsub.run)
            audience = Audience(fleet, publisher)
            async with AsyncExitStack() as places:
                await audience.gather(count, places, nursery)
                alone, messages = await audience.cost(rounds, 1)
                burst, _ = await audience.cost(max(1, rounds // 20), _BURST)
                cost = Cost(count, alone, burst, messages, audience.is_complete())
            nursery.cancel_scope.cancel()
    return cost


def run(counts: Sequence[int], rounds: int) -> list[Cost]:
    """Return, for each number of nodes, what an event costs its publisher."""
    clock = trio.testing.MockClock
    return [trio.run(_run, count, rounds, clock=clock(autojump_threshold=0)) for count in counts]


def conduct(*, quick: bool) -> None:
    """Publish to more and more nodes; beyond the limit of direct routes it must not cost twice as much."""
    rounds = 50 if quick else 400
    heading(
        "What an event of 60 bytes costs its publisher",
        "nodes", "one at a time", "of that for 10", "a thousand at a time", "messages for one", "complete",
    )  # fmt: skip
    costs = run((10, 32, 33, 100) if quick else (10, 32, 33, 100, 200), rounds)
    for cost in costs:
        row(
            str(cost.nodes),
            f"{cost.alone * 1e6:.0f} us",
            f"{cost.alone / costs[0].alone:.1f}x",
            f"{cost.burst * 1e6:.2f} us",
            f"{cost.messages:.1f}",
            "yes" if cost.complete else "NO",
        )
    limit = next(cost for cost in costs if cost.nodes == 32)
    if not all(cost.complete and cost.alone < 2 * limit.alone for cost in costs):
        raise SystemExit("tree: the cost grows with the number of nodes, or somebody missed an event")
