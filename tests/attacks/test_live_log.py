"""A log that is read by hand: odd times, odd payloads, ends that move, groups that expire under who comes back."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
import iris.arrow
from iris.cli.log import _as_csv
from iris.cli.terminal import _as_json
from iris.kernel.errors import ConfigError, NotAllowed, RemoteError
from iris.node.node import Node
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[tuple[Network, Node, BridgeMember]]:
    async with open_network() as network, open_member(network, tmp_path) as member, network.open_node("desk") as node:
        await node.wait_for("bridge")
        yield network, node, member


async def publish(node: Node, *payloads: Any, topic: str = "orders.new") -> None:
    async with node.confirming(timeout=60) as confirmed:
        for payload in payloads:
            await confirmed.publish(topic, payload)


async def look(node: Node, *topics: str, **options: Any) -> list[Any]:
    """Return the payloads of a log that match, up to its end."""
    with trio.fail_after(30):
        async with node.bridge().consume(*topics, until="now", **options) as events:
            return [event.payload async for batch in events for event in batch]


async def printed(node: Node, **options: Any) -> list[dict[str, Any]]:
    """Return the objects that ``iris log read`` would print."""
    client = BridgeClient(node, "bridge", patience=5)
    async with aclosing(read_events(client, **options)) as events:
        return [event async for event in events]


UTC = datetime.UTC
TIMES: list[tuple[datetime.datetime, int]] = [
    (datetime.datetime(1, 1, 1, tzinfo=UTC), 3),
    (datetime.datetime(1969, 12, 31, 23, 59, tzinfo=UTC), 3),
    (datetime.datetime(1970, 1, 1, tzinfo=UTC), 3),
    (datetime.datetime(9999, 12, 31, 23, 59, tzinfo=UTC), 0),
    (datetime.datetime(9999, 12, 31, 23, 59, tzinfo=datetime.timezone(datetime.timedelta(hours=-23))), 0),
]


async def test_reading_begins_at_any_time_that_there_is(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, 1, 2, 3)
    for start, count in TIMES:
        assert len(await look(node, ">", start=start)) == count
        assert len(await printed(node, since=int(start.timestamp() * 1000))) == count


@pytest.mark.parametrize("start", [2**63, 2**200, -1, True, 1.5, math.nan, "now", None, b"1"])
async def test_a_start_that_is_none_is_refused_before_anybody_is_asked(start: Any) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with pytest.raises(ConfigError, match=r"^start is "):
            async with node.bridge().consume("orders.>", start=start):
                pass


@pytest.mark.parametrize("start", [datetime.datetime.min, datetime.datetime.max], ids=["first", "last"])
async def test_a_time_without_a_zone_at_the_end_of_all_times_is_a_start_or_refused(
    desk: tuple[Network, Node, BridgeMember], start: datetime.datetime
) -> None:
    _, node, _ = desk
    await publish(node, 1)
    found = [1] * (start == datetime.datetime.min)
    with suppress(ConfigError):  # where the machine's time zone leads beyond the first or the last year
        found = await look(node, ">", start=start)
    assert len(found) == (start == datetime.datetime.min)


@pytest.mark.parametrize("start", [0, 3])
async def test_a_place_in_the_log_is_a_start_up_to_its_end(
    desk: tuple[Network, Node, BridgeMember], start: int
) -> None:
    _, node, _ = desk
    await publish(node, 0, 1, 2)
    assert await look(node, ">", start=start) == list(range(start, 3))
    with pytest.raises(RemoteError, match="holds 0 to 3"):
        await look(node, ">", start=4)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ODD: list[Any] = [
    nested(400),
    {1: "whole", 1.5: "half"},
    {b"\xff": b"\xfe"},
    {None: 1},
    [math.nan, math.inf, -math.inf],
    2**64 - 1,
    -(2**63),
    "=1+1",
    "tail\rof a line",
    "two\r\nlines\x1b[31m",
    b"\x1b]0;title\x07",
    "",
    b"",
    {"key": {"deep": [None, True, b"\x00"]}},
]


async def test_every_payload_that_can_be_published_can_be_printed_and_made_columns_of(
    desk: tuple[Network, Node, BridgeMember],
) -> None:
    _, node, _ = desk
    sent: list[Any] = []
    for payload in ODD:
        try:
            await publish(node, payload)
        except iris.LocalProtocolError:
            continue  # nobody has such ones in a log
        sent.append(payload)
    assert len(sent) >= len(ODD) - 3
    events = await printed(node)
    assert len(events) == len(sent)
    for event in events:
        json.loads(_as_json(event))
    text = "\n".join(_as_csv(event) for event in events)
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == len(sent)
    assert {len(row) for row in rows} == {8}
    assert [row[6] for row in rows if row[6][:1] in ("=", "t")] == ["=1+1", "tail\rof a line", "two\r\nlines\x1b[31m"]
    with trio.fail_after(30):
        async with node.bridge().consume(">", until="now") as log:
            batches = [iris.arrow.to_arrow(batch) async for batch in log]
    assert sum(batch.num_rows for batch in batches) == len(sent)


def test_a_value_that_is_nested_too_deep_keeps_no_other_out_of_a_table() -> None:
    events = [
        iris.LogEvent(
            payload=payload, topic="t", key=None, headers={}, sender="s", timestamp=1.8e9, shard="0@x", offset=number
        )
        for number, payload in enumerate([1, nested(1024), 3])
    ]
    before, deep, behind = iris.arrow.to_arrow(events).to_pydict()["value"]
    assert (before, behind) == ("1", "3")
    assert deep in ("(nested too deep to be shown)", "[" * 1024 + "1" + "]" * 1024)  # Python 3.12 and later follow it


async def test_a_group_that_looks_to_the_end_without_a_commit_stays_where_it_was(
    desk: tuple[Network, Node, BridgeMember],
) -> None:
    _, node, member = desk
    await publish(node, 1, 2, 3)
    for _ in range(3):
        assert await look(node, ">", group="nightly") == [1, 2, 3]
    (cursor,) = member.store.cursors.all()
    assert set(cursor.offsets.values()) == {0}
    assert await look(node, ">") == [1, 2, 3]
    assert member.store.cursors.all() == [cursor]


@asynccontextmanager
async def member_of_two(network: Network, directory: Path, shard: int) -> AsyncIterator[None]:
    async with open_member(network, directory / str(shard), shards=[shard], of=2):
        yield


async def test_a_member_that_is_down_is_waited_for_by_who_reads_to_the_end(tmp_path: Path) -> None:
    found: list[Any] = []
    ended = trio.Event()
    async with (
        open_network() as network,
        member_of_two(network, tmp_path, 0),
        network.open_node("desk") as desk,
        trio.open_nursery() as nursery,
    ):
        async with member_of_two(network, tmp_path, 1):
            await desk.wait_for("bridge", 2)
            async with desk.confirming(timeout=60) as confirmed:
                for number in range(100):
                    await confirmed.publish("orders.new", number, key=str(number))

        async def read() -> None:
            found.extend(await look(desk, "orders.>"))
            ended.set()

        nursery.start_soon(read)
        await trio.sleep(0.3)
        assert not ended.is_set()
        async with member_of_two(network, tmp_path, 1):
            await ended.wait()
    assert sorted(found) == list(range(100))


async def test_a_stranger_neither_uses_nor_drops_a_group_of_others(
    desk: tuple[Network, Node, BridgeMember],
) -> None:
    network, node, member = desk
    await publish(node, 1)
    assert await look(node, ">", group="billing") == [1]
    async with network.open_node("stranger") as stranger:
        await stranger.wait_for("bridge")
        with pytest.raises((NotAllowed, RemoteError)):
            await look(stranger, ">", group="billing")
        for other in (stranger, node):  # not even its owner: that is for the bridge's own cluster
            with pytest.raises((NotAllowed, RemoteError)):
                await other.bridge().drop_group("billing")
        async with node.bridge().queue("jobs") as jobs:
            await jobs.put(b"job")
            async with await anext(jobs.receive()):
                pass
        async with stranger.open_tunnel("bridge", operation="consume") as tunnel:
            await tunnel.send({"topics": [">"], "group": "queue/jobs"})
            assert "error" in await tunnel.receive()
    assert "billing" in {cursor.group for cursor in member.store.cursors.all()}


async def test_a_group_that_comes_back_as_it_expires_is_there_or_new_and_never_half(tmp_path: Path) -> None:
    now = 1.8e9
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        open_member(network, tmp_path, wall_clock=lambda: now) as member,
    ):
        await node.wait_for("bridge")
        await publish(node, *range(10))
        async with node.bridge().consume(">", group="g", until="now") as events, await anext(events):
            pass
        for _ in range(4):
            now += 31 * 86_400

            async def expire(time: int = int(now * 1e6)) -> None:
                await member.groups.expire(time)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(expire)
                found = await look(node, ">", group="g")
            assert found in ([], list(range(10)))
            owner = member.store.owners.of_kind("group").get("g")
            cursors = [cursor.group for cursor in member.store.cursors.all()]
            assert (owner is None) == (cursors == [])
            async with node.bridge().consume(">", group="g", until="now") as events:
                async for batch in events:
                    await batch.commit()
        now -= 400 * 86_400  # a clock that is set back takes no group
        await member.groups.expire(int(now * 1e6))
        assert await look(node, ">", group="g") == []
