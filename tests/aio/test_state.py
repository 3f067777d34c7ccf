"""Documents and leases of asyncio programs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import iris
import iris.aio
from tests.support.async_tests import on_asyncio
from tests.support.bridges import open_aio_bridge

pytestmark = pytest.mark.usefixtures("own_home")


@on_asyncio()
async def test_tasks_read_write_and_follow_a_document() -> None:
    async with (
        iris.aio.open_node("prices") as one,
        iris.aio.open_node("prices") as two,
        one.state("prices") as here,
        two.state("prices") as there,
    ):
        here["eur"] = 1.5
        here.counter("visits").add(2)
        here["from"], here["to"] = -5, 5
        await here.settled(2)
        assert dict(there) == {"eur": 1.5, "from": -5, "to": 5}
        assert there.counter("visits").value == 2
        watch = there.watch("late")
        asyncio.get_running_loop().call_later(0.1, here.__setitem__, "late", 1)
        change = await anext(watch)
        assert (change.key, change.value) == ("late", 1)
        assert there.statistics().received > 0


@on_asyncio()
async def test_keys_are_deleted_as_quickly_as_they_are_set() -> None:
    async with iris.aio.open_node("prices") as node, node.state("prices") as state:
        began = time.process_time()
        state.update({f"key.{number}": number for number in range(30_000)})
        written = time.process_time() - began
        assert (state.pop("key.7"), state.pop("key.7", None)) == (7, None)
        with pytest.raises(KeyError):
            state.pop("key.7")
        began = time.process_time()
        state.clear()
        assert time.process_time() - began < 10 * written
        assert not state


@on_asyncio()
async def test_a_lease_is_refused_without_a_bridge() -> None:
    async with iris.aio.open_node("workers") as node:
        with pytest.raises(iris.NoSuchCluster, match="a lease needs a bridge"):
            async with node.bridge().lease("scheduler"):
                pass


def test_a_key_is_answered_once_and_a_saga_is_undone(tmp_path: Path) -> None:
    calls: list[object] = []
    service = iris.Service("bank", outcomes=iris.Outcomes(rerun=True))

    @service.request
    async def pay(request: iris.Request) -> int:
        calls.append(request.payload)
        assert request.outbox is not None
        request.outbox.publish("ledger.a", request.payload)
        await asyncio.sleep(0)
        return len(calls)

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"not {request.payload}")

    async def fail(node: iris.aio.Node) -> None:
        async with node.bridge().saga("order") as saga:
            assert (saga.name, saga.attempt) == ("order", 1)
            await saga.request("bank", "saga", undo="undo")
            raise ValueError("no more of it")

    async def main() -> None:
        async with (
            iris.aio.open_node("bridge") as serving,
            open_aio_bridge(serving, topics=["ledger.>"], directory=tmp_path / "log"),
            iris.aio.open_node("bank") as node,
            node.join("bank", service),
        ):
            await node.wait_for("bridge", timeout=60)
            for _ in range(2):
                assert (
                    await node.request("bank", "one", timeout=60, options=iris.RequestOptions(idempotency_key="k")) == 1
                )
            with pytest.raises(iris.SagaUndone, match="ValueError: no more of it") as undone:
                await fail(node)
            assert undone.value.failed == ()
            assert await node.request("nobody", fallback="none") == "none"
            async with node.bridge().consume("ledger.>", group="audit") as events, await anext(events) as batch:
                assert [event.payload for event in batch][:1] == ["one"]

    asyncio.run(main())
    assert calls == ["one", "saga", "not saga"]
