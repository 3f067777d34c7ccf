"""Requests with an idempotency key: one outcome, at whichever member, also after the death of members and bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import iris
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network


@asynccontextmanager
async def open_keeper(network: Network, directory: Path, **options: Any) -> AsyncIterator[iris.Node]:
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=["t.>"], directory=directory, **options),
    ):
        yield node


def bank(ran: list[Any], **options: Any) -> iris.Service:
    service = iris.Service("bank", outcomes=iris.Outcomes(**options))

    @service.request
    async def pay(request: iris.Request) -> object:
        ran.append((request.payload, request.attempt, request.idempotency_key))
        if request.payload == "poor":
            raise iris.RemoteError("no_money", "none is left")
        return f"{len(ran)}: {request.payload}"

    return service


async def test_a_key_has_one_outcome_at_all_members(tmp_path: Path) -> None:
    ran: list[Any] = []
    async with (
        open_network() as network,
        open_keeper(network, tmp_path) as bridge,
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
    ):
        async with one.join("bank", bank(ran)):
            await desk.wait_for("bank")
            assert await desk.request("bank", "ten", idempotency_key="k") == "1: ten"
            for _ in range(2):
                with pytest.raises(iris.RemoteError, match="none is left"):
                    await desk.request("bank", "poor", idempotency_key="l")
        async with network.open_node("bank") as two, two.join("bank", bank(ran)) as joined:
            await desk.wait_for("bank")
            assert await desk.request("bank", "ten", idempotency_key="k") == "1: ten"
            with pytest.raises(iris.RemoteError, match="none is left"):
                await desk.request("bank", "poor", idempotency_key="l")
            with pytest.raises(iris.RemoteError, match="idempotency key 'k' stands for another payload") as refused:
                await desk.request("bank", "eleven", idempotency_key="k")
            assert refused.value.code == "key_reused"
            assert joined.statistics().replayed == 2
        assert ran == [("ten", 1, "k"), ("poor", 1, "l")]
        statistics = (await bridge._gather_reports())["outcomes"]
        assert (statistics.keys, statistics.claimed, statistics.replayed, statistics.reused) == (2, 2, 3, 1)
