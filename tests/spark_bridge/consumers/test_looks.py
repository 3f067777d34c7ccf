"""Reading a log to its end, and without a group: nothing is kept, and nothing that was there is left out."""

from __future__ import annotations

import datetime
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotAllowed, RemoteError
from iris.node.node import Node
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member


async def publish(node: Node, numbers: range, topic: str = "orders.new") -> None:
    async with node.confirming(timeout=60) as confirmed:
        for number in numbers:
            await confirmed.publish(topic, number, key=str(number))


async def rest(consumer: iris.Consumer, *, commit: bool = False) -> list[Any]:
    """Return the payloads of all that comes until the end."""
    found: list[Any] = []
    with trio.fail_after(60):
        async for batch in consumer:
            found += [event.payload for event in batch]
            if commit:
                await batch.commit()
    return found


async def test_a_look_ends_with_what_was_there_when_it_began(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(3000))
    async with node.bridge().consume("orders.>", until="now") as orders:
        assert orders.group is None
        async with await anext(orders) as first:
            assert 0 < len(first) <= 1024
        await publish(node, range(3000, 3010))
        assert [event.payload for event in first] + await rest(orders) == list(range(3000))
        with pytest.raises(StopAsyncIteration):
            await anext(orders)
    assert member.store.cursors.all() == []
    assert member.store.owners.of_kind("group") == {}


@pytest.mark.parametrize("start", ["latest", 10])
async def test_there_may_be_nothing_to_read(desk: tuple[Network, Node, BridgeMember], start: Any) -> None:
    _, node, _ = desk
    async with node.bridge().consume(">", until="now") as nothing:
        assert await rest(nothing) == []
    await publish(node, range(10), topic="else.where")
    async with node.bridge().consume("orders.>", start=start, until="now") as orders:
        assert await rest(orders) == []


async def test_a_look_begins_at_a_time(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, range(5))
    between = datetime.datetime.now(datetime.UTC)
    await publish(node, range(5, 10))
    async with node.bridge().consume("orders.>", start=between, until="now") as orders:
        assert await rest(orders) == list(range(5, 10))


async def test_looks_go_on_side_by_side_and_do_not_move_a_group(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(5))
    async with (
        node.bridge().consume("orders.>", group="billing") as billing,
        node.bridge().consume("orders.>") as one,
        node.bridge().consume("orders.>") as other,
    ):
        for consumer in (one, other, billing):
            async with await anext(consumer) as batch:
                assert [event.payload for event in batch] == list(range(5))
        await publish(node, range(5, 6))
        assert [event.payload for event in await anext(one)] == [5], "without an end it goes on"
    assert [cursor.group for cursor in member.store.cursors.all()] == ["billing"]


async def test_a_group_reads_to_the_end_and_goes_on_there(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, range(3000))
    for expected in (range(3000), range(3000, 3005), range(0)):
        async with node.bridge().consume("orders.>", group="nightly", until="now") as orders:
            assert await rest(orders, commit=True) == list(expected)
        if expected.stop == 3000:
            await publish(node, range(3000, 3005))


@pytest.mark.parametrize("group", [None, "nightly"])
async def test_the_end_stays_where_it_was_when_the_bridge_is_restarted(tmp_path: Path, group: str | None) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish(node, range(2_500))
        async with node.bridge().consume("orders.>", group=group, until="now") as orders:
            async with open_member(network, tmp_path):
                found = [event.payload for event in await anext(orders)]
            async with open_member(network, tmp_path):
                await node.wait_for("bridge")
                await publish(node, range(2_500, 2_600))
                assert found + await rest(orders) == list(range(2_500))


async def test_a_look_that_began_at_the_latest_loses_nothing_to_a_restart(tmp_path: Path) -> None:
    found: list[int] = []
    count = 0
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().consume("orders.>", start="latest") as orders,
    ):
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            with trio.fail_after(60):
                while not found:  # it finds the bridge, and begins behind what was there before
                    await publish(node, range(count, count + 1))
                    count += 1
                    with trio.move_on_after(0.05):
                        found += [event.payload for event in await anext(orders)]
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish(node, range(count, count + 3))
            with trio.fail_after(60):
                while found[-1] < count + 2:
                    found += [event.payload for event in await anext(orders)]
    assert found == list(range(found[0], count + 3))


async def test_a_bridge_that_leaves_does_not_wait_for_its_readers(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        trio.open_nursery() as nursery,
        node.bridge().consume("orders.>") as look,
        node.bridge().consume("orders.>", group="billing") as orders,
    ):
        client = BridgeClient(node, "bridge", patience=60)
        async with open_member(network, tmp_path) as member:
            await node.wait_for("bridge")
            await publish(node, range(1))
            for consumer in (look, orders):
                await anext(consumer)
            (shard,) = member.states
            nursery.start_soon(client.wait_offsets, "bridge", {shard: 1}, 8.0)
            await trio.sleep(0.1)
            begun = trio.current_time()
        assert trio.current_time() - begun < Config().drain_timeout * 0.6
        nursery.cancel_scope.cancel()


async def test_a_log_that_is_made_anew_is_not_taken_for_its_end(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        async with open_member(network, tmp_path / "one"):
            await node.wait_for("bridge")
            await publish(node, range(2_500))
        async with node.bridge().consume("orders.>", until="now") as orders:
            async with open_member(network, tmp_path / "one"):
                await anext(orders)
            async with open_member(network, tmp_path / "two"):
                with pytest.raises(RemoteError, match="was lost and made anew"):
                    await rest(orders)


async def test_all_members_of_a_bridge_are_read_to_their_ends(tmp_path: Path) -> None:
    async with open_network() as network, AsyncExitStack() as stack:
        for shard in range(3):
            node = await stack.enter_async_context(network.open_node("bridge"))
            directory = tmp_path / str(shard)
            member = open_bridge(node, topics=[">"], directory=directory, shards=[shard], of=3)
            await stack.enter_async_context(member)
        desk = await stack.enter_async_context(network.open_node("desk"))
        await desk.wait_for("bridge", 3)
        await publish(desk, range(300))
        async with desk.bridge().consume("orders.>", until="now") as orders:
            assert sorted(await rest(orders)) == list(range(300))


async def test_what_was_lost_behind_the_last_event_is_told(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(5))
    async with node.bridge().consume("orders.>", group="billing", until="now") as orders:
        assert len(await rest(orders, commit=True)) == 5
    await publish(node, range(5, 10))
    member.store.retainer.trim(0, 10)
    member.refresh()
    async with node.bridge().consume("orders.>", group="billing", until="now") as orders:
        with trio.fail_after(30):
            (last,) = [batch async for batch in orders]
        assert (len(last), last.missed) == (0, 5)
        await last.commit()
    async with node.bridge().consume("orders.>", group="billing", until="now") as orders:
        assert [batch async for batch in orders] == [], "once"


async def test_a_look_takes_the_rights_of_a_subscriber(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path, readers=["others"]),
        network.open_node("desk") as node,
        node.bridge().consume("orders.>", until="now") as orders,
    ):
        await node.wait_for("bridge")
        with pytest.raises((NotAllowed, RemoteError), match="may not read"), trio.fail_after(30):
            await anext(orders)


async def test_who_looks_commits_nothing(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(3))
    (shard,) = member.states
    async with node.open_tunnel("bridge", operation="consume") as tunnel:
        await tunnel.send({"topics": [">"], "until": "now"})
        assert await tunnel.receive() == {"at": {shard: 0}, "until": {shard: 3}}
        await tunnel.receive()
        assert await tunnel.receive() == {"ended": True}
        await tunnel.send({"commit": {shard: 3}})
        assert (await tunnel.receive())["error"] == "bad_request"
    assert member.store.cursors.all() == []


@pytest.mark.parametrize(
    ("options", "message"), [({"until": "later"}, "until is 'later'"), ({"replay": True}, "replay begins anew")]
)
async def test_what_makes_no_sense_is_an_error(options: dict[str, Any], message: str) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with pytest.raises(ConfigError, match=message):
            async with node.bridge().consume("a", **options):
                pass
