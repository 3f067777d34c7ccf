"""Spark publishes: each row once in the log, also when a batch is repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- everybody calls it so

import iris
from iris.kernel.errors import ConfigError
from iris.spark_bridge import foreach_batch
from iris.spark_bridge.datasource.inline_sink import publish_inline
from tests.support.bridges import BridgeProcess, publish

# A session apart: with the others these took longer than all the rest.
pytestmark = pytest.mark.xdist_group("source_and_sink")


@pytest.fixture
def bridge(realm: Path, tmp_path: Path) -> Iterator[BridgeProcess]:
    with BridgeProcess(tmp_path / "log") as bridge:
        yield bridge


def log(spark: SparkSession, topic: str) -> list[str]:
    """Return the values on a topic, in the order of the log."""
    rows = spark.read.format("iris").option("subscribe", topic).load().orderBy("offset").collect()
    return [bytes(row.value).decode() for row in rows]


def upper(spark: SparkSession) -> DataFrame:
    """A stream that answers every event on ``in`` with an event on ``out``."""
    events = spark.readStream.format("iris").options(subscribe="in").load()
    return events.select(F.upper(events.value.cast("string")).alias("value"), "key")


def run(frame: DataFrame, checkpoint: Path, **options: str) -> None:
    query = (
        frame.writeStream.format("iris")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


def test_a_stream_is_published_once_also_when_a_batch_is_repeated(
    spark: SparkSession, bridge: BridgeProcess, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    publish([b"a", b"b", b"c"], topic="in", key="k")
    run(upper(spark), checkpoint, topic="out")
    assert log(spark, "out") == ["A", "B", "C"]
    # As if the driver had died after the sink's commit and before its own note of it.
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    bridge.kill()
    bridge.start()
    publish([b"d"], topic="in")
    run(upper(spark), checkpoint, topic="out")
    assert log(spark, "out") == ["A", "B", "C", "D"]


def test_a_repeated_batch_is_published_again_if_at_least_once_is_enough(
    spark: SparkSession, bridge: BridgeProcess, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    publish([b"a"], topic="in")
    run(upper(spark), checkpoint, topic="out", delivery="at-least-once")
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    run(upper(spark), checkpoint, topic="out", delivery="at-least-once")
    assert log(spark, "out") == ["A", "A"]


def test_a_table_is_published_with_topics_keys_and_headers(spark: SparkSession, bridge: BridgeProcess) -> None:
    rows = spark.range(100).select(
        F.col("id").cast("string").alias("value"),
        F.lit("k").alias("key"),
        F.concat(F.lit("t."), (F.col("id") % 2).cast("string")).alias("topic"),
        # So much that tasks stage it, and do not give it to the driver.
        F.expr("array(struct('h' as key, cast(repeat('x', 4000) as binary) as value))").alias("headers"),
    )
    rows.write.format("iris").mode("append").save()
    assert sorted(log(spark, "t.1"), key=int) == [str(n) for n in range(1, 100, 2)]
    row = spark.read.format("iris").load().first()
    assert row is not None
    assert bytes(row.key) == b"k"
    headers = {header.key: bytes(header.value) for header in row.headers}
    assert headers["h"] == b"x" * 4000
    assert set(headers) == {"h", "iris-sender"}


def test_a_named_batch_is_published_once(spark: SparkSession, bridge: BridgeProcess) -> None:
    rows = spark.createDataFrame([("x",)], ["value"])
    for batch in ("0", "0", "1"):
        rows.write.format("iris").options(topic="t", query="nightly", batch=batch).mode("append").save()
    assert log(spark, "t") == ["x", "x"]


def test_foreach_batch_publishes_each_batch_once(spark: SparkSession, bridge: BridgeProcess, tmp_path: Path) -> None:
    workers, inline = foreach_batch("upper", topic="out"), foreach_batch("upper", inline_rows=10, topic="out")
    numbers: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        publish_batch = inline if numbers else workers
        numbers.append(number)
        publish_batch(batch, number)

    def run_once() -> None:
        stream = upper(spark).writeStream.foreachBatch(take).trigger(availableNow=True)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(300)

    publish([b"a"], topic="in")
    run_once()
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    publish([b"b"], topic="in")
    run_once()
    assert numbers == [0, 0, 1]
    assert log(spark, "out") == ["A", "B"]


def test_a_small_batch_is_published_by_the_driver_once_whichever_way_it_is_repeated(
    spark: SparkSession, bridge: BridgeProcess
) -> None:
    inline, workers = foreach_batch("q", inline_rows=2, topic="t"), foreach_batch("q", topic="t")
    two = spark.createDataFrame([("a",), ("b",)], ["value"])
    assert publish_inline(two, 0, query="q", rows=2, given={"topic": "t"})
    for publish_batch in (inline, workers):
        publish_batch(two, 0)
    assert log(spark, "t") == ["a", "b"]
    three = spark.createDataFrame([("c",), ("d",), ("e",)], ["value"])
    large = two.select(F.repeat("value", 200_000).alias("value"))
    for batch in (three, large):
        assert not publish_inline(batch, 1, query="q", rows=2, given={"topic": "t"})
    inline(three, 1)
    inline(three.limit(0), 2)
    inline(two, 3)
    assert sorted(log(spark, "t")) == ["a", "a", "b", "b", "c", "d", "e"]


def test_the_driver_publishes_topics_keys_and_headers(spark: SparkSession, bridge: BridgeProcess) -> None:
    rows = spark.range(1).selectExpr(
        "binary('x') value", "'k' key", "'t.1' topic", "array(struct('h' as key, binary('v') as value)) headers"
    )
    given = {"delivery": "at-least-once"}
    for _ in range(2):
        assert publish_inline(rows, 0, query="q", rows=1, given=given)
    first, second = spark.read.format("iris").load().collect()
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"x", "t.1")
    assert {header.key: bytes(header.value) for header in second.headers}["h"] == b"v"
    with pytest.raises(ConfigError, match="column topic is null in 1 rows"):
        publish_inline(rows.selectExpr("value", "string(null) topic"), 0, query="q", rows=1, given={})
    with pytest.raises(ConfigError, match="column key is bigint"):
        publish_inline(rows.selectExpr("value", "topic", "1L key"), 0, query="q", rows=1, given={})
    with pytest.raises(ConfigError, match="column value is there more than once"):
        publish_inline(rows.selectExpr("value", "topic", "topic value"), 0, query="q", rows=1, given={})
    for wrong in (-1, "256", True):
        with pytest.raises(ConfigError, match=f"inline_rows is {wrong!r}"):
            foreach_batch("q", inline_rows=wrong)  # type: ignore[arg-type] # as users without types may


def test_whoever_listens_hears_what_is_committed(spark: SparkSession, bridge: BridgeProcess) -> None:
    heard: list[tuple[str, bytes, str | None]] = []
    listening = threading.Event()

    async def listen() -> None:
        async with iris.open_node("listener") as node, node.subscribe("results.>") as events:
            await node.wait_for("bridge", timeout=60)
            listening.set()
            with trio.fail_after(60):
                async for event in events:
                    heard.append((event.topic, event.payload, event.key))
                    if len(heard) == 2:
                        break

    listener = threading.Thread(target=trio.run, args=(listen,))
    listener.start()
    assert listening.wait(20)
    rows = spark.createDataFrame([("1", "k"), ("2", None)], "value string, key string")
    rows.coalesce(1).write.format("iris").option("topic", "results.x").mode("append").save()
    listener.join()
    assert heard == [("results.x", b"1", "k"), ("results.x", b"2", None)]
    assert log(spark, "results.x") == ["1", "2"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("'x' value", {}, "topic comes from"),
        ("'x' value, 't' topic", {"topic": "t"}, "topic comes from"),
        ("'x' payload", {"topic": "t"}, "column payload"),
        ("1 value", {"topic": "t"}, "column value is int"),
        ("'x' value, 'h' headers", {"topic": "t"}, "column headers is string"),
        ("'x' value", {"topic": "a b"}, "option topic"),
        ("'x' value, 'a b' topic", {}, "'a b' is not a topic"),
        ("'x' value, cast(null as string) topic", {}, "column topic is null in 1 rows"),
        ("'x' value", {"topic": "t", "delivery": "twice"}, "option delivery"),
        ("'x' value", {"topic": "t", "batch": "1"}, "query and batch"),
        ("'x' value", {"topic": "t", "tpoic": "t"}, "did you mean topic"),
    ],
)
def test_what_cannot_be_published_is_said(
    spark: SparkSession, columns: str, options: dict[str, str], message: str
) -> None:
    rows = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=message):
        rows.write.format("iris").options(**options).mode("append").save()


def test_events_cannot_be_overwritten(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x",)], ["value"])
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.write.format("iris").option("topic", "t").mode("overwrite").save()


def test_the_checkpoint_shows_what_was_read(spark: SparkSession, bridge: BridgeProcess, tmp_path: Path) -> None:
    publish([b"a"], topic="in")
    run(upper(spark), tmp_path / "checkpoint", topic="out")
    offsets = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert [end for shard, end in offsets.items() if "@" in shard] == [1]
