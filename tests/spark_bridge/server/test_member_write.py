"""Changes of a member's index: one that fails is an error of its caller alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest
import trio

import iris
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log import KEYS, QUEUES, Transaction
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member


@asynccontextmanager
async def open_pair(network: Network, directory: Path) -> AsyncIterator[tuple[BridgeMember, iris.Node]]:
    async with open_member(network, directory, topics=["t"]) as member, network.open_node("publisher") as publisher:
        await publisher.wait_for("bridge")
        yield member, publisher


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("odd"), ValueError),
        (LogDamaged("odd"), LogDamaged),
        (StoreFull("odd"), StoreFull),
        (lmdb.MapFullError("odd"), StoreFull),
        (lmdb.CorruptedError("odd"), LogDamaged),
    ],
)
async def test_a_change_that_fails_is_an_error_of_its_caller_alone(
    tmp_path: Path, error: Exception, shown: type[Exception]
) -> None:
    results: list[object] = []

    def fail(view: Transaction, _runs: list[EventRun]) -> None:
        view.put(QUEUES, b"half", b"")
        raise error

    def count(view: Transaction, _runs: list[EventRun]) -> int:
        number = view.count(QUEUES)
        view.put(QUEUES, b"%d" % number, b"")
        return number

    async def write(member: BridgeMember) -> None:
        results.append(await member.write(count))

    async def write_badly(member: BridgeMember) -> None:
        with pytest.raises(shown):
            await member.write(fail)
        results.append("failed")

    async with open_network() as network, open_pair(network, tmp_path) as (member, publisher):
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, publisher)
                for _ in range(8):
                    nursery.start_soon(write, member)
                    nursery.start_soon(write_badly, member)
            assert await member.write(count) == 8
        assert sorted(map(str, results)) == [*map(str, range(8)), *["failed"] * 8]
        assert member.statistics().stored == 64
        assert member.statistics().waiting == 0


async def publish(node: iris.Node) -> None:
    async with node.confirming(timeout=30) as events:
        for number in range(64):
            await events.publish("t", b"%d" % number, key="k")


async def test_a_damaged_record_of_an_outcome_is_an_error_of_its_request_alone(tmp_path: Path) -> None:
    service = iris.Service("bank", outcomes=iris.Outcomes())
    service.request(answer)
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (member, desk),
        network.open_node("bank") as bank,
        bank.join("bank", service),
    ):
        await desk.wait_for("bank")
        assert await desk.request("bank", 1, options=iris.RequestOptions(idempotency_key="k")) == "done"
        with member.store.read_transaction() as view:
            ((key, _),) = view.items(KEYS)

        def damage(view: Transaction, _runs: list[EventRun]) -> None:
            view.put(KEYS, key, b"\xc1")

        await member.write(damage)
        with pytest.raises(iris.IrisError):
            await desk.request("bank", 1, timeout=3, options=iris.RequestOptions(idempotency_key="k"))
        assert await desk.request("bank", 1, options=iris.RequestOptions(idempotency_key="l")) == "done"
        await publish(desk)


async def answer(_request: iris.Request) -> str:
    return "done"
