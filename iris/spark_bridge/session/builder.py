"""Builder of sessions, as ``configure`` returns it.  A module of its own because it needs Spark to be imported."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from pyspark.sql import SparkSession

from iris.spark_bridge.session.registration import register


@final
class IrisBuilder(SparkSession.Builder):
    """A session builder whose sessions know ``format("iris")``."""

    def getOrCreate(self) -> SparkSession:
        """Return the session, made if there is none."""
        with _passing_on_startup():
            spark = super().getOrCreate()
        register(spark)
        return spark

    def create(self) -> SparkSession:
        """Return a new session (Spark Connect)."""
        with _passing_on_startup():
            spark = super().create()
        register(spark)
        return spark


@contextmanager
def _passing_on_startup() -> Generator[None]:
    """Let a Java that is started here pass its own ``PYTHONPATH`` on, to workers that no option of a session is for."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = with_startup(before)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def with_startup(path: str | None) -> str:
    """Return a ``PYTHONPATH`` with the folder of ``iris.spark_bridge.session.startup`` in front."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parent / "startup"), path)))


def builder_options(builder: SparkSession.Builder) -> dict[str, str]:
    """Return what is set already: by ``spark-submit``, if it has started this process, and on a builder."""
    submitted: dict[str, str] = {}
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkConf, SparkContext  # a package for Spark Connect alone has no such thing

        SparkContext._ensure_initialized()  # connects to the Java that has started this process
        submitted = dict(SparkConf().getAll())
    return submitted | dict(builder._options)
