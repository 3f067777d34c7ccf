"""Accounting through gateways: receivers at another site, with the gateways killed and the route cut."""

from __future__ import annotations

from contextlib import suppress

import trio
from trio.testing import MockClock

import iris
from tests.support.federations import open_federation


async def test_receivers_at_another_site_are_compared_after_their_gateway_died(autojump_clock: MockClock) -> None:
    heard = 0
    service = iris.Service("store")

    @service.broadcast
    async def note(message: iris.Message) -> None:
        nonlocal heard
        heard += message.cluster == "store"

    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        await federation.gateway("us", to=["eu-gateway"], name="spare")
        store = await federation.member("eu", service)
        shop = await federation.shop("us", "store")
        taken = 0

        async def take(task_status: trio.TaskStatus[None]) -> None:
            nonlocal taken
            async with store.subscribe("news.*") as news:
                task_status.started()
                async for _ in news:
                    taken += 1

        await federation.nursery.start(take)
        await shop.broadcast("store", 0)
        await trio.sleep(2)
        for number in range(300):
            with suppress(iris.DeliveryError):
                await shop.broadcast("store", number)
                await shop.publish("news.a", number)
            if number == 100:
                federation.crash("us-gateway")
            await trio.sleep(0.01)
        await trio.sleep(30)
        books = await shop.books(settle=20)
        assert books.balanced, books.rows
        rows = {row.pattern: row for row in books.rows}
        assert rows["broadcast"].received == heard > 0
        assert rows["event"].received == taken > 0
        assert {row.receiver for row in books.rows} == {store.id}
