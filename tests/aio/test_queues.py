"""Work queues in an asyncio event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import iris.aio
from tests.support.async_tests import on_asyncio
from tests.support.bridges import open_aio_bridge

pytestmark = pytest.mark.usefixtures("own_home")


@on_asyncio()
async def test_jobs_are_put_done_failed_and_given_back(tmp_path: Path) -> None:
    async with (
        iris.aio.open_node("bridge") as serving,
        open_aio_bridge(serving, topics=["jobs"], directory=tmp_path / "log"),
        iris.aio.open_node("workers") as node,
        node.bridge().queue("jobs", attempts=2, backoff=0.01) as jobs,
    ):
        await node.wait_for("bridge", timeout=60)
        for number in range(3):
            await jobs.put(number, key="k", timeout=60)
        taken = jobs.receive(limit=4)
        async with await anext(taken) as job:
            assert (job.payload, job.key, job.attempt, job.queue, job.is_lost) == (0, "k", 1, "jobs", False)
            job.extend()
        with pytest.raises(asyncio.CancelledError):
            async with await anext(taken) as job:
                raise asyncio.CancelledError
        async with await anext(taken) as job:
            assert (job.payload, job.attempt) == (1, 1)
            raise ValueError("one")
        again = await anext(taken)
        assert (again.payload, again.attempt) == (1, 2)
        again.fail("still", permanent=True)
        last = await anext(taken)
        await last.commit()
        assert (last.payload, taken.in_hand) == (2, 0)
        status = await node.request("bridge", {"group": "queue/jobs"}, operation="queue")
        assert (status["done"], status["dead"], status["waiting"]) == (2, 1, 0)


@on_asyncio()
async def test_the_log_is_read_in_batches(tmp_path: Path) -> None:
    async with (
        iris.aio.open_node("bridge") as serving,
        open_aio_bridge(serving, topics=[">"], directory=tmp_path / "log"),
        iris.aio.open_node("desk") as node,
        node.bridge().consume("orders.>", group="billing") as orders,
    ):
        await node.wait_for("bridge", timeout=60)
        await node.publish_confirmed("orders.new", 1, timeout=60)
        async with await anext(orders) as batch:
            assert [event.payload for event in batch] == [1]
            assert (len(batch), batch.lag, batch.missed, orders.lag, orders.group) == (1, 0, 0, 0, "billing")


@on_asyncio()
async def test_a_log_is_read_to_its_end_by_who_only_looks(tmp_path: Path) -> None:
    async with (
        iris.aio.open_node("bridge") as serving,
        open_aio_bridge(serving, topics=[">"], directory=tmp_path / "log"),
        iris.aio.open_node("desk") as node,
    ):
        await node.wait_for("bridge", timeout=60)
        for number in range(3):
            await node.publish_confirmed("orders.new", number, timeout=60)
        for group in (None, "billing"):
            async with node.bridge().consume("orders.>", group=group, until="now") as orders:
                assert [event.payload async for batch in orders for event in batch] == [0, 1, 2]
                assert [batch async for batch in orders] == []
        async with iris.aio.open_node("bridge") as operator:
            await operator.wait_for("bridge", timeout=60)
            await operator.bridge().drop_group("billing")
            with pytest.raises(iris.ConfigError, match="has no group"):
                await operator.bridge().drop_group("billing")
