"""A node's metrics include what is built on it: a gateway, a bridge's member and the lag of its readers."""

from __future__ import annotations

from pathlib import Path

import trio

import iris
from iris.node.operators import unready
from iris.node.telemetry.families import samples
from iris.node.telemetry.metrics import Exposition
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import inspect, open_network
from tests.support.federations import echo, open_federation


async def values(node: iris.Node) -> dict[tuple[str, tuple[str, ...]], float]:
    exposition = Exposition(node, member=True)
    assert (await exposition.metrics("")).status == 200
    return {(name, labels): value for name, labels, value in samples(await exposition.look())}


async def test_a_member_of_a_bridge_says_how_far_its_readers_are_behind(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        network.open_node("shop") as shop,
    ):
        assert unready(node, member=True) == "member of no cluster"
        async with open_bridge(node, topics=["orders.>"], directory=tmp_path) as bridge:
            assert unready(node, member=True) is None
            for number in range(5):
                await shop.publish_confirmed("orders.new", number)
            (state,) = bridge.states.values()
            store = bridge.store
            await trio.to_thread.run_sync(lambda: store.cursors.pin("readers", {state.id: 0}, now=1))
            await trio.to_thread.run_sync(lambda: store.cursors.move("readers", {state.id: 2}, now=2))
            found = await values(node)
            assert found["iris_bridge_lag_events", ("readers",)] == 3
            assert found["iris_bridge_events_total", ("stored",)] == 5
            assert found["iris_bridge_log_events", ("0",)] == 5
            assert found["iris_bridge_log_bytes", ("0",)] > 0
        assert not [name for name, _ in await values(node) if name.startswith("iris_bridge")]


async def test_a_gateway_says_what_it_has_carried_and_to_how_many_sites() -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        assert await shop.request("store", b"over there") == b"over there"
        node = federation.nodes["us-gateway"]
        assert unready(node, member=True) is None
        found = await values(node)
        assert found["iris_gateway_sites", ()] == 1
        assert found["iris_gateway_neighbours", ()] == 1
        assert found["iris_gateway_carried_frames_total", ()] >= 2
        assert found["iris_gateway_carried_bytes_total", ()] > 0
    assert not inspect(node).reports
