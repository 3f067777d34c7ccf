"""Tests of prices: whole nodes in memory, on a clock that jumps."""

import pytest
from prices import Prices

import iris.aio.testing

pytestmark = pytest.mark.anyio  # with pytest-asyncio: pytest.mark.asyncio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_price_has_a_caller():
    async with (
        iris.aio.testing.open_network() as network,
        network.open_node("prices") as member,
        member.join("prices", Prices()),
        network.open_node("desk") as desk,
    ):
        await desk.wait_for("prices")
        assert (await Prices.client(desk).look_up("milk", 3)).price == pytest.approx(3.6)
        with pytest.raises(iris.RemoteError, match="we do not sell gold"):
            await Prices.client(desk).look_up("gold")


async def test_a_member_that_crashes_fails_no_request():
    async with (
        iris.aio.testing.autojump_clock(),
        iris.aio.testing.open_network() as network,
        network.open_node("prices", host="a") as one,
        network.open_node("prices", host="b") as other,
        one.join("prices", Prices()),
        other.join("prices", Prices()),
        network.open_node("desk") as desk,
    ):
        await desk.wait_for("prices", members=2)
        network.memory.crash("a")
        for _ in range(20):
            offer = await Prices.client(desk, options=iris.RequestOptions(idempotent=True)).look_up("tea")
            assert offer.price == 3.5
