"""A durable log of events that Apache Spark reads.

::

    spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
    events = spark.readStream.format("iris").option("subscribe", "orders.>").load()

The bridge itself is ``open_bridge``; on the command line, ``iris bridge``.
"""

from iris.spark_bridge.session import configure, foreach_batch, register

__all__ = ["configure", "foreach_batch", "register"]
