"""What is wrong with a stream is what Spark shows: its runner may not put an error of its own in the place of it."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from iris.kernel.errors import ConfigError, IrisError
from iris.spark_bridge.datasource.source import IrisSource

# Untyped, all of them.
runner: Any = importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner")
internal: Any = importlib.import_module("pyspark.sql.datasource_internal")

SCHEMA = StructType().add("n", "integer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribePatern": "x"}, "did you mean subscribePattern"),
        ({"endingOffsets": "latest"}, "option endingOffsets is for a batch read"),
        ({"subscribe": "a", "assign": "0"}, "subscribe"),
        ({"maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger"),
        ({"failOnDataLoss": "perhaps"}, "option failOnDataLoss"),
        ({"mode": "FAILFAST", "badTopic": "bad"}, "option badTopic is for queries that go on"),
        ({"badTopic": "bad", "inlineRows": "5"}, "badTopic and inlineRows contradict"),
        ({"inlineRows": "5", "bridgeTimeout": "soon"}, "option bridgeTimeout"),
        ({"payloadFormat": "AVRO", "payloadSchema": "/nowhere/x.avsc"}, "nowhere"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"columnNameOfCorruptRecord": "n"}, "n"),
        ({"timeZone": "Nowhere/Land"}, "timeZone"),
        ({"kafka.bootstrap.servers": "a:1"}, "about Kafka"),
    ],
)
def test_a_wrong_option_is_named_by_whatever_is_asked_first(options: dict[str, str], message: str) -> None:
    reader: Any = internal._streamReader(IrisSource(options), SCHEMA)
    runner.check_support_func(reader, io.BytesIO())
    for ask in (
        reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
        lambda: reader.commit({}),
        lambda: runner.prepare_for_trigger_available_now_func(reader, io.BytesIO()),
        lambda: runner.get_default_read_limit_func(reader, io.BytesIO()),
        lambda: runner.report_latest_offset_func(reader, io.BytesIO()),
    ):
        with pytest.raises(IrisError, match=message):
            ask()
    reader.stop()


def test_a_simple_reader_that_spark_asks_for_after_all_fails_when_it_is_asked(tmp_path: Path) -> None:
    schema = tmp_path / "x.avsc"
    schema.write_text('{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}')
    source = IrisSource({"inlineRows": "5", "payloadFormat": "avro", "payloadSchema": str(schema)})
    assert not isinstance(internal._streamReader(source, SCHEMA).simple_reader, ConfigError)
    schema.unlink()
    reader: Any = source.simpleStreamReader(SCHEMA)
    with pytest.raises(ConfigError, match=r"x\.avsc"):
        reader.initialOffset()
