"""How long the driver takes for a batch whose rows its tasks gave it: put together, and part by part."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import pyarrow as pa
import trio

import iris
from benchmarks.bridge.children import bridge_child, open_realm
from benchmarks.bridge.rates import ROUNDS, payload, row
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.sink import DriverRows, commit_parts
from iris.spark_bridge.schema import SINK_SCHEMA
from iris.spark_bridge.staging.staging import new_part

_TASKS: Final = 200
_CASES: Final = (("60 rows of 1 KB", 60), ("1 row of 1 KB", 1))


def _carried(batch: int, rows: int) -> list[DriverRows]:
    found: list[DriverRows] = []
    for task in range(_TASKS):
        columns = [{"value": payload(task * rows + number), "topic": "rates"} for number in range(rows)]
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, SINK_SCHEMA) as written:
            written.write_batch(pa.RecordBatch.from_pylist(columns, schema=SINK_SCHEMA))
        found.append(DriverRows(new_part(query="rates", batch=batch, partition=task), stream.getvalue()))
    return found


async def _together(client: BridgeClient, carried: Sequence[DriverRows]) -> None:
    await commit_parts(client, staged=[], carried=carried)


async def _part_by_part(client: BridgeClient, carried: Sequence[DriverRows]) -> None:
    (shard,) = await client.shards()
    query, batch = carried[0].part.query, carried[0].part.batch
    rows = {one.part: one.rows for one in carried}
    if sum(map(len, rows.values())) > 512 * 1024:
        for part, data in rows.items():
            await client.stage(shard.address, part, io.BytesIO(data))
        rows = {}
    await client.commit(shard.address, query, batch, [one.part for one in carried], rows)


async def _measure() -> None:
    ways: tuple[tuple[str, Callable[[BridgeClient, Sequence[DriverRows]], Awaitable[None]]], ...] = (
        ("put together", _together),
        ("part by part", _part_by_part),
    )
    async with iris.open_node("spark") as node:
        await node.wait_for("bridge", timeout=60)
        client = BridgeClient(node, "bridge", patience=60)
        batch = 0
        for what, rows in _CASES:
            seconds: dict[str, list[float]] = {name: [] for name, _ in ways}
            for _ in range(ROUNDS + 1):
                for name, commit in ways:
                    batch += 1
                    carried = _carried(batch, rows)
                    began = time.perf_counter()
                    await commit(client, carried)
                    seconds[name].append(time.perf_counter() - began)
            for name, found in seconds.items():
                row(f"{_TASKS} tasks with {what} each, {name}", f"{statistics.median(found[1:]) * 1000:,.0f} ms")


def measure_commits() -> None:
    """Print how long a commit takes."""
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            trio.run(_measure)
        finally:
            bridge.end()
