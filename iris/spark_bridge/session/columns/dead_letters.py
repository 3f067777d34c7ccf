"""Dead letters: payloads that do not fit, published on topics of the bridge, each once.

A letter is known by the shard, with the epoch of its log, and the offset of its event.  Those of 65,536 offsets of a
shard have a topic together, which is read before more of them are published: so the log itself says which are there,
and neither another checkpoint nor other ranges, topics or schemas lose or double one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.parse import CORRUPT, REASON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEEDED: Final = (CORRUPT, REASON, "_shard", "_offset", "_topic", "_partition", "_key", "_headers")
_FACTS: Final = {"reason": REASON, "topic": "_topic", "shard": "_shard", "offset": "_offset"}
_PLACE: Final = "array_sort(filter(headers, h -> h.key IN ('bad-shard', 'bad-offset'))).value"
"""The shard and the offset of a letter's event, by which it is known."""
_COPIED: Final = (
    "transform(filter(coalesce(_headers, array()), h -> h.key IN ('iris-sender', 'iris-encoding')),"
    " h -> struct(replace(h.key, 'iris-', 'bad-') AS key, h.value AS value))"
)
_ENCODED: Final = "filter(coalesce(_headers, array()), h -> h.key = 'iris-encoding')"
"""With it the sink packs again what the source made JSON of: the JSON may be too large for an event."""
_BLOCK: Final = 16
"""Bits of the offsets whose letters have one topic: what is read before a batch of letters is published."""
_MOST: Final = 256
"""Topics that one read may name; where letters are on more of them, all letters are read."""
_LONGEST: Final = f"{2**31 - 1}.{2**63 - 1 >> _BLOCK}"
"""Greatest shard and block, which may follow the topic."""


def dead_letters(topic: str, **options: str) -> Callable[[DataFrame, int], None]:
    """Return a function for ``writeStream.foreachBatch`` that publishes the payloads which do not fit, each once.

    Example::

        events = spark.readStream.format("iris").option("includeShard", "true").load()
        orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")
        publish = iris.spark_bridge.dead_letters("orders.bad")

        def take(batch, number):
            batch.where("_corrupt_record IS NULL").write.format("delta").mode("append").save(table)
            publish(batch, number)

    A letter has the key of its event, its payload as it was published, and the headers ``bad-reason``, ``bad-topic``,
    ``bad-shard``, ``bad-offset``, ``bad-sender`` and ``bad-encoding``.  Its topic is ``topic``, the number of the shard
    and that of the block of offsets, such as ``orders.bad.0.17``: subscribe to ``orders.bad.>``.  What was read from
    such a topic is not published again.  The function reads the batch: ``persist`` one that is expensive.

    Not promised: that two queries which publish the letters of one event at the same time are told apart.

    Args:
        topic: where letters go.
        options: ``bridge``, ``credential``, ``seeds`` and ``bridgeTimeout`` of the bridge that takes them.

    Raises:
        ConfigError: the topic or an option is wrong; from the function: the batch lacks a column that ``parse`` gives
            where the source has the options ``includeShard`` and ``includeHeaders``.
    """
    from iris.spark_bridge.datasource.options import parse_sink_options

    if wrong := set(options) - {"bridge", "credential", "seeds", "bridgeTimeout"}:
        raise ConfigError(f"dead letters have no option {min(wrong)}: use bridge, credential, seeds or bridgeTimeout")
    parse_sink_options({**options, "topic": f"{topic}.{_LONGEST}"}, streaming=False)
    if "," in topic:  # it would be read as two topics
        raise ConfigError(f"dead letters go to one topic, and {topic!r} has a comma: use one without")

    def publish(batch: DataFrame, _number: int) -> None:
        from pyspark.sql import functions as fn

        if missing := [name for name in _NEEDED if name not in batch.columns]:
            raise ConfigError(
                f"dead letters need the column {missing[0]}: give the source the option includeShard, and parse its "
                "rows with all columns"
            )
        headers = [
            fn.expr(f"struct('bad-{name}' AS key, CAST(CAST({column} AS STRING) AS BINARY) AS value)")
            for name, column in _FACTS.items()
        ]
        letters = (
            batch.where(fn.col(CORRUPT).isNotNull() & ~fn.col("_topic").startswith(f"{topic}."))
            .select(
                fn.col("_key").alias("key"),
                fn.col(CORRUPT).alias("value"),
                fn.concat_ws(".", fn.lit(topic), "_partition", fn.shiftright("_offset", _BLOCK)).alias("topic"),
                fn.concat(fn.array(*headers), fn.expr(_COPIED), fn.expr(_ENCODED)).alias("headers"),
            )
            .persist()
        )
        try:
            if topics := [row.topic for row in letters.select("topic").distinct().collect()]:
                if len(topics) > _MOST:
                    topics = [f"{topic}.>"]
                reader = batch.sparkSession.read.format("iris").options(**options, failOnDataLoss="false")
                place = fn.expr(_PLACE).alias("place")
                there = reader.option("subscribe", ",".join(topics)).load().select(place)
                # A batch may have a row twice, such as one that was joined.
                new = letters.select("*", place).join(there, "place", "left_anti").dropDuplicates(["place"])
                new.drop("place").write.format("iris").options(**options).mode("append").save()
        finally:
            letters.unpersist()

    return publish
