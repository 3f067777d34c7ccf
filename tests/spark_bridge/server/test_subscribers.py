"""Bridges that are away: confirmed events wait for them, until a node of their cluster has them forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from iris.kernel.errors import NotAllowed, NotSent, RequestTimeout
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network
from tests.support.arrivals import stored
from tests.support.bridge_members import open_member
from tests.support.waiting import wait_until


def payloads(directory: Path) -> list[bytes]:
    store = open_store(directory, shards=[0], entropy=os.urandom)
    try:
        return stored(store)
    finally:
        store.close()


async def run_for_a_moment(network: Network, name: str, directory: Path) -> None:
    """Have a bridge come and go."""
    async with network.open_node(name) as node, open_bridge(node, topics=["a.>"], directory=directory, name=name):
        await trio.sleep(0.05)


async def test_two_bridges_have_all_that_was_confirmed_though_one_was_killed(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("east") as east,
        open_bridge(east, topics=["a.>"], directory=tmp_path / "east", name="east"),
        network.open_node("shop") as shop,
    ):
        async with (
            network.open_node("west", host="west") as west,
            open_bridge(west, topics=["a.>"], directory=tmp_path / "west", name="west"),
        ):
            await shop.publish_confirmed("a.b", b"both")
            network.memory.crash("west")
            with pytest.raises(RequestTimeout, match=r"'west' of cluster 'west' of 'a\.b' is away"):
                await shop.publish_confirmed("a.b", b"refused", timeout=8)
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                await shop.publish_confirmed("a.b", b"waited", timeout=60)
                nursery.cancel_scope.cancel()

            nursery.start_soon(publish)
            await trio.sleep(0.2)
            async with (
                network.open_node("west") as again,
                open_bridge(again, topics=["a.>"], directory=tmp_path / "west", name="west"),
            ):
                await trio.sleep_forever()
    assert payloads(tmp_path / "east") == [b"both", b"refused", b"waited"]
    assert payloads(tmp_path / "west") == [b"both", b"waited"]


async def test_a_publisher_learns_of_a_bridge_that_is_away_from_one_that_was_away_too(tmp_path: Path) -> None:
    async with open_network() as network:
        async with (
            network.open_node("east") as east,
            open_bridge(east, topics=["a.>"], directory=tmp_path / "east", name="east"),
        ):
            await run_for_a_moment(network, "west", tmp_path / "west")
        # Now no node is there that could report it.
        async with (
            network.open_node("east") as east,
            open_bridge(east, topics=["a.>"], directory=tmp_path / "east", name="east"),
            network.open_node("shop") as shop,
        ):
            assert [(one.name, one.present) for one in shop.durable_subscribers()] == [("east", True), ("west", False)]
            with pytest.raises(RequestTimeout, match="'west'"):
                await shop.publish_confirmed("a.b", b"1", timeout=0.5)
            async with network.open_node("thief") as thief:
                with pytest.raises(NotAllowed, match="'west' belongs to cluster 'west'"):
                    await thief.forget_subscriber("west")
            async with network.open_node("west") as owner:
                await owner.forget_subscriber("west")
            await shop.publish_confirmed("a.b", b"2")
    store = open_store(tmp_path / "east", shards=[0], entropy=os.urandom)
    assert len(store.subscribers()) == 2, "that it was forgotten is remembered"
    store.close()


async def test_a_bridge_that_was_stopped_in_order_is_away_and_not_gone(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("shop") as shop:
        await run_for_a_moment(network, "bridge", tmp_path)
        with pytest.raises(RequestTimeout, match="'bridge' of cluster 'bridge'"):
            await shop.publish_confirmed("a.b", b"1", timeout=0.2)
        async with open_member(network, tmp_path, topics=["c"]):
            with pytest.raises(NotSent, match=r"no durable subscriber of 'a\.b'"):
                await shop.publish_confirmed("a.b", b"2")  # it stores other topics now


async def test_a_full_disk_does_not_end_a_bridge_that_hears_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iris.spark_bridge.errors import StoreFull
    from iris.spark_bridge.log.store import Store

    keep, full = Store.keep_subscribers, True

    def refuse(self: Store, records: list[bytes]) -> None:
        if full:
            raise StoreFull("no room")
        keep(self, records)

    monkeypatch.setattr(Store, "keep_subscribers", refuse)
    async with (
        open_network() as network,
        network.open_node("east") as east,
        open_bridge(east, topics=["a.>"], directory=tmp_path / "east", name="east") as bridge,
    ):
        await run_for_a_moment(network, "west", tmp_path / "west")
        assert bridge.store.subscribers() == []
        full = False
        await wait_until(lambda: len(bridge.store.subscribers()) == 2)
