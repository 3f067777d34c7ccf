"""Broadcasts and a member that grants a little credit again and again: the others do not wait for it for ever."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import iris
from iris.testing import open_network


async def test_a_member_that_drips_credit_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    quick, slow = iris.Service("all"), iris.Service("all")
    taken = {"quick": 0, "slow": 0}

    @quick.broadcast
    async def take(message: iris.Message) -> None:
        taken["quick"] += 1

    @slow.broadcast
    async def take_slowly(message: iris.Message) -> None:
        taken["slow"] += 1
        await trio.sleep(4)  # less than the patience with one that grants nothing

    async with (
        open_network() as network,
        network.open_node("quick") as first,
        first.join("all", quick),
        network.open_node("slow") as second,
        second.join("all", slow, limits=iris.Limits(concurrency=1)),
        network.open_node("sender") as sender,
    ):
        await sender.wait_for("all", 2)
        with trio.move_on_after(60):
            while taken["quick"] < 100:
                await sender.broadcast("all", bytes(500_000))
        assert taken["quick"] >= 100
        assert taken["slow"] > 0
        statistics = sender.statistics().broadcasts
        assert statistics.refused_because["no credit"] > 0, "what one misses is counted"
        await trio.sleep(300)  # it has room again
        before = taken["slow"]
        await sender.broadcast("all", b"again")
        await trio.sleep(10)
        assert taken["slow"] > before
