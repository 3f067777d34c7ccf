"""One that is slow, wrong or short of something holds up itself, and is blamed for what it does and nothing else."""

from __future__ import annotations

import errno
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.gateway import open_gateway
from iris.security.authority.issuing import issue_cluster, revoke_cluster
from iris.testing import inspect, open_network
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World
from tests.node.opening.test_shortages import Threads
from tests.support.federations import EVERYTHING, echo, gateway_url
from tests.support.realms import WALL

YEAR = 366 * 86_400.0


async def test_a_gateway_that_is_closed_in_order_is_not_blamed_for_its_clock(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def be_there() -> None:
        async with (
            network.open_node("gateway", host="eu-gateway", site="eu") as there,
            open_gateway(there, listen=[gateway_url("eu-gateway")], policy=EVERYTHING),
        ):
            await ending.wait()

    ending = trio.Event()
    async with open_network(seed=1) as network, trio.open_nursery() as nursery:
        nursery.start_soon(be_there)
        await trio.sleep(1)
        async with (
            network.open_node("gateway", host="us-gateway", site="us") as here,
            open_gateway(
                here, listen=[gateway_url("us-gateway")], peers=[gateway_url("eu-gateway")], policy=EVERYTHING
            ) as gateway,
        ):
            await gateway.wait_for_site("eu")
            await trio.sleep(1)
            ending.set()
            await trio.sleep(10)
            assert "clock" not in caplog.text
            assert "clock" not in str(gateway.statistics().unreached)


@pytest.mark.long
@pytest.mark.parametrize("wrong", [-20 * YEAR, -YEAR * 2, YEAR * 2, 20 * YEAR])
async def test_a_clock_that_is_wrong_for_ten_minutes_costs_no_more_than_those(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, wrong: float
) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        open_network(seed=2) as network,
        network.open_node("shop", host="shop") as member,
        member.join("shop", echo("shop")),
        network.open_node("caller", host="caller") as caller,
    ):
        await caller.wait_for("shop")
        await trio.sleep(3)
        network.offsets["shop"] = wrong
        await trio.sleep(600)
        assert len(caplog.records) < 30, "no flood of the log"
        network.offsets["shop"] = 0.0
        await trio.sleep(120)
        assert await caller.request("shop", 1, timeout=10, wait=60) == 1


@pytest.mark.long
async def test_of_clients_with_one_key_those_beyond_the_limit_wait_until_one_leaves(autojump_clock: MockClock) -> None:
    config = iris.Config(clients_per_cluster_key=2)
    async with (
        open_network(seed=3) as network,
        network.open_node("shop", host="shop", config=config) as member,
        member.join("shop", echo("shop")),
        network.open_node("desk", client=True) as first,
    ):
        assert await first.request("shop", 1, wait=5) == 1
        async with network.open_node("desk", client=True) as second:
            assert await second.request("shop", 2, wait=5) == 2
            async with network.open_node("other", client=True) as other:
                assert await other.request("shop", 3, wait=5) == 3
            async with network.open_node("desk", client=True) as third:
                with pytest.raises(iris.IrisError):
                    await third.request("shop", 4, wait=5, timeout=5)
                assert await first.request("shop", 5) == 5
        async with network.open_node("desk", client=True) as late:
            assert await late.request("shop", 6, wait=10) == 6


@pytest.mark.long
async def test_members_that_never_answer_hold_no_answers_of_a_survey_back(autojump_clock: MockClock) -> None:
    silent = iris.Service("shop")

    @silent.request
    async def never(_: iris.Request) -> None:
        await trio.sleep_forever()

    async with (
        open_network(seed=4) as network,
        network.open_node("shop") as one,
        one.join("shop", silent),
        network.open_node("shop") as two,
        two.join("shop", silent),
        network.open_node("shop") as three,
        three.join("shop", echo("shop")),
        network.open_node("caller") as caller,
    ):
        await caller.wait_for("shop", 3)
        began = trio.current_time()
        async with caller.survey("shop", 7, timeout=30, quiet=1) as answers:
            assert [answer.payload async for answer in answers] == [7]
        assert trio.current_time() - began < 2
        assert len(answers.missing) == 2


@pytest.mark.long
async def test_tunnels_that_nobody_reads_do_not_keep_another_one_from_its_messages(autojump_clock: MockClock) -> None:
    service = iris.Service("shop")

    @service.tunnel("deaf")
    async def deaf(_: iris.Tunnel) -> None:
        await trio.sleep_forever()

    @service.tunnel("echo")
    async def back(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(len(message))

    async def stuff(caller: iris.Node) -> None:
        async with caller.open_tunnel("shop", operation="deaf") as tunnel:
            while True:
                await tunnel.send(bytes(256 * 1024))

    async with (
        open_network(seed=5) as network,
        network.open_node("shop") as member,
        member.join("shop", service, limits=iris.Limits()),
        network.open_node("caller") as caller,
        trio.open_nursery() as nursery,
    ):
        await caller.wait_for("shop")
        for _ in range(100):
            nursery.start_soon(stuff, caller)
        await trio.sleep(5)
        began = trio.current_time()
        async with caller.open_tunnel("shop", operation="echo") as tunnel:
            for _ in range(5):
                await tunnel.send(bytes(256 * 1024))
                assert await tunnel.receive() == 256 * 1024
        assert trio.current_time() - began < 20
        nursery.cancel_scope.cancel()


@pytest.mark.long
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
async def test_a_disk_that_takes_nothing_keeps_no_list_from_being_in_force(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(trio.to_thread, "run_sync", Threads().run_sync)
    world = World(tmp_path / "run")
    realm, evil = issue_cluster(world.realm, "evil", entropy=world.entropy, wall_now=WALL)
    _, newest = revoke_cluster(realm, "evil", wall_now=WALL)
    real, full = os.open, False

    def opened(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if full and flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    opening = partial(iris.open_node, environment=world.environment())
    async with opening(credential=world.shop, listen=[OUTSIDE]) as shop, opening(credential=evil, listen=[LOOPBACK]):
        full = True
        assert len(shop.statistics().links) == 1
        await shop.revoke(newest.signed)
        await trio.sleep(70)  # the address book is written down, too
        assert not any(peer.connected for peer in inspect(shop).peers.values())
        full = False
