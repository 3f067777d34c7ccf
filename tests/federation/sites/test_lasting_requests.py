"""An idempotent request to a cluster at another site is tried until its deadline, too; so is waiting for a member."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import iris
from tests.support.federations import echo, open_federation


async def test_a_request_whose_only_member_elsewhere_is_killed_is_run_by_the_one_that_comes_next(
    autojump_clock: MockClock,
) -> None:
    begun = trio.Event()
    slow = iris.Service("store")

    @slow.request
    async def hang(request: iris.Request) -> None:
        begun.set()
        await trio.sleep_forever()

    replies: list[object] = []
    ended = trio.Event()
    async with trio.open_nursery() as nursery, open_federation() as sites:
        shop = await sites.two_sites(slow)

        async def ask() -> None:
            replies.append(
                await shop.request("store", "hello", timeout=30, options=iris.RequestOptions(idempotent=True))
            )
            ended.set()

        nursery.start_soon(ask)
        await begun.wait()
        sites.network.memory.crash("eu-store")
        await trio.sleep(5)
        assert replies == []
        await sites.member("eu", echo("store"), "other-store")
        with trio.fail_after(20):
            await ended.wait()
    assert replies == ["hello"]
