"""What is wrong with a stream is what Spark shows: its runner may not put an error of its own in the place of it."""

from __future__ import annotations

import importlib
import io
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
        ({"badTopic": "bad"}, "no option badTopic any more"),
        ({}, r"no schema\(...\): .* iris.spark_bridge.parse"),
        ({"inlineRows": "5", "bridgeTimeout": "soon"}, "option bridgeTimeout"),
        ({"subscribePattern": "("}, "subscribePattern"),
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


def test_a_simple_reader_that_spark_asks_for_after_all_fails_when_it_is_asked() -> None:
    reader = IrisSource({"inlineRows": "5", "bridgeTimeout": "soon"}).simpleStreamReader(SCHEMA)
    with pytest.raises(ConfigError, match="bridgeTimeout"):
        reader.initialOffset()
