"""The rate of a member: what comes beyond it goes to another member, or is refused with the time, and counted."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage


def store(name: str) -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def answer(_: iris.Request) -> str:
        return name

    return service


async def test_a_member_takes_as_many_requests_each_second_as_its_rate_says(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        member = await stage.member(store("one"), limits=iris.Limits(rate=5))
        shop = await stage.node("shop")
        await shop.wait_for("store")
        assert [await shop.request("store") for _ in range(5)] == ["one"] * 5
        with pytest.raises(iris.Overloaded, match="more came than its rate permits") as caught:
            await shop.request("store")
        assert 0.1 <= caught.value.retry_after <= 0.21
        await trio.sleep(caught.value.retry_after)
        await shop.request("store")
        statistics = member.statistics().services["store"]
        assert (statistics.received, statistics.served, statistics.refused) == (7, 6, 1)


async def test_bytes_have_a_rate_of_their_own(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.member(store("one"), limits=iris.Limits(rate_bytes=1000))
        shop = await stage.node("shop")
        await shop.wait_for("store")
        await shop.request("store", bytes(4000))
        with pytest.raises(iris.Overloaded) as caught:
            await shop.request("store")
        assert caught.value.retry_after == pytest.approx(3, abs=0.1)


async def test_what_one_member_refuses_another_one_serves(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.member(store("slow"), "slow", limits=iris.Limits(rate=1))
        await stage.member(store("fast"), "fast")
        shop = await stage.node("shop")
        await shop.wait_for("store", members=2)
        replies = [await shop.request("store") for _ in range(50)]
        assert replies.count("slow") == 1


def test_a_rate_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(iris.ConfigError, match="limits: rate_bytes is -1"):
        iris.Limits(rate_bytes=-1)
