"""Sagas: what a block may do to its steps, and what is undone then."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.testing import open_network
from tests.support.sagas import open_shops

pytestmark = pytest.mark.long


async def test_a_saga_that_has_ended_makes_no_further_steps(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        async with one.bridge().saga("s") as saga:
            await saga.request("stock", 1, operation="do", undo="undo")

        async def run(undo: str | None) -> None:
            async with two.bridge().saga("s") as saga:
                assert await saga.request("stock", 1, operation="do", undo="undo") == "stock"
                await saga.request("money", 1, operation="do", undo=undo)
                raise ValueError("no")

        for undo in ("undo", None):
            with pytest.raises(iris.RemoteError, match="key_reused"):
                await run(undo)
    assert calls == ["stock.do 1"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": "5"},
        {"timeout": None},
        {"timeout": float("nan")},
        {"timeout": Decimal("nan")},
        {"timeout": []},
        {"timeout": object()},
        {"operation": 3},
        {"operation": b"do"},
        {"operation": object()},
        {"cluster": None},
        {"cluster": 7},
        {"cluster": object()},
        {"cluster": "x" * 200_000},
        {"cluster": "\udcff"},
        {"undo": 5},
        {"undo": "x" * 129},
        {"payload": object()},
    ],
)
async def test_a_step_that_is_misnamed_leaves_a_saga_that_everybody_can_undo(tmp_path: Path, wrong: Any) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):

        async def run(node: iris.Node) -> None:
            async with node.bridge().saga("s") as saga:
                await saga.request("stock", 1, operation="do", undo="undo")
                options: Any = {"cluster": "money", "payload": 2, "operation": "do", "undo": "undo", **wrong}
                await saga.request(**options)

        for node in (one, two):
            with pytest.raises(iris.SagaUndone):
                await run(node)
    assert calls[-1] == "stock.undo 1", calls


async def test_a_misnamed_step_of_a_lost_node_is_no_end_of_its_saga(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        wrongs: list[dict[str, Any]] = [{"timeout": "5"}, {"cluster": 7}, {"operation": 3}, {"timeout": Decimal(5)}]
        for number, wrong in enumerate(wrongs):
            with trio.move_on_after(0.5):
                async with one.bridge().saga(f"s{number}") as saga:
                    await saga.request("stock", 1, operation="do", undo="undo")
                    options: Any = {"cluster": "money", "payload": 2, "operation": "do", "undo": "undo", **wrong}
                    with suppress(iris.IrisError):
                        await saga.request(**options)
                    await trio.sleep_forever()
            with pytest.raises(iris.SagaUndone, match="ValueError"):
                async with two.bridge().saga(f"s{number}") as saga:
                    raise ValueError("no")
    assert calls.count("stock.undo 1") == 4


async def test_steps_that_two_tasks_make_at_once_are_all_undone(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, _):

        async def run() -> None:
            async with one.bridge().saga("s") as saga:
                async with trio.open_nursery() as nursery:
                    for cluster in ("stock", "money", "truck"):

                        async def step(cluster: str = cluster) -> None:
                            await saga.request(cluster, 1, operation="do", undo="undo")

                        nursery.start_soon(step)
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone):
            await run()
    done = sorted(call.replace(".do", "") for call in calls if ".do" in call)
    undone = sorted(call.replace(".undo", "") for call in calls if ".undo" in call)
    assert done == undone


async def test_an_undo_gets_what_its_step_got_although_the_block_has_changed_it(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, _):

        async def run() -> None:
            async with one.bridge().saga("s") as saga, trio.open_nursery() as nursery:
                order = [1]

                async def change() -> None:
                    for number in range(200):
                        order[0] = number
                        await trio.lowlevel.checkpoint()

                nursery.start_soon(change)
                await saga.request("stock", order, operation="do", undo="undo")
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone):
            await run()
    (do, undo) = calls
    assert do.split(" ")[1] == undo.split(" ")[1]


@pytest.mark.parametrize("at", ["desk", "bridge"])
@pytest.mark.parametrize("text", ["\N{GRINNING FACE}" * 5000, "short"])
async def test_a_saga_near_the_limit_of_a_node_is_undone(tmp_path: Path, at: str, text: str) -> None:
    calls: list[str] = []
    small = iris.Config(max_payload=4096)
    limits: tuple[iris.Config | None, ...] = (small, None) if at == "desk" else (None, small)
    async with open_network() as network, open_shops(network, tmp_path, calls, *limits) as (one, _):

        async def run(node: iris.Node, size: int) -> None:
            async with node.bridge().saga(f"s{size}") as saga:
                await saga.request("stock", bytes(size), operation="do", undo="undo")
                await saga.request("money", bytes(size), operation="do", undo="undo")
                raise ValueError(text)

        for size in range(1400, 2100, 50):
            calls.clear()
            with pytest.raises(iris.SagaUndone) as undone:
                await run(one, size)
            assert not undone.value.failed
            assert sum(".do" in call for call in calls) == sum(".undo" in call for call in calls) > 0, (size, calls)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("\udcff\0"),
        ExceptionGroup("many", [ValueError("x" * 10_000)] * 20),
        StopIteration(3),
        StopAsyncIteration(),
        RuntimeError("generator raised StopIteration"),
        iris.LeaseLost("mine"),
        iris.SagaUndone("of another one", failed=["x"]),
        iris.RequestTimeout("of another one"),
        trio.ClosedResourceError("of another one"),
        TimeoutError(),
        RecursionError(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_block_raises_is_undone(tmp_path: Path, error: Exception) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):

        async def run(node: iris.Node) -> None:
            async with node.bridge().saga("s") as saga:
                await saga.request("stock", 1, operation="do", undo="undo")
                raise error

        for node in (one, two):
            with pytest.raises(iris.SagaUndone) as undone:
                await run(node)
            assert not undone.value.failed
    assert calls == ["stock.do 1", "stock.undo 1"]


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("no")]),
        GeneratorExit(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_ends_a_program_leaves_its_saga_to_the_next(tmp_path: Path, error: BaseException) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):

        async def run() -> None:
            async with one.bridge().saga("s") as saga:
                await saga.request("stock", 1, operation="do", undo="undo")
                raise error

        with pytest.raises(type(error)):
            await run()
        assert calls == ["stock.do 1"]
        with trio.fail_after(5):
            async with two.bridge().saga("s") as saga:
                assert saga.attempt == 2
                assert await saga.request("stock", 1, operation="do", undo="undo") == "stock"
    assert calls == ["stock.do 1"]


async def test_steps_are_undone_in_the_order_of_their_numbers_whoever_noted_them(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        with trio.move_on_after(0.5):
            async with one.bridge().saga("s") as saga:
                await saga.request("stock", 1, operation="do", undo="undo")
                await saga.request("money", 1, operation="do")
                await saga.request("truck", 1, operation="do", undo="undo")
                await trio.sleep_forever()

        async def run() -> None:
            async with two.bridge().saga("s") as saga:
                await saga.request("stock", 1, operation="do", undo="undo")
                await saga.request("money", 1, operation="do", undo="undo")
                await saga.request("truck", 1, operation="do", undo="undo")
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone):
            await run()
    assert calls[3:] == ["truck.undo 1", "money.undo 1", "stock.undo 1"]


async def test_a_saga_that_is_used_after_its_block_asks_for_nothing(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, _):
        for _ in range(2):
            async with one.bridge().saga("s") as saga:
                await saga.request("stock", 1, operation="do", undo="undo")
            for undo in ("undo", None):
                with pytest.raises((iris.IrisError, trio.ClosedResourceError)):
                    await saga.request("money", 1, operation="do", undo=undo)
    assert calls == ["stock.do 1"]
