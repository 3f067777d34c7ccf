"""Tests of the shop: whole nodes in memory, on a clock that jumps."""

import asyncio

import pytest
from prices import Prices
from shop import Shop

import iris.aio.testing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_changed_price_reaches_every_member():
    async with (
        iris.aio.testing.autojump_clock(),
        iris.aio.testing.open_network() as network,
        network.open_node("prices") as one,
        network.open_node("prices") as other,
        network.open_node("desk") as desk,
        one.join("prices", Shop()),
        other.join("prices", Shop()),
    ):
        await desk.wait_for("prices", members=2)
        await desk.publish("prices.tea", {"price": 4.0})
        await desk.publish("prices.tea", "9.9")  # no price: a member ignores it
        await asyncio.sleep(1)
        replies = {(await Prices.client(desk).look_up("tea")).price for _ in range(20)}
        assert replies == {4.0}


async def test_a_member_that_crashes_fails_no_request():
    async with (
        iris.aio.testing.autojump_clock(),
        iris.aio.testing.open_network() as network,
        network.open_node("prices", host="a") as one,
        network.open_node("prices", host="b") as other,
        network.open_node("desk") as desk,
        one.join("prices", Shop()),
        other.join("prices", Shop()),
    ):
        await desk.wait_for("prices", members=2)
        network.memory.crash("a")
        for _ in range(20):
            offer = await Prices.client(desk, options=iris.RequestOptions(idempotent=True)).look_up("tea")
            assert offer.price == 3.5
