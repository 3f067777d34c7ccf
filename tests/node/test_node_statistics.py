"""Statistics of a node on itself and others: counters as plain values, and every node of the site."""

from __future__ import annotations

import dataclasses
import json

import iris
from iris.testing import open_network


async def test_statistics_become_plain_dictionaries(autojump_clock: object) -> None:
    service = iris.Service("store")

    @service.request
    async def look_up(request: iris.Request) -> object:
        return request.payload

    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as caller,
        member.join("store", service),
        caller.subscribe("orders.>"),
    ):
        assert await caller.request("store", b"1") == b"1"
        for node in (member, caller):
            told = dataclasses.asdict(node.statistics())
            assert json.loads(json.dumps(told))["requests"]["lost"] == {}
        assert dataclasses.asdict(member.statistics())["services"]["store"]["served"] == 1


async def test_every_other_node_is_told_of_also_if_it_serves_nothing(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as caller,
        member.join("store", iris.Service("store")),
    ):
        await caller.wait_for("store")
        assert [(node.node, node.speaks_for, node.clusters) for node in caller.nodes()] == [
            (member.id, "store", ("store",))
        ]
        assert [(node.node, node.clusters) for node in member.nodes()] == [(caller.id, ())]
