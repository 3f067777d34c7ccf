"""Builder of sessions, as ``configure`` returns it.  A module of its own because it needs Spark to be imported."""

from __future__ import annotations

import os
from typing import Any, final

from pyspark.sql import SparkSession

from iris.spark_bridge.session.registration import register


@final
class IrisBuilder(SparkSession.Builder):
    """A session builder whose sessions know ``format("iris")``."""

    def getOrCreate(self) -> SparkSession:  # noqa: N802 -- Spark's name
        """Return the session, made if there is none."""
        spark = super().getOrCreate()
        register(spark)
        return spark

    def create(self) -> SparkSession:
        """Return a new session (Spark Connect)."""
        spark = super().create()
        register(spark)
        return spark


def builder_options(builder: SparkSession.Builder) -> dict[str, Any]:
    """Return what is set already: by ``spark-submit``, if it has started this process, and on a builder."""
    submitted: dict[str, Any] = {}
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext  # a package for Spark Connect alone has no such thing

        SparkContext._ensure_initialized()  # connects to the Java that has started this process
        submitted = dict(SparkConf().getAll())
    return submitted | dict(builder._options)
