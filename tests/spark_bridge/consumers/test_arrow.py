"""Events of a log as Arrow, for pandas and DuckDB."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import iris.arrow
import iris.sync
from tests.support.bridges import open_sync_bridge

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "howto"
PAYLOADS: list[tuple[Any, str | None, bytes | None]] = [
    ({"price": 3, "item": "tea"}, '{"price":3,"item":"tea"}', None),
    ("a text, with 'quotes'", "a text, with 'quotes'", None),
    ("été".encode(), "été", None),
    (b"\xff\x00", None, b"\xff\x00"),
    (None, None, None),
    (7, "7", None),
    ([b"\xff", float("nan"), "x"], '["/w==",null,"x"]', None),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[iris.sync.Node]:
    """A program beside a bridge with the events above."""
    with ExitStack() as stack:
        serving = stack.enter_context(iris.sync.open_node("bridge"))
        stack.enter_context(open_sync_bridge(serving, topics=[">"], directory=tmp_path / "log"))
        node = stack.enter_context(iris.sync.open_node("analyst"))
        node.wait_for("bridge", timeout=60)
        for payload, *_ in PAYLOADS:
            node.publish_confirmed("mixed.new", payload, key="k", headers={"h": "v"}, timeout=60)
        yield node


def reader(consumer: iris.sync.Consumer) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(iris.arrow.SCHEMA, map(iris.arrow.to_arrow, consumer))


def test_events_become_columns(node: iris.sync.Node) -> None:
    with node.bridge().consume("mixed.>", until="now") as orders:
        table = reader(orders).read_all()
    rows = table.to_pylist()
    assert [(row["value"], row["value_bytes"]) for row in rows] == [(text, data) for _, text, data in PAYLOADS]
    assert [row["offset"] for row in rows] == list(range(len(PAYLOADS)))
    first = rows[0]
    assert (first["topic"], first["key"], first["sender"], first["headers"]) == (
        "mixed.new",
        "k",
        "analyst",
        [("h", "v")],
    )
    assert first["shard"].startswith("0@")
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_no_events_are_no_rows(node: iris.sync.Node) -> None:
    with node.bridge().consume("nothing", until="now") as orders:
        assert reader(orders).read_all().num_rows == 0
    assert iris.arrow.to_arrow([]).schema == iris.arrow.SCHEMA


def test_pandas_reads_them(node: iris.sync.Node) -> None:
    with node.bridge().consume("mixed.>", until="now") as orders:
        log: Any = reader(orders)
        frame = log.read_pandas()
    assert frame["value"].iloc[0] == PAYLOADS[0][1]
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"


def test_duckdb_reads_them_while_they_come(node: iris.sync.Node, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    for item, price in (("tea", 3.5), ("milk", 2), ("tea", 4)):
        node.publish_confirmed("orders.new", {"item": item, "price": price}, timeout=60)
    runpy.run_path(str(EXAMPLES / "log_to_duckdb.py"))
    assert capsys.readouterr().out == "[('milk', 2.0), ('tea', 7.5)]\n"
