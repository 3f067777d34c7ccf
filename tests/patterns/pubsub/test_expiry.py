"""Events that expire: what has waited at a subscriber for too long is not delivered, and counted."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.errors import ConfigError
from iris.node.node import Node
from iris.patterns.pubsub.subscribe import expires_after, with_expiry
from iris.testing import open_network


@pytest.fixture
async def pair(autojump_clock: MockClock) -> AsyncIterator[tuple[Node, Node]]:
    """A publisher and a subscriber, in virtual time."""
    async with open_network() as network, network.open_node("shop") as shop, network.open_node("desk") as desk:
        yield shop, desk


async def test_what_waited_for_too_long_is_left_out_and_counted_and_no_gap(
    autojump_clock: MockClock, pair: tuple[Node, Node]
) -> None:
    shop, desk = pair
    async with desk.subscribe("prices.>") as prices:
        for number in range(6):
            await shop.publish("prices.a", number, expires=10.0 if number % 2 else None)
        await trio.sleep(11)
        await shop.publish("prices.a", 6, expires=10.0)
        events = [await anext(prices) for _ in range(4)]
        assert [event.payload for event in events] == [0, 2, 4, 6]
        assert [event.missed for event in events] == [0, 0, 0, 0]
        counted = prices.statistics()
        assert (counted.received, counted.delivered, counted.expired, counted.missed, counted.waiting) == (
            7,
            4,
            3,
            0,
            0,
        )


async def test_events_that_came_together_expire_one_by_one(autojump_clock: MockClock, pair: tuple[Node, Node]) -> None:
    shop, desk = pair
    async with desk.subscribe("prices.>") as prices:
        for number in range(3):
            await shop.publish("prices.a", number, expires=10.0)
        assert (await anext(prices)).payload == 0
        await trio.sleep(11)
        await shop.publish("prices.a", 3)
        assert (await anext(prices)).payload == 3
        assert prices.statistics().expired == 2


async def test_a_batch_holds_no_expired_events(autojump_clock: MockClock, pair: tuple[Node, Node]) -> None:
    shop, desk = pair
    async with desk.subscribe("prices.>") as prices:
        for number in range(4):
            await shop.publish("prices.a", number, expires=None if number == 1 else 10.0)
        await trio.sleep(11)
        assert [event.payload for event in await prices.receive_batch()] == [1]
        assert prices.statistics().waiting == 0


async def test_an_expired_event_of_a_group_is_not_given_to_another_member(
    autojump_clock: MockClock, pair: tuple[Node, Node]
) -> None:
    shop, desk = pair
    async with desk.subscribe("prices.>", group="g") as first:
        await shop.publish("prices.a", 1, expires=10.0)
        await trio.sleep(11)
        await shop.publish("prices.a", 2)
        assert (await anext(first)).payload == 2
        assert first.statistics().expired == 1


async def test_what_cannot_expire_is_an_error(autojump_clock: MockClock, pair: tuple[Node, Node]) -> None:
    shop, _ = pair
    for expires in (-1, math.nan, math.inf, "soon", True):
        with pytest.raises(ConfigError, match="expires is"):
            await shop.publish("prices.a", 1, expires=expires)  # type: ignore[arg-type]


def test_the_header_says_it_and_nonsense_counts_as_none() -> None:
    assert expires_after(with_expiry({"h": "v"}, 2.5)) == 2.5
    assert expires_after(with_expiry(None, 0)) == 0.0
    assert expires_after(with_expiry(None, 86_400)) == 86_400
    for text in ("soon", "nan", ""):
        assert expires_after({"expires": text}) == math.inf
    assert iris.SubscriptionStatistics.__doc__ is not None


async def test_confirmed_events_expire_as_well(autojump_clock: MockClock, pair: tuple[Node, Node]) -> None:
    shop, desk = pair
    async with desk.subscribe_durable("prices.>") as prices:
        async with shop.confirming() as events:
            with pytest.raises(ConfigError, match="expires is -1"):
                await events.publish("prices.a", 0, expires=-1)
            for number in range(4):
                await events.publish("prices.a", number, expires=10.0 if number % 2 else None, headers={"n": "1"})
            await trio.sleep(0.1)
            taken = [await anext(prices) for _ in range(4)]
            assert [dict(event.headers) for event in taken] == [{"n": "1"}, {"n": "1", "expires": "10"}] * 2
            await prices.confirm(taken)
        assert events.confirmed == 4
        await shop.publish("prices.a", 4, expires=10.0)
        await trio.sleep(11)
        await shop.publish("prices.a", 5)
        assert (await anext(prices)).payload == 5


async def test_a_retained_value_with_a_time_is_gone_when_that_is_over(
    autojump_clock: MockClock, pair: tuple[Node, Node]
) -> None:
    shop, desk = pair
    await shop.retain("prices.a", 1, expires=10.0, headers={"n": "1"})
    await shop.retain("prices.b", 2)
    await trio.sleep(4)
    async with desk.subscribe("prices.>") as prices:
        first = await anext(prices)
        assert (first.payload, first.retained, first.headers["n"]) == (1, True, "1")
        assert expires_after(first.headers) == pytest.approx(6, abs=0.1)
        assert (await anext(prices)).payload == 2
    async with desk.subscribe("prices.a") as waiting:  # it is here, and is not taken in time
        assert waiting.statistics().waiting == 1
        await trio.sleep(6.5)
        assert shop.statistics().publishing.retained == 1, "what nobody asks for goes as well"
        await shop.retain("prices.a", 3, expires=10.0)
        assert (await anext(waiting)).payload == 3
        assert (waiting.statistics().expired, waiting.statistics().missed) == (1, 0)
    await trio.sleep(10.5)
    async with desk.subscribe("prices.>") as prices:
        assert (await anext(prices)).payload == 2
        assert prices.statistics().waiting == 0
    with pytest.raises(ConfigError, match="expires is -1"):
        await shop.retain("prices.a", 1, expires=-1)


async def test_a_header_of_a_program_counts_as_well_and_a_longer_one_than_there_is_does_no_harm(
    autojump_clock: MockClock, pair: tuple[Node, Node]
) -> None:
    shop, desk = pair
    await shop.retain("prices.a", 1, headers={"expires": "1e300"})
    await shop.retain("prices.b", 2, headers={"expires": "-1"})
    await trio.sleep(0.1)
    async with desk.subscribe("prices.>") as prices:
        assert [(await anext(prices)).payload, prices.statistics().waiting] == [1, 0]
