"""A durable log of events that Apache Spark reads.

::

    spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
    events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
    orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")

The bridge itself is ``iris.spark_bridge.server.bridge.open_bridge``; on the command line, ``iris bridge``.
"""

from iris.spark_bridge.session import configure, dead_letters, foreach_batch, parse, register

__all__ = ["configure", "dead_letters", "foreach_batch", "parse", "register"]
