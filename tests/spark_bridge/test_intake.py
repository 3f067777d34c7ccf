"""What Spark writes, seen from the bridge: staged, committed once, told to the mesh."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from iris.kernel.errors import RemoteError
from iris.spark_bridge.bridge import open_bridge
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.member import BridgeMember
from iris.spark_bridge.schema import SINK_SCHEMA, decode_events
from iris.spark_bridge.staging import StagedPart
from iris.testing import Network, open_network
from tests.support.arrivals import stored


@asynccontextmanager
async def open_pair(
    network: Network, directory: Path, **options: object
) -> AsyncIterator[tuple[BridgeMember, BridgeClient]]:
    """A bridge and a client of it, on nodes of their own."""
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=["in", "out.>"], directory=directory, **options) as bridge,  # type: ignore[arg-type]
        network.open_node("spark") as other,
    ):
        yield bridge, BridgeClient(other, "bridge", patience=5)


def written(values: Sequence[str], *, topic: str = "out.x", key: str | None = None) -> io.BytesIO:
    """What a task sends: rows with these values."""
    file = io.BytesIO()
    rows = [{"value": value.encode(), "topic": topic, "key": key and key.encode()} for value in values]
    with pa.ipc.new_stream(file, SINK_SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA))
    return file


def part(partition: int, *, batch: int = 0, attempt: int = 0) -> StagedPart:
    return StagedPart(query="q", batch=batch, partition=partition, attempt=attempt)


def staged_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "staged").rglob("*") if path.is_file())


async def test_a_batch_is_in_the_log_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(1), written(["c"]))
        await client.stage("bridge", part(0), written(["a", "b"]))
        assert stored(bridge.store) == []
        assert await client.commit("bridge", "q", 0, [part(1), part(0)]) == 3
        assert stored(bridge.store) == [b"a", b"b", b"c"]
        assert staged_files(tmp_path) == []


async def test_a_batch_is_committed_once_whoever_asks_again(tmp_path: Path) -> None:
    async with open_network() as network:
        for _ in range(2):
            async with open_pair(network, tmp_path) as (bridge, client):
                for _ in range(2):
                    await client.stage("bridge", part(0), written(["a"]))
                    await client.commit("bridge", "q", 0, [part(0)])
                assert stored(bridge.store) == [b"a"]
                assert bridge.statistics().received == 0, "what it publishes does not come back to it"
        async with open_pair(network, tmp_path) as (bridge, client):
            await client.stage("bridge", part(0, batch=1), written(["b"]))
            assert await client.commit("bridge", "q", 1, [part(0, batch=1)]) == 1
            assert await client.commit("bridge", "q", 0, [part(0)]) is None
            assert stored(bridge.store) == [b"a", b"b"]


async def test_only_the_attempts_that_the_driver_names_are_committed(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0, attempt=0), written(["slow"]))
        await client.stage("bridge", part(0, attempt=1), written(["fast"]))
        await client.commit("bridge", "q", 0, [part(0, attempt=1)])
        assert stored(bridge.store) == [b"fast"]
        assert staged_files(tmp_path) == []


async def test_what_is_staged_survives_the_member(tmp_path: Path) -> None:
    async with open_network() as network:
        async with open_pair(network, tmp_path) as (_, client):
            await client.stage("bridge", part(0), written(["a"]))
        async with open_pair(network, tmp_path) as (bridge, client):
            await client.commit("bridge", "q", 0, [part(0)])
            assert stored(bridge.store) == [b"a"]


async def test_a_batch_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"]))
        await client.abort("bridge", "q", 0)
        assert staged_files(tmp_path) == []
        with pytest.raises(Exception, match="missing"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


async def test_listeners_get_what_is_committed_and_see_that_spark_wrote_it(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (_, client),
        network.open_node("listener") as node,
        node.subscribe("out.*") as events,
    ):
        await client.stage("bridge", part(0), written(["a"], key="k"))
        await client.commit("bridge", "q", 0, [part(0)])
        with trio.fail_after(5):
            event = await anext(events)
        assert (event.topic, event.payload, event.key) == ("out.x", b"a", "k")
        assert event.headers == {"iris-sink": "q"}
        assert event.sender.cluster == "bridge"


async def test_a_row_says_in_the_log_who_wrote_it(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"]))
        await client.commit("bridge", "q", 0, [part(0)])
        (state,) = bridge.states.values()
        (chunk,) = bridge.store.read(0, state.epoch, 0, 1, max_bytes=1)
        (row,) = decode_events(chunk.data).to_pylist()
        assert row["headers"] == [{"key": "iris-sender", "value": b"spark"}]


async def test_keys_stay_together_in_their_shard(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path, shards=[0, 1, 2]) as (bridge, client):
        for number, key in enumerate("abcdef"):
            await client.stage("bridge", part(number), written([f"{key}{n}" for n in range(3)], key=key))
        await client.commit("bridge", "q", 0, [part(number) for number in range(6)])
        by_shard = [stored(bridge.store, shard) for shard in range(3)]
        assert sum(map(len, by_shard)) == 18
        for letter in (b"a", b"b", b"c", b"d", b"e", b"f"):
            assert [sum(value.startswith(letter) for value in values) for values in by_shard].count(3) == 1


async def test_a_staged_part_that_changes_on_the_disk_is_not_committed(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"] * 100))
        (path,) = (tmp_path / "staged").rglob("*.arrow")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(LogDamaged, match="checksum"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


@pytest.mark.parametrize("data", [b"", b"nonsense", written(["a"]).getvalue()[:-40]])
async def test_a_damaged_part_is_not_committed(tmp_path: Path, data: bytes) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), io.BytesIO(data))
        with pytest.raises(Exception, match=r"damaged|missing"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


async def test_rows_that_no_publisher_could_publish_are_refused(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"], topic="not a topic"))
        with pytest.raises(Exception, match="not a topic"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


@pytest.mark.parametrize("query", ["", "../escape", "a/b", "x" * 65])
def test_a_query_cannot_name_a_path(query: str) -> None:
    with pytest.raises(RemoteError, match="query"):
        StagedPart(query=query, batch=0, partition=0, attempt=0)
