"""Registration of the bridge's data source with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make ``format("iris")`` known to a session that ``configure`` has not made."""
    from iris.spark_bridge.datasource.source import IrisSource

    spark.dataSource.register(IrisSource)
