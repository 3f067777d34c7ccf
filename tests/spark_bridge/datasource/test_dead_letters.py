"""Dead letters: what does not fit the schema is on a topic of the bridge once, however often Spark reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.dead_letters import dead_letters
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.payloads import typed_columns
from tests.support.bridges import BridgeProcess, publish

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_only_a_task_of_a_stream_has_them() -> None:
    typed = typed_columns(pa.schema([("n", pa.int32())]), corrupt="_corrupt_record", mode="PERMISSIVE")
    options = SourceOptions(bad_topic="bad", typed=typed)
    with (
        pytest.raises(ConfigError, match="badTopic is for the tasks of a stream"),
        dead_letters(options, shard="0@a", slot=1),
    ):
        pass


def test_what_does_not_fit_is_published_once(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    batches: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        batch.take(1)  # an action that need not read to the end
        batches[number] = [row.n for row in batch.orderBy("_offset").collect()]
        assert batch.count() == len(batches[number])

    def run(**options: str) -> None:
        stream = spark.readStream.format("iris").schema("n INT, _offset BIGINT").option("badTopic", "bad.orders")
        query = (
            stream.options(**options)
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    def forget_last_commit() -> None:
        last = max(
            (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda at: int(at.name)
        )
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def letters() -> list[tuple[Any, ...]]:
        rows = spark.read.format("iris").option("subscribe", "bad.orders").load().orderBy("offset").collect()
        found: list[tuple[Any, ...]] = []
        for row in rows:
            headers = {pair.key: bytes(pair.value).decode() for pair in row.headers}
            place = int(headers["bad-offset"]), headers["bad-topic"], headers["bad-partition"], headers["bad-sender"]
            found.append((*place, bytes(row.value), bytes(row.key), headers["bad-reason"]))
        return found

    payloads = [b'{"n":0}', b"nonsense", b'{"n":"x"}', b'{"n":3}', b"{" * 100_000, b'{"n":5}']
    with BridgeProcess(tmp_path / "log"):
        publish(payloads, topic="orders.new", key="k")
        run(subscribe="orders.>")
        assert batches == {0: [0, None, None, 3, None, 5]}
        place = ("orders.new", "0", "publisher")
        first, second, third = letters()
        assert first[:6] == (1, *place, b"nonsense", b"k")
        assert second == (2, *place, b'{"n":"x"}', b"k", "n: 'x' is no int32")
        assert (third[0], len(third[4])) == (4, 100_000)
        assert "JSON is malformed" in first[-1]
        # Spark repeats the micro-batch, as after a crash.
        forget_last_commit()
        run(subscribe="orders.>", mode="DROPMALFORMED")
        assert batches[0] == [0, 3, 5]
        assert letters() == [first, second, third]
        # The topic itself may be read along: what is on it does not go there again.
        run(mode="DROPMALFORMED")
        publish([b"odd"], topic="orders.new", key="k")
        run(mode="DROPMALFORMED")
        assert [letter[4] for letter in letters()][3:] == [b"odd"]
        # Divided otherwise, a repeated micro-batch is another one: none is missing, and some come twice.
        forget_last_commit()
        run(mode="DROPMALFORMED", minPartitions="2")
        assert {letter[4] for letter in letters()[3:]} == {b"odd"}


def test_a_table_refuses_the_option(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    with BridgeProcess(tmp_path / "log"), pytest.raises(Exception, match="badTopic is for a stream"):
        spark.read.format("iris").schema("n INT").option("badTopic", "bad").load().collect()
