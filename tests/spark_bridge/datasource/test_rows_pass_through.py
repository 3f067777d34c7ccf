"""An event that a query reads and writes again is the same: payload, encoding, key, and a value that is none."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.json_values import unpack
from iris.spark_bridge.datasource.options import SinkOptions
from iris.spark_bridge.datasource.sink import DriverRows, commit_parts, publish_rows, to_rows
from iris.spark_bridge.events.schema import SINK_SCHEMA, decode_events
from iris.spark_bridge.log import TopicFilter
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.staging import new_part, write_rows
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member

PAYLOADS: list[Any] = [
    {"n": 1, "list": [None, 2.5]},
    {"b": b"\xff"},
    {"nan": [1e300, -0.0]},
    "text",
    b"\x00\xff",
    b"plain",
    None,
    7,
    [],
    "",
]


@asynccontextmanager
async def open_pair(network: Network, directory: Path) -> AsyncIterator[tuple[BridgeMember, BridgeClient]]:
    async with open_member(network, directory, topics=["in", "out"]) as bridge, network.open_node("spark") as other:
        yield bridge, BridgeClient(other, "bridge", patience=5)


def events_on(bridge: BridgeMember, topic: str) -> pa.Table:
    (state,) = bridge.store.shards()
    chunks = bridge.store.reader.read(0, state.epoch, state.earliest, state.next, max_bytes=2**24)
    wanted = TopicFilter((topic,))
    return pa.Table.from_batches([wanted.keep(decode_events(chunk.data)) for chunk in chunks])


async def copy(bridge: BridgeMember, client: BridgeClient, delivery: str) -> None:
    """Copy events as ``select key, value, headers`` into the sink does."""
    for batch in events_on(bridge, "in").to_batches():
        rows = to_rows(unpack(batch).select(["key", "value", "headers"]), SinkOptions(topic="out"))
        if delivery == "at-least-once":
            await publish_rows(client, rows=rows)
        else:
            file = io.BytesIO()
            write_rows(file, [rows])
            part = new_part(query="q", batch=batch.column("offset")[0].as_py(), partition=0)
            await commit_parts(client, staged=[], carried=[DriverRows(part, file.getvalue())])


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
async def test_payloads_arrive_as_they_were_published(tmp_path: Path, delivery: str) -> None:
    heard: list[Any] = []
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (bridge, client),
        network.open_node("listener") as node,
        node.subscribe("out") as live,
    ):
        for number, payload in enumerate(PAYLOADS):
            await client.node.publish_confirmed("in", payload, key=f"k{number}", headers={"h": "x"})
        await copy(bridge, client, delivery)
        with trio.fail_after(30):
            heard = [(event.key, event.payload) async for _, event in azip(len(PAYLOADS), live)]
        consumed: list[Any] = []
        with trio.fail_after(30):
            async with node.bridge().consume("out", group="g", start="earliest") as batches:
                async for batch in batches:
                    consumed += [(event.key, event.payload) for event in batch]
                    if len(consumed) == len(PAYLOADS):
                        break
        wanted = [(f"k{number}", payload) for number, payload in enumerate(PAYLOADS)]
        assert sorted(heard, key=str) == sorted(consumed, key=str) == sorted(wanted, key=str)
        first, second = (
            sorted(events_on(bridge, topic).select(["key", "value"]).to_pylist(), key=str) for topic in ("in", "out")
        )
        assert first == second
        shown = {event["key"]: event for event in [e async for e in read_events(client, topics=("out",))]}
        assert shown["k0"]["value"] == {"n": 1, "list": [None, 2.5]}
        assert shown["k6"]["value"] is None


async def azip(count: int, events: Any) -> AsyncIterator[tuple[int, Any]]:
    for number in range(count):
        yield number, await anext(events)


def of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"topic": "out"} | row for row in rows], schema=SINK_SCHEMA)


async def commit(client: BridgeClient, rows: pa.RecordBatch) -> None:
    file = io.BytesIO()
    write_rows(file, [rows])
    part = new_part(query="q", batch=0, partition=0)
    await commit_parts(client, staged=[], carried=[DriverRows(part, file.getvalue())])


async def test_an_encoding_that_is_not_the_values_is_not_believed(tmp_path: Path) -> None:
    lies = [("utf-8", b"\xff"), ("msgpack", b"\xc1"), ("msgpack", b"{}"), ("gzip", b"x"), ("utf-8", None)]
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        rows = [{"value": value, "headers": [("iris-encoding", told.encode())]} for told, value in lies]
        await commit(client, of(*rows))
        kept = [[pair["key"] for pair in row["headers"]] for row in events_on(bridge, "out").to_pylist()]
        assert kept == [["iris-sender"]] * len(lies)


async def test_keys_that_are_not_utf8_stay_or_are_refused(tmp_path: Path) -> None:
    keys = [b"\xff", b"\xfe", b"k"]
    rows = of(*({"key": key, "value": b"x"} for key in keys))
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        with pytest.raises(ConfigError, match=r"column key has b'\\xff' in a row, which is not UTF-8 .* base64"):
            await publish_rows(client, rows=rows)
        with pytest.raises(ConfigError, match=r"column headers has b'\\xff'"):
            await publish_rows(client, rows=of({"value": b"x", "headers": [("h", b"\xff")]}))
        assert bridge.statistics().received == 0, "nothing of them was published"
        await commit(client, rows)
        assert events_on(bridge, "out").column("key").to_pylist() == keys
        shown = [event["key"] async for event in read_events(client)]
        assert len({*shown}) == 3
