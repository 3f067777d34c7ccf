"""Sagas: lost links, nodes that stand still, clocks that are set, bridges that are promoted, names at limits."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.patterns.state import saga as saga_module
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import open_copy
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.successor import reopen
from iris.testing import open_network
from tests.support.copies import open_follower, open_primary, wait_copies
from tests.support.sagas import open_shop, shop

pytestmark = pytest.mark.long


async def test_a_step_whose_member_is_cut_off_in_the_middle_is_undone_at_another(tmp_path: Path) -> None:
    """What the first one says when it is back does not count; a token of the effect keeps it out."""
    calls: list[str] = []
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))
    begun, healed = trio.Event(), trio.Event()

    @service.request("do")
    async def do(request: iris.Request) -> str:
        begun.set()
        with trio.CancelScope(shield=True):
            await healed.wait()
        calls.append("late")
        return "done"

    async with open_network() as network, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        bridge = await enter(network.open_node("bridge", host="bridge"))
        await enter(open_bridge(bridge, topics=["t.>"], directory=tmp_path))
        first = await enter(network.open_node("shop", host="first", config=iris.Config(drain_timeout=0.1)))
        await enter(first.join("shop", service))
        desk = await enter(network.open_node("desk", host="desk"))
        await desk.wait_for("shop")
        await desk.wait_for("bridge")
        second = await enter(network.open_node("shop", host="second"))

        async def run() -> None:
            async with desk.bridge().saga("s") as saga:
                await saga.request("shop", 1, operation="do", undo="undo", timeout=3)

        async with trio.open_nursery() as nursery:

            async def cut() -> None:
                await begun.wait()
                network.memory.partition(["first"], ["bridge", "desk", "second"])
                nursery.start_soon(serve)

            async def serve() -> None:
                async with second.join("shop", shop("shop", calls)):
                    await trio.sleep_forever()

            nursery.start_soon(cut)
            with pytest.raises(iris.SagaUndone) as undone, trio.fail_after(60):
                await run()
            assert not undone.value.failed
            network.memory.heal()
            healed.set()
            await trio.sleep(1)
            with pytest.raises(iris.SagaUndone):
                await run()
            nursery.cancel_scope.cancel()
    steps = [call for call in calls if call != "late"]
    assert steps in (["shop.undo 1"], ["shop.do 1", "shop.undo 1"]), calls


async def test_a_node_that_stands_still_until_its_saga_is_over_begins_nothing_more(tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shop(network, tmp_path, shop("shop", calls)) as two,
        network.open_node("desk", host="one") as one,
    ):
        await one.wait_for("shop")
        await one.wait_for("bridge")
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                async with one.bridge().saga("s", timeout=1) as saga:
                    await saga.request("shop", 1, operation="do", undo="undo")
                    network.memory.pause("one")
                    with trio.CancelScope(shield=True):
                        await trio.sleep(2.5)
                        await saga.request("shop", 2, operation="do", undo="undo", timeout=5)

            async def still() -> None:
                with pytest.raises((iris.LeaseLost, iris.RequestTimeout, iris.SagaUndone)):
                    await run()

            nursery.start_soon(still)
            await trio.sleep(0.5)
            with pytest.raises(iris.SagaUndone) as undone, trio.fail_after(30):
                async with two.bridge().saga("s"):
                    raise ValueError("no")
            assert not undone.value.failed
            network.memory.resume("one")
    assert calls == ["shop.do 1", "shop.undo 1"]


@pytest.mark.parametrize("step", [400 * 86400, -400 * 86400])
async def test_a_clock_that_is_set_midway_loses_no_undo(tmp_path: Path, step: int) -> None:
    calls: list[str] = []
    now = [1.8e9]

    def clock() -> float:
        return now[0] + trio.current_time()

    async with (
        open_network() as network,
        open_shop(network, tmp_path, shop("shop", calls), wall_clock=clock) as desk,
    ):

        async def run(name: str) -> None:
            async with desk.bridge().saga(name) as saga:
                await saga.request("shop", 1, operation="do", undo="undo")
                now[0] += step
                await saga.request("shop", 2, operation="do", undo="undo")
                now[0] -= step
                await saga.request("shop", 3, operation="do", undo="undo")
                now[0] += step
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone) as undone, trio.fail_after(30):
            await run("s")
        assert not undone.value.failed
    assert calls == [*(f"shop.do {number}" for number in (1, 2, 3)), *(f"shop.undo {number}" for number in (3, 2, 1))]


async def test_a_saga_goes_on_at_a_copy_that_was_promoted_midway(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        operator = await enter(network.open_node("bridge"))
        node = await enter(network.open_node("bridge"))
        served = await enter(network.open_node("shop"))
        await enter(served.join("shop", shop("shop", calls)))
        desk = await enter(network.open_node("desk"))
        await desk.wait_for("shop")
        client = BridgeClient(desk, "bridge", patience=5)
        nursery = await enter(trio.open_nursery())
        promoted, end = trio.Event(), trio.Event()

        async def keep() -> None:
            async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy:
                async with open_primary(network, tmp_path / "primary"):
                    await wait_copies(client, copy="in step")
                    ready.set()
                    await end.wait()
                await promote(operator, "bridge", 0)
                settings = await copy.wait_promoted()
            async with (
                reopen(node, "bridge", tmp_path / "copy", settings, waiting=print),
                open_follower(network, tmp_path / "primary"),
            ):
                promoted.set()
                await trio.sleep_forever()

        ready = trio.Event()
        nursery.start_soon(keep)

        async def run() -> None:
            async with desk.bridge().saga("s") as saga:
                await saga.request("shop", 1, operation="do", undo="undo")
                end.set()
                await saga.request("shop", 2, operation="do", undo="undo")
                raise ValueError("no")

        with trio.fail_after(60):
            await ready.wait()
            with pytest.raises(iris.SagaUndone) as undone:
                await run()
            assert not undone.value.failed
            await promoted.wait()
        nursery.cancel_scope.cancel()
    assert calls == ["shop.do 1", "shop.do 2", "shop.undo 2", "shop.undo 1"]


async def test_names_and_lists_at_their_limits_are_undone(tmp_path: Path) -> None:
    long = "x" * 128
    calls: list[int] = []
    service = iris.Service(long, outcomes=iris.Outcomes(rerun=True))
    odo, oundo = "d" * 128, "u" * 128

    @service.request(odo)
    async def do(request: iris.Request) -> None:
        calls.append(len(request.idempotency_key or ""))

    @service.request(oundo)
    async def undo(request: iris.Request) -> None:
        calls.append(-len(request.undoes or ""))

    async with open_network() as network, open_shop(network, tmp_path, service) as desk:

        async def run(size: int) -> int:
            made = 0

            async def make() -> None:
                nonlocal made
                async with desk.bridge().saga(str(size) + "s" * (128 - len(str(size))), timeout=500) as saga:
                    while True:
                        await saga.request(long, bytes(size), operation=odo, undo=oundo)
                        made += 1

            with pytest.raises(iris.SagaUndone, match="PayloadTooLarge") as undone:
                await make()
            assert not undone.value.failed
            return made

        for size in (131072, 65536, 8000):
            calls.clear()
            made = await run(size)
            assert made == 131072 // size
            assert sum(call > 0 for call in calls) == sum(call < 0 for call in calls) == made


async def test_what_was_undone_stays_so_when_the_keys_of_its_service_have_expired(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shop(network, tmp_path, shop("shop", calls, keep=1.0)) as desk:

        async def run() -> None:
            async with desk.bridge().saga("s") as saga:
                await saga.request("shop", 1, operation="do", undo="undo")
                await trio.sleep(1.2)
                await saga.request("shop", 2, operation="do", undo="undo")
                raise ValueError("no")

        for _ in range(2):
            with pytest.raises(iris.SagaUndone) as undone:
                await run()
            assert not undone.value.failed
    assert calls[:4] == ["shop.do 1", "shop.do 2", "shop.undo 2", "shop.undo 1"]
    assert calls.count("shop.do 1") == 1


async def test_an_undo_that_is_slow_or_fails_at_first_is_done_once(tmp_path: Path) -> None:
    """It is asked for again, as the next attempt, until it has an outcome."""
    calls: list[str] = []
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    async def do(request: iris.Request) -> None:
        calls.append("do")

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"begins {request.attempt}")
        if request.attempt < 3:
            await trio.sleep_forever()
        calls.append("undo")

    async with open_network() as network, open_shop(network, tmp_path, service) as desk:

        async def run(within: float) -> None:
            with trio.fail_after(within):
                async with desk.bridge().saga("s") as saga:
                    await saga.request("shop", 1, operation="do", undo="undo", timeout=0.5)
                    raise ValueError("no")

        with pytest.raises(trio.TooSlowError):
            await run(0.8)  # in the middle of the first attempt, or of the second
        with pytest.raises(iris.SagaUndone) as undone:
            await run(20)
        assert not undone.value.failed
    assert calls == ["do", "begins 1", "begins 2", "begins 3", "undo"]


async def test_nobody_else_closes_the_keys_of_a_saga(tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shop(network, tmp_path, shop("shop", calls)) as desk,
        network.open_node("eve") as eve,
    ):
        await eve.wait_for("shop")
        await eve.wait_for("bridge")
        for number in range(3):
            for headers in ({"idempotency-undoes": "asked do"}, {"idempotency-undoes": "ran do"}):
                await eve.request(
                    "shop",
                    1,
                    operation="undo",
                    headers=headers,
                    timeout=20,
                    options=iris.RequestOptions(idempotency_key=f"s/{number}/undo"),
                )
        fields: dict[str, Any] = {"cluster": "shop", "caller": "desk", "operation": "undo", "key": "s/0/undo"}
        fields |= {"fingerprint": bytes(16), "holder": bytes(16), "budget": 5.0, "keep": 60.0, "rerun": True}
        fields |= {"undoes": {"operation": "do", "key": "s/0"}}
        with pytest.raises(iris.DeliveryError):
            await eve.request("bridge", fields, operation="key.claim")
        saga_of: dict[str, Any] = {**fields, "cluster": "desk", "operation": "iris.saga", "key": "s", "wait": 0.0}
        with pytest.raises(iris.DeliveryError):
            await eve.request("bridge", saga_of, operation="key.claim")
        calls.clear()
        async with desk.bridge().saga("s") as saga:
            for number in range(3):
                await saga.request("shop", number, operation="do", undo="undo")
        async with eve.bridge().saga("s") as saga:
            with pytest.raises(iris.RemoteError, match="key_closed"):  # which it has closed to itself
                await saga.request("shop", 0, operation="do", undo="undo")
    assert calls == ["shop.do 0", "shop.do 1", "shop.do 2"]


async def test_a_saga_that_has_its_most_steps_undoes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saga_module, "MAX_STEPS", 100)
    calls: list[str] = []
    async with open_network() as network, open_shop(network, tmp_path, shop("shop", calls)) as desk:

        async def run() -> None:
            async with desk.bridge().saga("s", timeout=500) as saga:
                for number in range(101):
                    await saga.request("shop", number, operation="do", undo="undo" if number % 10 == 0 else None)

        with pytest.raises(iris.SagaUndone, match="a saga has 100 steps") as undone:
            await run()
        assert not undone.value.failed
    assert calls[100:] == [f"shop.undo {number}" for number in range(90, -1, -10)]
