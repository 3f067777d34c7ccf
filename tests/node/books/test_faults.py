"""The books after faults: each message is in one column, whatever broke, and in doubt is at most what was in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import pytest
import trio

import iris
import iris.testing
from iris.testing.faults import Broken, Crash, Fault, Faults, Flapping, Lossy, Partition, SlowReader, Stall

FAILURES = (iris.DeliveryError, iris.TunnelBroken, trio.BrokenResourceError)
SECONDS = 8
"""Seconds of faults, which come twice as fast as in the long tests; there it is 60."""


class Counted:
    """Messages that the members of a cluster have really received, by node."""

    def __init__(self) -> None:
        self.broadcasts: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

    async def serve(self) -> None:
        """One member, which takes broadcasts, requests, tunnels and events."""
        service = iris.Service("cache")
        async with iris.open_node("cache") as node:

            @service.broadcast
            async def note(message: iris.Message) -> None:
                await trio.sleep(0.002)
                self.broadcasts[node.id] += 1

            @service.request
            async def answer(request: iris.Request) -> object:
                await trio.sleep(0.01)
                return request.payload

            @service.tunnel
            async def talk(tunnel: iris.Tunnel) -> None:
                async for _ in tunnel:
                    pass

            limits = iris.SubscriptionLimits(events=200)
            async with (
                node.join("cache", service),
                node.subscribe("news.>", limits=limits) as news,
                node.subscribe("work.*", group="workers", limits=limits) as work,
                trio.open_nursery() as nursery,
            ):
                for events in (news, work):
                    nursery.start_soon(self._take, node, events)

    async def _take(self, node: iris.Node, events: iris.Subscription) -> None:
        async for _ in events:
            self.events[node.id] += 1
            await trio.sleep(0.001)


async def send_everything(world: iris.testing.World, node: iris.Node) -> None:
    """Send in all patterns until the faults are over."""

    async def repeat(pause: float, send: Callable[[int], Awaitable[None]]) -> None:
        async for number in world.every(pause):
            with suppress(*FAILURES):
                await send(number)

    async def broadcast(number: int) -> None:
        for part in range(5):
            await node.broadcast("cache", (number, part))

    async def publish(number: int) -> None:
        for part in range(20):
            await node.publish(f"news.{number % 3}", part)
            await node.publish(f"work.{number % 3}", part)

    async def request(number: int) -> None:
        await node.request("cache", number, timeout=2.0, options=iris.RequestOptions(idempotent=number % 2 == 0))

    async def survey(number: int) -> None:
        async with node.survey("cache", number, timeout=2.0) as answers:
            async for _ in answers:
                pass

    async def tunnel(number: int) -> None:
        with trio.move_on_after(5):
            async with node.open_tunnel("cache", timeout=2.0) as way:
                for part in range(10):
                    await way.send(part)
                await way.send_eof()

    async with trio.open_nursery() as nursery:
        for pause, send in ((0.2, broadcast), (0.2, publish), (0.1, request), (1.0, survey), (2.0, tunnel)):
            nursery.start_soon(repeat, pause, send)


def check(books: iris.Books, counted: Counted) -> None:
    """Everything is in one column; what a receiver is said to have received it has."""
    for row in books.rows:
        assert row.difference == 0, row
        assert min(row.sent, row.received, row.in_doubt, row.waiting, *row.lost.values(), 0) >= 0, row
    had = {"broadcast": counted.broadcasts, "event": counted.events}
    for pattern, really in had.items():
        received: Counter[str] = Counter()
        doubtful: Counter[str] = Counter()
        for row in books.rows:
            if row.pattern == pattern and row.receiver is not None:
                received[row.receiver] += row.received
                doubtful[row.receiver] += row.in_doubt
        for node, count in received.items():
            assert count <= really[node] <= count + doubtful[node], (pattern, node, count, really[node], doubtful[node])


def check_statistics(books: iris.Books, published: iris.PublishStatistics, *, over_trees: bool) -> None:
    """The counters of a publisher are those of its books."""
    assert published.sent == published.handed_over + sum(published.lost.values())
    rows = [row for row in books.rows if row.pattern == "event"]
    dropped = sum(row.lost.get("dropped", 0) for row in rows)
    assert published.dropped >= dropped if over_trees else published.dropped == dropped, "a relay may drop some"
    assert published.refused == sum(row.refused for row in rows) == 0
    # What counts as lost with its member may turn out to be received, if that comes back.
    gone = sum(row.in_doubt for row in rows if row.name.startswith("work."))
    assert published.lost.get("member of a group lost", 0) >= gone


def run(seeds: Iterable[int], faults: Faults, *, relay_above: int = 8, seconds: float = SECONDS) -> None:
    async def test(world: iris.testing.World) -> None:
        counted = Counted()
        for host in ("one", "two", "three"):
            world.start(host, counted.serve, restart=(trio.ClosedResourceError,))
        config = iris.Config(relay_above=relay_above, relay_fan_out=2)
        async with iris.open_node("shop", config=config) as shop:
            await send_everything(world, shop)
            await world.wait_healed()
            books = await shop.books(settle=60.0)
            check(books, counted)
            assert books.waiting == 0, [row for row in books.rows if row.waiting]
            assert books.balanced
            check_statistics(books, shop.statistics().publishing, over_trees=relay_above < 3)
            assert {row.pattern for row in books.rows} == {"broadcast", "event", "request", "survey", "tunnel"}

    iris.testing.simulate(seeds=seeds, hours=seconds / 3600, faults=faults)(test)()


KINDS = ((Partition, Flapping), (Broken, SlowReader), (Crash,), (Stall,), (Lossy,))
OVER_TREES = (Partition, Broken, Crash, Stall)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: kinds[0].__name__)
def test_every_message_is_in_one_column_after_faults(kinds: tuple[type[Fault], ...]) -> None:
    run((1,), Faults(kinds=kinds, pause=1.5, lasting=(0.05, 4.0)))


def test_every_message_is_in_one_column_over_trees() -> None:
    run((1,), Faults(kinds=OVER_TREES, pause=1.5, lasting=(0.05, 4.0)), relay_above=2)


@pytest.mark.long
@pytest.mark.parametrize("kinds", [*KINDS, OVER_TREES], ids=lambda kinds: kinds[0].__name__)
@pytest.mark.parametrize("relay_above", [2, 8])
def test_every_message_is_in_one_column_after_faults_of_many_seeds(
    kinds: tuple[type[Fault], ...], relay_above: int
) -> None:
    run(range(2, 10), Faults(kinds=kinds, pause=3.0, lasting=(0.05, 8.0)), relay_above=relay_above, seconds=60)
