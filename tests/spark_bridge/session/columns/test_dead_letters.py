"""Dead letters: what does not fit is on a topic of the bridge once, whatever else changes before it is read again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import DataFrame, SparkSession

import iris
from iris import spark_bridge
from iris.kernel.errors import ConfigError
from tests.spark_bridge.session.columns.test_parse import RECORD
from tests.support.bridges import BridgeProcess, publish
from tests.support.spark_packages import AVRO, spark_packages


def test_options_that_are_wrong_are_refused_at_once(spark: SparkSession) -> None:
    for topic, options, message in (
        ("bad.*", {}, "option topic"),
        ("bad" * 80, {}, "option topic"),  # with a shard and a block of many digits
        ("bad,orders", {}, "has a comma: use one without"),
        ("bad", {"bridg": "x"}, "no option bridg"),
        ("bad", {"bridgeTimeout": "soon"}, "option bridgeTimeout"),
    ):
        with pytest.raises(ConfigError, match=message):
            spark_bridge.dead_letters(topic, **options)
    df = spark.createDataFrame([(bytearray(b"x"), 1)], "value BINARY, offset BIGINT")
    with pytest.raises(ConfigError, match="column _shard: give the source the option includeShard"):
        spark_bridge.dead_letters("bad")(spark_bridge.parse(df, "n INT"), 0)


def test_a_letter_is_there_once_whatever_changes_before_a_repeat(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    publish_letters = spark_bridge.dead_letters("bad.orders")
    batches: list[int] = []
    framed = any(AVRO[0] in package.name for package in spark_packages())

    def run(checkpoint: str, *, framing: bool = False, **options: str) -> None:
        def take(batch: DataFrame, number: int) -> None:
            """A batch that is repeated writes its part of the table again.  Each letter is in it twice."""
            batches.append(number)
            batch.where("_corrupt_record IS NULL").select("_offset").write.mode("overwrite").parquet(
                str(tmp_path / "table" / f"{checkpoint}-{number}")
            )
            publish_letters(batch.unionAll(batch), number)

        events = spark.readStream.format("iris").option("includeShard", "true").options(**options).load()
        if framing and framed:
            orders = spark_bridge.parse(events, RECORD, format="avro", schemas={7: RECORD}, unknown="corrupt")
        else:
            orders = spark_bridge.parse(events, "n BOOLEAN" if framing else "n INT")
        query = orders.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(300)

    def letters() -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        rows = spark.read.format("iris").option("subscribe", "bad.orders.>").load().orderBy("offset").collect()
        for row in rows:
            headers = {pair.key: bytes(pair.value).decode() for pair in row.headers if pair.key.startswith("bad-")}
            place = headers["bad-topic"], int(headers["bad-offset"]), headers["bad-shard"].partition("@")[0]
            found.append((*place, headers["bad-reason"], headers["bad-sender"], bytes(row.value), bytes(row.key)))
            assert row.topic == "bad.orders.0.0"
        return sorted(found)

    def in_table() -> list[int]:
        return sorted(row[0] for row in spark.read.parquet(str(tmp_path / "table" / "*")).collect())

    def forget_last_commit(checkpoint: str) -> None:
        commits = [path for path in (tmp_path / checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(commits, key=lambda at: int(at.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    with BridgeProcess(tmp_path / "log"):
        publish([b'{"n":0}', b"nonsense", b'{"n":"x"}', b"{" * 100_000], topic="orders.new", key="k")
        publish([b"other", b'{"n":1}'], topic="other.new", key="k")
        run("one", subscribe="orders.>", maxRecordsPerPartition="1")
        place = ("0", "unfit", "publisher")
        orders = [
            ("orders.new", 1, *place, b"nonsense", b"k"),
            ("orders.new", 2, *place, b'{"n":"x"}', b"k"),
            ("orders.new", 3, *place, b"{" * 100_000, b"k"),
        ]
        assert (letters(), in_table()) == (orders, [0])
        for name in ("one", "table"):
            shutil.copytree(tmp_path / name, tmp_path / "backup" / name)
        # The last batch is repeated, in other ranges, and with another framing that nothing fits.
        forget_last_commit("one")
        run("one", framing=True, subscribe="orders.>", minPartitions="3")
        number = ("orders.new", 0, "0", "unframed" if framed else "unfit", "publisher", b'{"n":0}', b"k")
        assert letters() == sorted([number, *orders])
        # More topics: their events lie before and behind what was read, and what is on the topic itself is left alone.
        run("one", subscribe=">")
        both = sorted([number, *orders, ("other.new", 4, *place, b"other", b"k")])
        assert letters() == both
        # Table and checkpoint from a backup, then a checkpoint that is new.
        publish([b"late", b'{"n":2}'], topic="orders.new", key="k")
        for name in ("one", "table"):
            shutil.rmtree(tmp_path / name)
            shutil.move(tmp_path / "backup" / name, tmp_path / name)
        run("one", subscribe="orders.>", maxOffsetsPerTrigger="2", maxRecordsPerPartition="1")
        late = max(letter[1] for letter in letters())
        every = sorted([*both, ("orders.new", late, *place, b"late", b"k")])
        assert (letters(), in_table()) == (every, [0, late + 1])
        run("two", subscribe=">")
        assert letters() == every
    assert len(batches) >= 6


def test_a_letter_is_what_was_published_though_its_json_is_too_large_for_an_event(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    payloads: list[Any] = [[-1] * 400_000, {"n": "text"}, {"n": b"bytes"}, "a text", b"some bytes"]
    published: list[Any] = []

    async def consume() -> None:
        async with iris.open_node("reader") as node, node.bridge().consume("bad.>", group="letters") as batches:
            with trio.fail_after(60):
                async for batch in batches:
                    async with batch:
                        published.extend(event.payload for event in batch)
                    if len(published) >= len(payloads):
                        break

    with BridgeProcess(tmp_path / "log"):
        publish(payloads, topic="orders.new")
        events = spark.read.format("iris").option("includeShard", "true").option("subscribe", "orders.>").load()
        for number in range(2):
            spark_bridge.dead_letters("bad")(spark_bridge.parse(events, "n INT"), number)
        trio.run(consume)
        assert sorted(map(repr, published)) == sorted(map(repr, payloads))
        texts = {bytes(row.value) for row in spark.read.format("iris").option("subscribe", "bad.>").load().collect()}
        assert texts == {bytes(row.value) for row in events.collect()}


def test_letters_of_more_blocks_than_a_read_has_topics_are_there_once(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    fields = (
        "_corrupt_record BINARY, _corrupt_reason STRING, _shard STRING, _offset BIGINT, _topic STRING, _partition INT, "
        "_key BINARY, _headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    offsets = [block << 16 for block in range(300)]
    rows = [(bytearray(b"x"), "unfit", "0@a", offset, "orders", 0, None, None) for offset in offsets]
    batch = spark.createDataFrame(rows, fields).coalesce(1)
    with BridgeProcess(tmp_path / "log"):
        for number in range(2):
            spark_bridge.dead_letters("bad")(batch, number)
        assert spark.read.format("iris").option("subscribe", "bad.>").load().count() == len(offsets)
