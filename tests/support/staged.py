"""Parts as Spark's tasks send them to a bridge, made without Spark."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa

from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.events.schema import SINK_SCHEMA
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.staging.staging import StagedPart, write_rows
from iris.testing import Network


def written(values: Sequence[str], *, topic: str = "out.x", key: str | None = None) -> io.BytesIO:
    """Return the part of a task with these values in its rows."""
    file = io.BytesIO()
    rows = [{"value": value.encode(), "topic": topic, "key": key and key.encode()} for value in values]
    write_rows(file, [pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA)])
    return file


def rows(*rows: Mapping[str, object]) -> io.BytesIO:
    """Return the part of a task that does not check its rows."""
    file = io.BytesIO()
    write_rows(file, [pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA)])
    return file


def part(partition: int, *, batch: int = 0, attempt: int = 0) -> StagedPart:
    return StagedPart(query="q", batch=batch, partition=partition, attempt=attempt)


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


def staged_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "staged").rglob("*") if path.is_file())
