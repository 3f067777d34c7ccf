"""The books of groups that drop, at two sites, beside a ledger of their own: kills, stops, cuts, gateways that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Literal

import pytest
import trio

import iris
import iris.testing
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.testing.faults import Broken, Crash, Fault, Faults, Partition, Stall

EVERYTHING = Policy(exports=(">",), export_topics=(">",))
MEMBERS: dict[str, tuple[str, Literal["drop_oldest", "drop_newest"], int]] = {
    "eu-one": ("eu", "drop_newest", 3), "eu-two": ("eu", "drop_oldest", 20), "us-three": ("us", "drop_newest", 5_000)
}  # fmt: skip
"""Host, and there the site, overflow and limit of the subscriptions."""

_Book = Counter[tuple[str, str]]


class Ledger:
    """What was published for somebody, by topic, and what members have taken, by node and topic; beyond all faults."""

    def __init__(self, world: iris.testing.World) -> None:
        self._world = world
        self.published: Counter[str] = Counter()
        self.taken: _Book = Counter()

    async def gateway(self, site: str, *peers: str) -> None:
        async with (
            iris.open_node("gateway", site=site) as node,
            open_gateway(node, listen=[self._world.url(f"{site}-gateway")], peers=peers, policy=EVERYTHING),
        ):
            await trio.sleep_forever()

    async def member(self, site: str, overflow: Literal["drop_oldest", "drop_newest"], limit: int) -> None:
        limits = iris.SubscriptionLimits(events=limit)
        async with (
            iris.open_node("worker", site=site) as node,
            node.subscribe("work.*", group="workers", limits=limits, overflow=overflow) as work,
            node.subscribe("news.*", limits=limits, overflow=overflow) as news,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._take, node, news)
            await self._take(node, work)

    async def _take(self, node: iris.Node, events: iris.Subscription) -> None:
        async for event in events:
            self.taken[node.id, event.topic] += 1
            await trio.sleep(0.01)

    async def publish(self, shop: iris.Node) -> None:
        async for number in self._world.every(0.1):
            for part in range(20):
                topic = f"{'work' if part % 2 else 'news'}.{number % 3}"
                alone = shop.statistics().publishing.without_subscriber
                await shop.publish(topic, part)
                self.published[topic] += 1 + alone - shop.statistics().publishing.without_subscriber

    def check(self, books: iris.Books) -> None:
        assert books.difference == 0
        assert books.balanced, [row for row in books.rows if row.waiting or row.difference]
        received: _Book = Counter()
        doubtful: _Book = Counter()
        sent: Counter[str] = Counter()
        for row in books.rows:
            # The lists of gateways do not say who is in a group: one that is not linked counts, too.
            sent[row.name] += row.sent - row.lost.get("no link to another site yet", 0)
            if row.receiver is not None:
                received[row.receiver, row.name] += row.received
                doubtful[row.receiver, row.name] += row.in_doubt
        for key in received | self.taken:
            assert received[key] <= self.taken[key] <= received[key] + doubtful[key], key
        of_groups = {topic: count for topic, count in self.published.items() if topic.startswith("work.")}
        assert {topic: sent[topic] for topic in of_groups} == of_groups, "one copy of each"


def run(seeds: Iterable[int], kinds: tuple[type[Fault], ...], seconds: float) -> None:
    async def test(world: iris.testing.World) -> None:
        ledger = Ledger(world)
        world.start("eu-gateway", partial(ledger.gateway, "eu"))
        world.start("us-gateway", partial(ledger.gateway, "us", world.url("eu-gateway")))
        for host, terms in MEMBERS.items():
            world.start(host, partial(ledger.member, *terms), restart=(trio.ClosedResourceError,))
        async with iris.open_node("shop", site="eu") as shop:
            await trio.sleep(5)
            await ledger.publish(shop)
            await world.wait_healed()
            books = await shop.books(settle=60.0)
            ledger.check(books)
            assert books.lost["dropped"]

    faults = Faults(kinds=kinds, pause=1.5, lasting=(0.05, 4.0))
    iris.testing.simulate(seeds=seeds, hours=seconds / 3600, faults=faults)(test)()


KINDS = ((Crash,), (Stall,), (Partition, Broken), (Crash, Stall, Partition, Broken))


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: kinds[0].__name__ + str(len(kinds)))
def test_groups_that_drop_are_accounted_for_whatever_breaks(kinds: tuple[type[Fault], ...]) -> None:
    run((1,), kinds, 8)


@pytest.mark.long
def test_groups_that_drop_are_accounted_for_with_many_seeds() -> None:
    run(range(2, 12), KINDS[-1], 60)
