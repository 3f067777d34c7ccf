"""Sagas: services that change midway, handlers of every kind, nodes that meet, fronts, and many sagas."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- of the front for asyncio
import gc
import logging
import threading
import tracemalloc
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
import iris.aio
import iris.sync
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network
from tests.support.bridges import open_aio_bridge, open_sync_bridge
from tests.support.sagas import open_shop

pytestmark = pytest.mark.long


async def enter(stack: AsyncExitStack, network: Network, directory: Path) -> tuple[iris.Node, iris.Node]:
    """Open a bridge, a node that is to serve, and a desk."""
    bridge = await stack.enter_async_context(network.open_node("bridge"))
    await stack.enter_async_context(open_bridge(bridge, topics=["t.>"], directory=directory))
    served = await stack.enter_async_context(network.open_node("shop"))
    desk = await stack.enter_async_context(network.open_node("desk"))
    await served.wait_for("bridge")
    await desk.wait_for("bridge")
    return served, desk


def shop(calls: list[str], name: str = "shop", **options: Any) -> iris.Service:
    given: dict[str, Any] = {"outcomes": iris.Outcomes(rerun=True), **options}
    service = iris.Service(name, **given)

    @service.request("do")
    async def do(request: iris.Request) -> Any:
        calls.append("do")

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append("undo")

    return service


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"allow": ["others"]}, "does not serve"),
        ({"outcomes": None}, "no_outcomes"),
        ({"outcomes": iris.Outcomes(bridge="nowhere", rerun=True)}, None),
        (None, None),
    ],
    ids=["refused", "no outcomes", "another bridge", "left"],
)
async def test_a_service_that_changes_midway_has_its_undo_named_or_waited_for(
    tmp_path: Path, changed: dict[str, Any] | None, why: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    async with open_network() as network, AsyncExitStack() as stack:
        served, desk = await enter(stack, network, tmp_path)

        nursery = await stack.enter_async_context(trio.open_nursery())

        async def serve(*, task_status: trio.TaskStatus[None], **options: Any) -> None:
            async with served.join("shop", shop(calls, **options)):
                task_status.started()
                await trio.sleep_forever()

        async def serve_bridge(*, task_status: trio.TaskStatus[None]) -> None:
            async with (
                network.open_node("nowhere") as other,
                open_bridge(other, topics=["u.>"], directory=tmp_path / "other", name="nowhere"),
            ):
                task_status.started()
                await trio.sleep_forever()

        async def run() -> None:
            async with desk.bridge().saga("s") as saga:
                async with served.join("shop", shop(calls)):
                    await desk.wait_for("shop")
                    await saga.request("shop", 1, operation="do", undo="undo", timeout=2)
                if changed is not None:
                    await nursery.start(partial(serve, **changed))
                    await desk.wait_for("shop")
                raise ValueError("no")

        async def comes_back() -> None:
            while "has no outcome yet" not in caplog.text:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.05)
            await nursery.start(serve if changed is None else serve_bridge)

        if why is None:
            nursery.start_soon(comes_back)
        with caplog.at_level(logging.WARNING, "iris"), pytest.raises(iris.SagaUndone) as undone, trio.fail_after(40):
            await run()
        nursery.cancel_scope.cancel()
        if why is not None:
            (failed,) = undone.value.failed
            assert why in failed
            calls.append("undo")
        else:
            assert not undone.value.failed
    assert calls == ["do", "undo"]


class Special(iris.RemoteError):
    pass


RAISED: list[tuple[Any, bool]] = [
    (iris.RemoteError("mine", "x"), False),
    (Special("mine", "x"), False),
    (iris.RemoteError("key_reused", "x"), False),
    (iris.RemoteError("no_bridge", "\0\udcff"), False),
    (iris.NotAllowed("x"), True),
    (iris.Overloaded("x"), True),
    (iris.NoSuchCluster("x"), True),
    (iris.Unknown("x"), True),
    (iris.SagaUndone("x"), True),
    (iris.LeaseLost("x"), True),
    (iris.RequestTimeout("x"), True),
    (ExceptionGroup("x", [iris.RemoteError("mine", "x")]), True),
    (asyncio.CancelledError(), True),
    (GeneratorExit(), True),
    (StopIteration(), True),
    (ValueError("\udcff"), True),
]


async def test_a_handler_that_raises_anything_is_undone_unless_it_has_refused(tmp_path: Path) -> None:
    calls: list[str] = []
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    async def do(request: iris.Request) -> Any:
        raise RAISED[request.payload][0]

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"undo {request.payload}")

    async with open_network() as network, open_shop(network, tmp_path, service) as desk:

        async def run(number: int) -> None:
            async with desk.bridge().saga(f"s{number}") as saga:
                await saga.request("shop", number, operation="do", undo="undo", timeout=5)

        for number, (_, undone) in enumerate(RAISED):
            calls.clear()
            with pytest.raises(iris.SagaUndone) as error, trio.fail_after(20):
                await run(number)
            assert not error.value.failed
            assert calls == ([f"undo {number}"] if undone else []), RAISED[number]


async def test_what_a_service_asked_for_and_did_not_get_is_no_refusal_of_its_own(tmp_path: Path) -> None:
    """A handler books, and then asks another service, whose refusal it lets pass."""
    calls: list[str] = []
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))
    other = iris.Service("other")

    @other.request("do")
    async def refuse(request: iris.Request) -> None:
        raise iris.RemoteError("never", "no")

    async with open_network() as network, AsyncExitStack() as stack:
        served, desk = await enter(stack, network, tmp_path)

        @service.request("do")
        async def do(request: iris.Request) -> None:
            calls.append("do")
            await served.request("other", 1, operation="do")

        @service.request("undo")
        async def undo(request: iris.Request) -> None:
            calls.append("undo")

        await stack.enter_async_context(served.join("shop", service))
        await stack.enter_async_context(desk.join("other", other))
        await desk.wait_for("shop")
        await served.wait_for("other")

        async def run() -> None:
            async with desk.bridge().saga("s") as saga:
                await saga.request("shop", 1, operation="do", undo="undo")

        with pytest.raises(iris.SagaUndone):
            await run()
    assert calls == ["do", "undo"]


async def test_an_undo_waits_while_its_step_ignores_that_it_is_cancelled(tmp_path: Path) -> None:
    calls: list[str] = []
    begun = trio.Event()
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    async def do(request: iris.Request) -> None:
        begun.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        calls.append("booked")

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append("undo")

    async with open_network() as network, open_shop(network, tmp_path, service) as desk:

        async def run() -> None:
            async with desk.bridge().saga("s") as saga:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(partial(saga.request, "shop", 1, operation="do", undo="undo", timeout=10))
                    await begun.wait()
                    nursery.cancel_scope.cancel()
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone) as undone, trio.fail_after(30):
            await run()
        assert not undone.value.failed
    assert calls == ["booked", "undo"]


async def test_two_nodes_with_one_saga_run_each_step_once(tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shop(network, tmp_path, shop(calls)) as desk,
        network.open_node("desk") as two,
    ):
        await two.wait_for("shop")
        await two.wait_for("bridge")

        async def run(node: iris.Node, number: int) -> None:
            with suppress(iris.SagaUndone):
                async with node.bridge().saga(f"s{number}") as saga:
                    await saga.request("shop", number, operation="do", undo="undo")
                    if number % 2:
                        raise ValueError("no")

        async with trio.open_nursery() as nursery:
            for number in range(6):
                for node in (desk, two, desk):
                    nursery.start_soon(run, node, number)
    assert calls.count("do") == 6
    assert calls.count("undo") == 3


async def test_a_saga_within_a_step_is_undone_with_it(tmp_path: Path) -> None:
    """The handler of a step runs a saga of its own; its undo undoes what that has done."""
    calls: list[str] = []
    outer = iris.Service("outer", outcomes=iris.Outcomes(rerun=True))
    async with open_network() as network, AsyncExitStack() as stack:
        served, desk = await enter(stack, network, tmp_path)

        @outer.request("do")
        async def do(request: iris.Request) -> None:
            async with served.bridge().saga(f"of-{request.idempotency_key.replace('/', '.')}") as saga:  # type: ignore[union-attr]
                await saga.request("shop", 1, operation="do", undo="undo")
                if request.payload == "fails":
                    raise ValueError("inner")
                await trio.sleep_forever()

        @outer.request("undo")
        async def undo(request: iris.Request) -> None:
            with suppress(iris.SagaUndone):
                async with served.bridge().saga(f"of-{request.undoes.replace('/', '.')}"):  # type: ignore[union-attr]
                    raise ValueError("outer")

        await stack.enter_async_context(served.join("shop", shop(calls)))
        await stack.enter_async_context(served.join("outer", outer))
        await desk.wait_for("outer")

        async def run(payload: str) -> None:
            async with desk.bridge().saga(payload) as saga:
                await saga.request("outer", payload, operation="do", undo="undo", timeout=2)

        for payload in ("fails", "late"):
            calls.clear()
            with pytest.raises(iris.SagaUndone) as undone, trio.fail_after(30):
                await run(payload)
            assert not undone.value.failed
            assert calls == ["do", "undo"], payload


async def test_a_bridge_keeps_nothing_in_memory_of_sagas(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shop(network, tmp_path, shop(calls)) as desk:
        few = trio.CapacityLimiter(32)

        async def run(number: int) -> None:
            async with few:
                with suppress(iris.SagaUndone):
                    await run_one(number)

        async def run_one(number: int) -> None:
            async with desk.bridge().saga(f"s{number}") as saga:
                await saga.request("shop", bytes(1000), operation="do", undo="undo")
                if number % 2:
                    raise ValueError("no")

        async def many(numbers: range) -> None:
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(run, number)

        await many(range(50))
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        await many(range(50, 200))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert calls.count("do") == 200
    assert calls.count("undo") == 100
    assert after - before < 1_000_000, after - before


def open_sync(stack: Any, directory: Path, calls: list[str]) -> iris.sync.Node:
    serving = stack.enter_context(iris.sync.open_node("bridge"))
    bridge = open_sync_bridge(serving, topics=["t.>"], directory=directory)
    stack.enter_context(bridge)
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    def do(request: iris.Request) -> None:
        calls.append("do")

    @service.request("undo")
    def undo(request: iris.Request) -> None:
        calls.append("undo")

    node: iris.sync.Node = stack.enter_context(iris.sync.open_node("shop"))
    stack.enter_context(node.join("shop", service))
    node.wait_for("bridge", timeout=60)
    return node


def test_threads_that_make_steps_at_once_or_are_interrupted_lose_nothing(tmp_path: Path, own_home: None) -> None:
    calls: list[str] = []
    with ExitStack() as stack:
        node = open_sync(stack, tmp_path / "log", calls)

        def interrupted(error: BaseException) -> None:
            with node.bridge().saga("s") as saga:
                saga.request("shop", 1, operation="do", undo="undo", timeout=60)
                raise error

        for error in (KeyboardInterrupt(), SystemExit(3)):
            with pytest.raises(type(error)):
                interrupted(error)
        assert calls == ["do"]
        with node.bridge().saga("s") as saga:
            assert saga.attempt == 3
            saga.request("shop", 1, operation="do", undo="undo", timeout=60)
        assert calls == ["do"]
        calls.clear()

        def at_once() -> None:
            with node.bridge().saga("t") as saga:

                def step() -> None:
                    with suppress(trio.BusyResourceError):
                        saga.request("shop", 1, operation="do", undo="undo", timeout=60)

                threads = [threading.Thread(target=step) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone):
            at_once()
        assert calls.count("do") == calls.count("undo") > 0
        with pytest.raises(trio.ClosedResourceError):
            saga.request("shop", 1, operation="do", undo="undo")


def test_a_task_of_asyncio_that_is_cancelled_leaves_its_saga_to_the_next(tmp_path: Path, own_home: None) -> None:
    calls: list[str] = []

    async def main() -> None:
        async with (
            iris.aio.open_node("bridge") as serving,
            open_aio_bridge(serving, topics=["t.>"], directory=tmp_path / "log"),
            iris.aio.open_node("shop") as node,
            node.join("shop", shop(calls)),
        ):
            await node.wait_for("bridge", timeout=60)

            async def run(then: Any) -> None:
                async with node.bridge().saga("s") as saga:
                    await saga.request("shop", 1, operation="do", undo="undo", timeout=60)
                    await then()

            made = asyncio.Event()

            async def forever() -> None:
                made.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(run(forever))
            await asyncio.wait_for(made.wait(), 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            async def cancelled() -> None:
                raise asyncio.CancelledError

            with pytest.raises(asyncio.CancelledError):
                await run(cancelled)
            assert calls == ["do"]

            async def both() -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(60))
                    raise ValueError("no")

            with pytest.raises(iris.SagaUndone):
                await run(both)
            assert calls == ["do", "undo"]

    asyncio.run(main())
