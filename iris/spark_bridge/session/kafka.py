"""Events of a bridge on Kafka, by Spark's own Kafka source: the columns of ``format("iris")``, without repeats.

Spark's source reads from the brokers.  Neither the bridge nor its rights have a part in that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from iris.kernel.errors import ConfigError
from iris.kernel.topic_syntax import is_pattern
from iris.spark_bridge.events.schema import HEADER_NUMBER, HEADER_PUBLISHER, HEADER_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

REPEATS: Final = "10 minutes"

_PASSED: Final = frozenset(
    {
        *("endingTimestamp", "failOnDataLoss", "maxOffsetsPerTrigger", "maxRecordsPerPartition", "maxTriggerDelay"),
        *("minOffsetsPerTrigger", "minPartitions", "startingOffsetsByTimestampStrategy", "startingTimestamp"),
    }
)
"""Options that mean the same there."""

_POSITIONS: Final = frozenset(
    {"startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"}
)
_OWN: Final = frozenset({"bridge", "subscribe", "subscribePattern"})

_TOPIC: Final = f"coalesce(CAST(get(filter(headers, h -> h.key = '{HEADER_TOPIC}'), 0).value AS STRING), topic)"
_COLUMNS: Final = (
    "key",
    "value",
    f"{_TOPIC} AS topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    f"filter(headers, h -> h.key != '{HEADER_TOPIC}') AS headers",
)
_IDENTITY: Final = "_event"
"""Column that names an event: a repeat has the same.  A record that no bridge has written is one of its own."""
_EVENT: Final = (
    f"coalesce(CAST(get(filter(headers, h -> h.key = '{HEADER_PUBLISHER}'), 0).value AS STRING) || '/' || "
    f"CAST(get(filter(headers, h -> h.key = '{HEADER_NUMBER}'), 0).value AS STRING) || '/' || {_TOPIC}, "
    f"partition || '@' || offset) AS {_IDENTITY}"
)


def load(
    reader: DataStreamReader | DataFrameReader,
    *,
    kafka: str | None = None,
    repeats: str | None = REPEATS,
    **options: str,
) -> DataFrame:
    """Load the events of a bridge, whether it has a log of its own or keeps them in Kafka.

    Example::

        events = iris.spark_bridge.load(spark.readStream, subscribe="orders.>")
        events = iris.spark_bridge.load(spark.readStream, subscribe="orders.>", kafka="kafka1:9092,kafka2:9092")

    The columns are the same, and ``parse`` takes them.  A query that moves from one to the other begins with a new
    checkpoint.

    With Kafka this is Spark's own source: the session needs its package.  It reads from the brokers, which know nothing
    of Iris's rights.  A repeat is dropped if it is not older than ``repeats``, by the records' timestamps, than the
    newest event of a stream; a later one is a row more.  ``partition`` and ``offset`` are those of Kafka.

    Args:
        reader: ``spark.readStream`` or ``spark.read``.
        kafka: addresses of brokers, with commas between them (beta).  None: the bridge has a log of its own.
        repeats: with Kafka, how long a stream remembers events to drop their repeats; None: it drops none.
        options: those of the source.  With Kafka those of topics, positions, limits and ``failOnDataLoss``; ``bridge``
            is Kafka's topic; and ``kafka.`` before each property of its client, such as ``kafka.security.protocol``.

    Raises:
        ConfigError: an option is wrong, or there is no such with Kafka.
    """
    if kafka is None:
        for name, value in options.items():
            reader.option(name, value)
        return reader.format("iris").load()
    topic = options.get("bridge", "bridge")
    reader.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    reader.option("includeHeaders", "true")
    for name, value in _options_of_kafka(options, topic):
        reader.option(name, value)
    return from_kafka(reader.load(), _wanted(options), repeats)


def from_kafka(records: DataFrame, topics: str | None, repeats: str | None) -> DataFrame:
    """Return the events of what Spark's Kafka source has read.

    Args:
        records: columns of that source, with headers.
        topics: regular expression for the whole topic; None: all.
        repeats: how long a stream remembers events; None: repeats are kept.
    """
    events = records.selectExpr(*_COLUMNS, _EVENT)
    if topics is not None:
        events = events.where(events["topic"].rlike(topics))
    if repeats is not None and records.isStreaming:
        events = events.withWatermark("timestamp", repeats).dropDuplicatesWithinWatermark([_IDENTITY])
    elif repeats is not None:
        events = events.dropDuplicates([_IDENTITY])
    return events.drop(_IDENTITY)


def _options_of_kafka(options: dict[str, str], topic: str) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if name in _POSITIONS:
            yield name, _position(name, value, topic)
        elif name in _PASSED or name.startswith("kafka."):
            yield name, value
        elif name not in _OWN:
            raise ConfigError(
                f"with Kafka there is no option {name}: use {', '.join(sorted(_PASSED | _POSITIONS | _OWN))}"
            )
    if not any(name.startswith("starting") and name != "startingOffsetsByTimestampStrategy" for name in options):
        yield "startingOffsets", "earliest"


def _position(name: str, value: str, topic: str) -> str:
    """Return offsets, or times, by shard as Kafka's source takes them: by topic and partition."""
    if value in ("earliest", "latest"):
        return value
    try:
        shards = json.loads(value)
        return json.dumps({topic: {str(int(shard.partition("@")[0])): int(at) for shard, at in shards.items()}})
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"option {name} is {value!r:.100}: use earliest, latest, or numbers by shard") from None


def _wanted(options: dict[str, str]) -> str | None:
    """Return a regular expression for the topics that are wanted."""
    if (expression := options.get("subscribePattern")) is not None:
        return f"^(?:{expression})$"
    if (given := options.get("subscribe")) is None:
        return None
    patterns = [pattern.strip() for pattern in given.split(",")]
    if wrong := [pattern for pattern in patterns if not is_pattern(pattern)]:
        raise ConfigError(f"option subscribe has {wrong[0]!r:.100}: use patterns of topics, such as orders.>")
    return f"^(?:{'|'.join(map(_expression, patterns))})$"


def _expression(pattern: str) -> str:
    tokens = {"*": r"[^.]+", ">": r".+"}
    return r"\.".join(tokens.get(token) or re.escape(token) for token in pattern.split("."))
