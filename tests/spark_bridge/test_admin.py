"""Looking at a bridge: status, events as objects, trimming and verifying."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import ConfigError, NotAllowed
from iris.kernel.wire.payload import encode_payload, split_payload
from iris.node.node import Node
from iris.spark_bridge.admin import drop_group, read_events, read_status, trim, value_of, verify_log
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import StoreBusy
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network
from tests.support.arrivals import fake_event, make_store
from tests.support.bridge_members import open_member


@asynccontextmanager
async def open_pair(
    network: Network, directory: Path, *, reader: str = "reader", **options: Any
) -> AsyncIterator[tuple[Node, BridgeClient]]:
    """A bridge, and a node that publishes to it and reads from it."""
    async with open_member(network, directory, topics=["t.>"], **options), network.open_node(reader) as node:
        yield node, BridgeClient(node, "bridge", patience=5)


async def all_events(client: BridgeClient, **options: Any) -> list[dict[str, Any]]:
    return [event async for event in read_events(client, **options)]


async def test_status_tells_sizes_counters_and_lag(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (node, client):
        for number in range(5):
            await node.publish_confirmed("t.x", b"%d" % number)
        (shard,) = await client.shards()
        await client.pin("bridge", "g", {shard.id: 0})
        await client.move("bridge", "g", {shard.id: 3})
        status = await read_status(client)
        assert [(s.number, s.earliest, s.next) for s in status.shards] == [(0, 0, 5)]
        assert [(g.group, g.lag) for g in status.groups] == [("g", 2)]
        assert status.counters["bridge"]["stored"] == 5


async def test_events_are_objects_that_json_can_write(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (node, client):
        for payload in (b"text", b"\xff\x00", {"n": [1, b"\x01"]}, None):
            await node.publish_confirmed("t.x", payload, key="k", headers={"h": "x"})
        text, binary, packed, none = await all_events(client)
        json.dumps([text, binary, packed, none])
        assert (text["value"], text["key"], text["topic"], text["offset"]) == ("text", "k", "t.x", 0)
        assert text["headers"] == {"iris-sender": "reader", "h": "x"}
        assert binary["value_base64"] == "/wA="
        assert packed["value"] == {"n": [1, "AQ=="]}
        assert none["value"] is None


async def test_events_are_chosen_by_topic_and_place(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (node, client):
        for number in range(10):
            await node.publish_confirmed(f"t.{number % 2}", b"%d" % number)

        async def values(**options: Any) -> list[str]:
            return [event["value"] for event in await all_events(client, **options)]

        assert await values(topics=["t.1"]) == ["1", "3", "5", "7", "9"]
        assert await values(last=2) == ["8", "9"]
        assert await values(start={"0": 3}, end={"0": 5}) == ["3", "4"]
        assert await values(since=0) == [str(number) for number in range(10)]
        assert await values(since=4_000_000_000_000) == []


async def test_following_gives_what_arrives(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (node, client):
        await node.publish_confirmed("t.x", b"zero")
        seen: list[str] = []
        with trio.fail_after(60):
            async with aclosing(read_events(client, end=None)) as events:
                async for event in events:
                    seen.append(event["value"])
                    if len(seen) == 3:
                        break
                    await node.publish_confirmed("t.x", b"%d" % len(seen))
        assert seen == ["zero", "1", "2"]


async def test_following_goes_on_when_events_are_trimmed_before_they_were_shown(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path, reader="bridge") as (node, client):
        seen: list[str] = []
        with trio.fail_after(60):
            async with aclosing(read_events(client, end=None)) as events:
                await node.publish_confirmed("t.x", b"0")
                async for event in events:
                    seen.append(event["value"])
                    if event["value"] == "9":
                        break
                    if event["value"] == "0":
                        for number in range(1, 10):
                            await node.publish_confirmed("t.x", b"%d" % number)
                        await trim(client, 0, 8)
        assert seen == ["0", "8", "9"]


async def test_a_member_that_comes_while_it_is_followed_is_shown_from_its_earliest_event(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path / "0", reader="bridge", member="first") as (node, client),
        network.open_node("bridge") as other,
    ):
        store = make_store(tmp_path / "1", shards=(1,))
        for number in range(9):
            store.appender.append({1: [fake_event(b"%d" % number)]}, now=number)
        store.retainer.trim(1, 7)
        store.close()
        await node.publish_confirmed("t.x", b"first")
        seen: list[str] = []
        with trio.fail_after(60):
            async with AsyncExitStack() as stack, aclosing(read_events(client, end=None)) as events:
                async for event in events:
                    seen.append(event["value"])
                    if seen == ["first"]:
                        later = open_bridge(other, topics=["u"], directory=tmp_path / "1", shards=[1], member="later")
                        await stack.enter_async_context(later)
                    if len(seen) == 3:
                        break
        assert seen == ["first", "7", "8"]


@pytest.mark.parametrize("packed", ["d40578", "a2fffe", "c1", "", "91" * 2000 + "c0"])
def test_a_payload_that_was_packed_wrongly_hides_no_other(packed: str) -> None:
    value = value_of(bytes.fromhex(packed), packed=True)
    assert list(value) in (["value"], ["value_base64"])
    json.dumps(value, allow_nan=False)


def test_numbers_that_json_has_not_are_null() -> None:
    data, packed = split_payload(encode_payload({"n": [math.nan, math.inf, 1.5]}, 1000))
    assert value_of(data, packed=packed) == {"value": {"n": [None, None, 1.5]}}


async def test_trimming_is_for_the_bridges_own_nodes(tmp_path: Path) -> None:
    async with open_network() as network:
        async with open_pair(network, tmp_path) as (node, client):
            for number in range(5):
                await node.publish_confirmed("t.x", b"%d" % number)
            with pytest.raises(NotAllowed):
                await trim(client, 0, 3)
        async with open_pair(network, tmp_path, reader="bridge") as (_, client):
            assert await trim(client, 0, 3) == 3
            assert [event["value"] for event in await all_events(client)] == ["3", "4"]
            with pytest.raises(ConfigError, match="no shard 7"):
                await trim(client, 7, 3)


async def test_a_group_that_does_not_come_back_is_dropped_by_the_bridges_own_nodes(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path / "0", member="a") as (_, stranger),
        open_pair(network, tmp_path / "1", reader="bridge", shards=[1], member="b") as (_, client),
    ):
        shards = await client.shards()
        for shard in shards:
            await client.pin(shard.address, "gone", {shard.id: 0})
        await client.pin("bridge.b", "other", {shards[1].id: 0})
        with pytest.raises(NotAllowed):
            await drop_group(stranger, "gone")
        await drop_group(client, "gone")
        assert [group.group for group in (await read_status(client)).groups] == ["other"]
        with pytest.raises(ConfigError, match="has no group 'gone'"):
            await drop_group(client, "gone")
        await drop_group(client, "other")
        assert (await read_status(client)).groups == []


def test_a_sound_log_is_verified(tmp_path: Path) -> None:
    store = make_store(tmp_path, shards=(0, 1))
    for number in range(20):
        store.appender.append({number % 2: [fake_event(b"x")]}, now=number)
    store.close()
    assert {finding.damage for finding in verify_log(tmp_path)} == {None}
    assert {finding.shard for finding in verify_log(tmp_path)} == {0, 1}


def test_every_damaged_place_is_found_and_nothing_else(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for number in range(200):
        store.appender.append({0: [fake_event(b"x" * 10)] * 10}, now=number)
    size = store.shards()[0].size // 200
    store.close()
    path = next((tmp_path / "segments").iterdir())
    with path.open("r+b") as file:
        for chunk in (3, 150):
            file.seek(chunk * size + 300)
            file.write(b"damage")
    damaged = {finding.offset for finding in verify_log(tmp_path) if finding.damage}
    assert damaged == {30, 1500}


def test_a_log_in_use_or_none_is_not_verified(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no log"):
        list(verify_log(tmp_path))
    store = make_store(tmp_path)
    with pytest.raises(StoreBusy):
        list(verify_log(tmp_path))
    store.close()
