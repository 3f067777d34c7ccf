"""Nodes that are cut off: callers notice, each side serves its own, and all find each other again."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import cast

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.names import NodeId
from iris.kernel.transport.memory import MemoryTransport
from tests.support.stages import Stage, open_stage


def naming(host: str) -> iris.Service:
    """Return a service that answers with the name of its host."""
    service = iris.Service("store")

    async def reply(_: iris.Request) -> object:
        await trio.sleep(0.002)
        return host

    service.request(reply)
    return service


async def open_members(stage: Stage, *hosts: str) -> dict[str, iris.Node]:
    return {host: await stage.member(naming(host), host) for host in hosts}


async def test_the_preferred_member_is_asked_while_it_can_be_and_then_another(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        nodes = await open_members(stage, "one", "two", "three")
        shop = await stage.node("shop")
        await shop.wait_for("store", members=3)
        member = next(member for member in shop.members("store") if member.node == nodes["two"].id)
        for prefer in (member, member.node):
            asked = Counter(
                [await shop.request("store", options=iris.RequestOptions(prefer=prefer)) for _ in range(50)]
            )
            assert asked == {"two": 50}
        assert len(Counter([await shop.request("store") for _ in range(50)])) == 3
        stage.crash("two")
        await trio.sleep(5)
        asked = Counter([await shop.request("store", options=iris.RequestOptions(prefer=member)) for _ in range(50)])
        assert asked.keys() == {"one", "three"}


async def test_nobody_waits_for_a_member_in_vain_and_is_then_told_that_there_is_none(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_members(stage, "one")
        shop = await stage.node("shop", "here")
        await shop.wait_for("store")
        stage.network.memory.partition(["here"], ["one"])
        await trio.sleep(2)
        assert len(shop.members("store")) == 1
        with pytest.raises(iris.RequestTimeout, match="0 of 1 members after 1 s; 1 more cannot be asked"):
            await shop.wait_for("store", timeout=1)
        stage.network.memory.heal()
        await shop.wait_for("store")
        assert await shop.request("store") == "one"


async def test_a_preferred_member_that_nobody_knows_is_no_error(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await open_members(stage, "one")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        assert await shop.request("store", options=iris.RequestOptions(prefer=shop.id)) == "one"


@pytest.mark.parametrize(("rate", "hung"), [(5.0, 1.5), pytest.param(50.0, 1.5, marks=pytest.mark.long), (50.0, 2.5)])
async def test_a_member_that_hung_has_its_share_again_seconds_after_it_runs(
    autojump_clock: MockClock, rate: float, hung: float
) -> None:
    async with open_stage() as stage:
        nodes = await open_members(stage, *(f"m{number}" for number in range(4)))
        shop = await stage.node("shop")
        await shop.wait_for("store", members=4)
        answers: list[object] = []

        async def call(prefer: NodeId | None) -> None:
            with contextlib.suppress(iris.RequestTimeout, iris.Unknown):
                answers.append(await shop.request("store", timeout=1.0, options=iris.RequestOptions(prefer=prefer)))

        async def calls(seconds: float, prefer: NodeId | None = None) -> Counter[object]:
            answers.clear()
            async with trio.open_nursery() as nursery:
                for _ in range(int(seconds * rate)):
                    nursery.start_soon(call, prefer)
                    await trio.sleep(1 / rate)
            return Counter(answers)

        await calls(5)
        standing = cast("MemoryTransport", stage.parts[nodes["m0"].id].transport)
        standing.pause()
        await calls(hung, prefer=nodes["m0"].id)
        standing.resume()
        await calls(2)
        seen = await calls(100 / rate)
        assert 10 <= seen["m0"] <= 45


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
async def test_callers_give_a_silent_member_no_work_after_a_second(autojump_clock: MockClock, seed: int) -> None:
    async with open_stage(seed=seed) as stage:
        nodes = await open_members(stage, *(f"m{number}" for number in range(6)))
        shop = await stage.node("shop")
        await shop.wait_for("store", members=6)
        silent = nodes["m3"].id

        async def call() -> None:
            with trio.move_on_after(3):
                await shop.request("store", options=iris.RequestOptions(idempotent=True, prefer=silent))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call)
                await trio.sleep(0.02)
            stage.network.memory.partition(["m3"], ["shop", *(host for host in nodes if host != "m3")])
            since = trio.current_time()
            while not stage.parts[shop.id].membership.is_suspected(silent):
                nursery.start_soon(call)
                await trio.sleep(0.02)
            assert trio.current_time() - since < 1.0
        stage.network.memory.heal()
        await trio.sleep(20)


async def test_a_long_request_is_no_evidence_against_its_member(autojump_clock: MockClock) -> None:
    service = iris.Service("store")

    @service.request
    async def slow(_: iris.Request) -> object:
        await trio.sleep(60)
        return "done"

    async with open_stage() as stage:
        _, shop = await stage.pair(service)
        async with shop.watch("store") as changes:
            assert (await anext(changes)).kind == "joined"
            assert await shop.request("store", timeout=120) == "done"
            with trio.move_on_after(1) as nothing:
                await anext(changes)
            assert nothing.cancelled_caught


@pytest.mark.parametrize("minutes", [6, pytest.param(60, marks=pytest.mark.long)])
async def test_both_sides_of_a_partition_serve_their_own_and_find_each_other_however_long_it_was(
    autojump_clock: MockClock, minutes: int
) -> None:
    config = iris.Config(probe_interval=5.0, gossip_interval=1.0, lost_interval=5.0)  # an hour in seconds
    async with open_stage() as stage:
        nodes = {host: await stage.member(naming(host), host, config=config) for host in "abc"}
        for node in nodes.values():
            await node.wait_for("store", members=3)
        sides = ("a",), ("b", "c")
        stage.network.memory.partition(*sides)
        for _ in range(6):
            await trio.sleep(10 * minutes)
            for side in sides:
                for host in side:
                    answers = {await nodes[host].request("store") for _ in range(20)}
                    assert answers == set(side)
        stage.network.memory.heal()
        since = trio.current_time()
        for node in nodes.values():
            await node.wait_for("store", members=3, timeout=60)
        assert trio.current_time() - since < 30, "six of the slow intervals"
        for host in nodes:
            answered: set[str] = set()
            with trio.fail_after(2 * config.probe_interval):  # a way to one that is known may be open a probe later
                while answered != set(nodes):
                    answered.add(await nodes[host].request("store"))
