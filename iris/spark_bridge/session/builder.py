"""Builder of sessions, as ``configure`` returns it.  A module of its own because it needs Spark to be imported."""

from __future__ import annotations

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
    """Return what was set on a builder."""
    return dict(builder._options)
