"""Sagas: bridges that answer anything, end, and come back; nodes that end in the middle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.testing import open_network
from tests.support.bridge_members import open_member
from tests.support.sagas import open_shop, shop

pytestmark = pytest.mark.long

ODD: list[Any] = [
    None,
    7,
    [],
    {},
    {"elsewhere": "no name"},
    {"elsewhere": "bridge"},
    {"elsewhere": "x/y/z"},
    {"elsewhere": 7},
    {"elsewhere": ""},
    {"elsewhere": "nobody"},
    {"attempt": 0},
    {"attempt": -(2**60)},
    {"attempt": 2**63},
    {"attempt": True},
    {"attempt": 1, "undone": "text"},
    {"attempt": 1, "undone": 7},
    {"attempt": 1, "undone": []},
    {"attempt": 1, "notes": "x"},
    {"attempt": 1, "notes": b"\xff" * 100},
    {"attempt": 1, "notes": 7},
    {"outcome": 7},
    {"outcome": b""},
    {"outcome": b"p"},
    {"outcome": b"p" + b"\xff" * 64},
    {"outcome": b"p" + b"\x91" * 4000},
    {"outcome": b"zzz"},
    {"outcome": b"f\xff\xfe\0"},
    {"outcome": b"e" + b"\xf0\x9f\x98\x80" * 60_000},
    {"outcome": bytes(900_000)},
    {"outcome": None, "attempt": 1},
    {"doubt": "x" * 10_000, "attempt": 1},
    {"doubt": 7, "attempt": 1},
    {"busy": "x"},
    {"busy": -1.0},
]


def evil(answer: Any, others: Any = None) -> iris.Service:
    service = iris.Service("bridge")

    @service.request("key.claim")
    async def claim(request: iris.Request) -> Any:
        await trio.sleep(0.01)
        return answer

    @service.request("lease")
    async def lease(request: iris.Request) -> Any:
        await trio.sleep(0.01)
        return {"token": 1, "at": "no name"} if others is True else answer

    for operation in ("renew", "release", "key.note", "key.record", "key.release"):

        @service.request(operation)
        async def other(request: iris.Request) -> Any:
            return others

    return service


@pytest.mark.parametrize("others", [None, True, {"elsewhere": "no name"}, "x"], ids=str)
async def test_a_bridge_that_answers_anything_ends_no_member_and_no_desk(others: Any) -> None:
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    async def do(request: iris.Request) -> str:
        return "done"

    @service.request
    async def plain(request: iris.Request) -> str:
        return "alive"

    async with (
        open_network() as network,
        network.open_node("shop") as served,
        served.join("shop", service),
        network.open_node("desk") as desk,
        network.open_node("bridge") as bridge,
    ):
        await desk.wait_for("shop")
        for answer in ODD:
            async with bridge.join("bridge", evil(answer, others)):
                await desk.wait_for("bridge")
                await served.wait_for("bridge")
                with trio.move_on_after(0.3):
                    try:
                        headers = {"idempotency-undoes": "asked do"}
                        await desk.request(
                            "shop",
                            1,
                            operation="do",
                            headers=headers,
                            timeout=0.2,
                            options=iris.RequestOptions(idempotency_key="k/undo"),
                        )
                    except iris.IrisError:
                        pass
                with trio.move_on_after(0.3):
                    try:
                        async with desk.bridge().saga("s", timeout=0.2) as saga:
                            await saga.request("shop", 1, operation="do", undo="do", timeout=0.1)
                    except iris.IrisError:
                        pass
                with trio.move_on_after(0.3):
                    with suppress(iris.DeliveryError):
                        async with desk.bridge().lease("s", timeout=0.05, ttl=1):
                            await trio.sleep(0.1)
            assert await desk.request("shop", 1) == "alive", answer


@pytest.mark.parametrize("when", ["in a step", "in the block", "in an undo"])
async def test_a_node_that_is_closed_in_the_middle_leaves_its_saga_to_the_next(tmp_path: Path, when: str) -> None:
    calls: list[str] = []
    service = iris.Service("shop", outcomes=iris.Outcomes(rerun=True))
    slow = [True]
    begun = trio.Event()

    @service.request("do")
    async def do(request: iris.Request) -> None:
        calls.append("do")
        if slow[0] and when == "in a step":
            begun.set()
            await trio.sleep_forever()

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append("undo")
        if slow[0] and when == "in an undo":
            begun.set()
            await trio.sleep_forever()

    async with open_network() as network, open_shop(network, tmp_path, service) as two:

        async def run(node: iris.Node) -> None:
            async with node.bridge().saga("s") as saga:
                await saga.request("shop", 1, operation="do", undo="undo")
                if slow[0] and when == "in the block":
                    begun.set()
                    await trio.sleep_forever()
                raise ValueError("no")

        async with trio.open_nursery() as nursery:
            ended: list[BaseException] = []

            async def first(node: iris.Node) -> None:
                try:
                    await run(node)
                except Exception as error:  # noqa: BLE001 -- whatever it is
                    ended.append(error)

            async with network.open_node("desk") as one:
                await one.wait_for("shop")
                await one.wait_for("bridge")
                nursery.start_soon(first, one)
                with trio.fail_after(10):
                    await begun.wait()
            slow[0] = False
            with trio.fail_after(30):
                with pytest.raises(iris.SagaUndone) as undone:
                    await run(two)
            assert not undone.value.failed
            nursery.cancel_scope.cancel()
    assert calls.count("undo") == 1 + (when == "in an undo"), calls


@pytest.mark.parametrize("when", ["before a step", "before the end", "before the failure"])
async def test_a_bridge_that_is_away_for_a_while_is_waited_for(tmp_path: Path, when: str) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        network.open_node("shop") as served,
        served.join("shop", shop("shop", calls)),
        network.open_node("desk") as desk,
    ):
        await desk.wait_for("shop")

        async def serve(stop: trio.Event) -> None:
            async with open_member(network, tmp_path, topics=["t.>"]):
                await stop.wait()

        async def away() -> None:
            stops.pop().set()
            await trio.sleep(1)
            stops.append(trio.Event())
            nursery.start_soon(serve, stops[0])

        stops = [trio.Event()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, stops[0])
            await desk.wait_for("bridge")

            async def run() -> None:
                async with desk.bridge().saga("s") as saga:
                    await saga.request("shop", 1, operation="do", undo="undo")
                    if when != "before the end":
                        if when == "before a step":
                            nursery.start_soon(away)
                            await trio.sleep(0.2)
                        await saga.request("shop", 2, operation="do", undo="undo")
                    if when != "before a step":
                        nursery.start_soon(away)
                        await trio.sleep(0.2)
                    if when != "before the end":
                        raise ValueError("no")

            with trio.fail_after(30):
                if when == "before the end":
                    await run()
                else:
                    with pytest.raises(iris.SagaUndone) as undone:
                        await run()
                    assert not undone.value.failed
            nursery.cancel_scope.cancel()
    done = ["shop.do 1", "shop.do 2", "shop.undo 2", "shop.undo 1"]
    assert calls == (done[:1] if when == "before the end" else done)
