"""Sagas: steps once each, compensations once each, also when the node that runs them dies in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

import iris
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network

DONE = ["stock.do 7", "money.do 7", "truck.do 7"]
UNDONE = ["money.undo 7", "stock.undo 7"]


def shop(name: str, calls: list[str], *, fails: bool = False, undo_fails: bool = False) -> iris.Service:
    service = iris.Service(name, outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    async def do(request: iris.Request) -> str:
        calls.append(f"{name}.do {request.payload}")
        if fails:
            raise iris.RemoteError("none_left", "not this week")
        return name

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"{name}.undo {request.payload}")
        if undo_fails:
            raise iris.RemoteError("stuck", "it is gone")

    return service


@asynccontextmanager
async def open_shops(
    network: Network, directory: Path, calls: list[str], **options: Any
) -> AsyncIterator[tuple[iris.Node, iris.Node]]:
    """A bridge, three services, and two nodes that run sagas."""
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(network.open_node("bridge"))
        await stack.enter_async_context(open_bridge(bridge, topics=["t.>"], directory=directory))
        served = await stack.enter_async_context(network.open_node("shops"))
        for name in ("stock", "money", "truck"):
            await stack.enter_async_context(served.join(name, shop(name, calls, **options.get(name, {}))))
        desks = [await stack.enter_async_context(network.open_node("desk")) for _ in range(2)]
        for desk in desks:
            await desk.wait_for("truck")
            await desk.wait_for("bridge")
        yield desks[0], desks[1]


async def order(node: iris.Node, upto: int = 3, **options: Any) -> list[Any]:
    """Run the saga, or the first steps of it before this node is lost."""
    async with node.saga("order-7", **options) as saga:
        clusters = ("stock", "money", "truck")[:upto]
        replies = [await saga.request(cluster, 7, operation="do", undo="undo") for cluster in clusters]
        if upto < 3:
            await trio.sleep_forever()
    return replies


async def test_a_saga_that_ends_runs_each_step_once_however_often_it_is_run(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        for node in (one, one, two):
            assert await order(node) == ["stock", "money", "truck"]
    assert calls == DONE


@pytest.mark.parametrize("upto", [0, 1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_saga_goes_on_where_its_node_was_lost(tmp_path: Path, upto: int, fails: bool) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": fails}) as (one, two),
    ):
        with trio.move_on_after(0.7) as lost:
            await order(one, upto)
        assert lost.cancelled_caught
        assert calls == DONE[:upto]
        if fails:
            with pytest.raises(iris.SagaUndone, match="saga 'order-7' was undone: RemoteError: none_left"):
                await order(two)
        else:
            assert await order(two) == ["stock", "money", "truck"]
    assert calls == DONE + (UNDONE if fails else [])


async def test_a_saga_that_fails_is_undone_once_and_stays_so(tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": True}) as (one, two),
    ):
        with pytest.raises(iris.SagaUndone) as undone:
            await order(one)
        assert isinstance(undone.value.__cause__, iris.RemoteError)
        assert undone.value.failed == ()
        for node in (one, two):
            with pytest.raises(iris.SagaUndone, match="none_left"):
                async with node.saga("order-7"):
                    raise AssertionError("the block is not entered again")

        async def fail() -> None:
            async with one.saga("order-8") as saga:
                await saga.request("stock", 8, operation="do", undo="undo")
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone, match="ValueError: no"):
            await fail()
    assert calls == [*DONE, *UNDONE, "stock.do 8", "stock.undo 8"]


async def test_compensations_go_on_where_their_node_was_lost(tmp_path: Path) -> None:
    """One of them cannot be reached when the first node is lost."""
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": True}) as (one, two),
        network.open_node("shops") as more,
    ):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                async with one.saga("order-7") as saga:
                    await saga.request("late", 7, operation="do", undo="undo")
                    await saga.request("stock", 7, operation="do", undo="undo")
                    await saga.request("truck", 7, operation="do", undo="undo")

            async with more.join("late", shop("late", calls)):
                await one.wait_for("late")
                nursery.start_soon(run)
                with trio.fail_after(10):
                    while "truck.do 7" not in calls:
                        await trio.lowlevel.checkpoint()
            with trio.fail_after(10):
                while "stock.undo 7" not in calls:  # noqa: ASYNC110 -- as above
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        async with more.join("late", shop("late", calls)):
            await two.wait_for("late")
            with pytest.raises(iris.SagaUndone, match="none_left"):
                async with two.saga("order-7"):
                    raise AssertionError("the block is not entered again")
    assert calls.count("stock.undo 7") == 1
    assert calls.count("late.undo 7") == 1


async def test_a_saga_runs_at_one_node_at_a_time(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        async with one.saga("order-7") as saga:
            with pytest.raises(iris.RequestTimeout, match="is run by another node"):
                await order(two, timeout=0.5)
            assert await saga.request("stock", 7, operation="do", undo="undo") == "stock"
            saga._steps = 0
            with pytest.raises(iris.RemoteError, match="key_reused"):
                await saga.request("stock", 8, operation="do")
        with pytest.raises(iris.RequestTimeout, match=r"has not ended within 0.5 s"):
            async with one.saga("order-8", timeout=0.5):
                await trio.sleep_forever()
        async with one.saga("order-8") as again:
            assert again.attempt == 2
    assert calls == ["stock.do 7"]


async def test_a_compensation_that_raises_is_told_and_the_others_are_called(tmp_path: Path) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {"truck": {"fails": True}, "money": {"undo_fails": True}}
    async with open_network() as network, open_shops(network, tmp_path, calls, **options) as (one, two):
        for node in (one, two):
            with pytest.raises(iris.SagaUndone) as undone:
                await order(node)
            assert undone.value.failed == ("money.undo (order-7/1/undo): stuck: it is gone",)
    assert calls == DONE + UNDONE


async def test_a_step_without_a_reply_may_have_run_and_is_undone(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, _):

        async def run() -> None:
            async with one.saga("order-7") as saga:
                await saga.request("stock", 7, operation="do", undo="undo")
                with pytest.raises(iris.RemoteError, match="no_such_operation"):
                    await saga.request("money", 7, operation="nothing", undo="undo")
                await saga.request("nobody", 7, operation="do")

        with pytest.raises(iris.SagaUndone, match="NoSuchCluster"):
            await run()
    assert calls == ["stock.do 7", "stock.undo 7"]


async def test_what_a_saga_is_given_is_checked(tmp_path: Path) -> None:
    async with open_network() as network, open_shops(network, tmp_path, []) as (one, _):
        for wrong in ({"name": ""}, {"name": "x" * 129}, {"timeout": 0}, {"keep": 0.5}, {"bridge": "no name"}):
            options: dict[str, Any] = {"name": "order", **wrong}
            with pytest.raises(iris.ConfigError):
                async with one.saga(**options):
                    pass
        with pytest.raises(iris.NoSuchCluster, match=r"a saga needs a bridge, .*start one"):
            async with one.saga("order", bridge="nowhere"):
                pass
        with pytest.raises(iris.SagaUndone, match="limit is 131072 bytes"):
            async with one.saga("large") as saga:
                await saga.request("stock", bytes(131073), operation="do")
        with pytest.raises(iris.SagaUndone, match="is not an operation name"):
            async with one.saga("misnamed") as saga:
                await saga.request("stock", 7, operation="do", undo="no name")
