"""A durable log of events that Apache Spark reads.

::

    spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
    events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
    orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")

The bridge itself is a process, ``iris bridge --topic 'orders.>' --data DIR``, or a block in a trio program,
``iris.spark_bridge.server.bridge.open_bridge``.

Columns of the source, as of Spark's Kafka source: ``key`` and ``value`` (binary), ``topic``, ``partition`` (number of
the shard), ``offset``, ``timestamp`` (when the bridge stored it), ``timestampType``, ``headers`` (an array of key and
value).

Options of the source, all of them texts; a name that is none is an error:

- ``bridge``: cluster of the bridge (``bridge``); ``credential`` and ``seeds``, with commas between them: see
  ``iris.open_node``, without them the local realm; ``bridgeTimeout``: seconds for which a bridge that is down is waited
  for (60).
- ``subscribe``: patterns of topics, with commas between them (all); or ``subscribePattern``, a regular expression; or
  ``assign``, numbers of shards.
- ``startingOffsets``: ``earliest`` (the default), ``latest`` or offsets in JSON; or ``startingTimestamp``, milliseconds
  since 1970.  ``endingOffsets`` and ``endingTimestamp`` are for ``spark.read`` only.
- ``maxOffsetsPerTrigger``: events of the largest micro-batch; ``minOffsetsPerTrigger``: events for which one waits, and
  ``maxTriggerDelay`` how long, as ``30s``; ``inlineRows``: batches have so many events at most, and need no worker.
- ``failOnDataLoss``: ``true`` (the default) ends the query where events are missing.

Options of the sink: those of the connection, and ``topic``, if there is no such column; ``delivery``: ``exactly-once``
(the default) or ``at-least-once``.
"""

try:
    from iris.spark_bridge.session import configure, dead_letters, foreach_batch, load, parse, register
except ModuleNotFoundError as error:
    error.add_note(f"iris.spark_bridge needs {error.name}: pip install 'iris-mesh[spark]'")
    raise

__all__ = ["configure", "dead_letters", "foreach_batch", "load", "parse", "register"]
