"""Spark sessions that read from bridges.

Nothing of Spark is imported before it is needed: the bridge itself lives in this package too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TUNED: Final = {
    # Between the JVM and its Python workers, over TCP, Nagle and delayed acknowledgements take 40 ms of each batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default forks some 45 processes for each batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""A micro-batch of one row took 139 ms before and 50 ms with these."""

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Each micro-batch is planned anew, by so much code that Java's second compiler works on it for many minutes."""

LATENCY: Final = {
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    # Code that is made for a plan pays for many rows, and a micro-batch has few.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Each plan is written down as text for the user interface, in a long form.
    "spark.sql.ui.explainMode": "simple",
}
"""A micro-batch of one event took 108 ms of Java's processor time before, 66 ms with the first two, 57 ms with all."""

AVRO_LIMIT: Final = "org.apache.avro.limits.collectionItems.maxLength"
_AVRO: Final = f"-D{AVRO_LIMIT}=1048576 " + " ".join(
    f"-Dorg.apache.avro.limits.{kind}.maxLength=67108864" for kind in ("bytes", "string")
)
AVRO: Final = {"spark.driver.defaultJavaOptions": _AVRO, "spark.executor.defaultJavaOptions": _AVRO}
"""Bounds of Java's Avro: it allocates memory for the size that a payload claims, before it reads that much."""

LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings of Spark on this machine alone: other machines do not reach it, and it needs no host name that resolves."""


_PATH: Final = "spark.executorEnv.PYTHONPATH"
"""Spark gives it to the workers of the driver, too."""


def configure(builder: SparkSession.Builder, *, latency: bool = False) -> SparkSession.Builder:
    """Prepare a session builder for ``format("iris")``, and this process for starting Spark.

    Example::

        spark = iris.spark_bridge.configure(SparkSession.builder).getOrCreate()
        events = spark.readStream.format("iris").option("subscribe", "orders.>").load()

    The session that the returned builder makes knows the format.  What the builder, ``spark-submit`` or the environment
    sets already is left alone, and what is set on it later wins:

    - ``JAVA_HOME``: a Java that Spark runs on, see ``iris.spark_bridge.session.java``;
    - ``PYSPARK_PYTHON``: the Python of this process, where Spark would take whatever ``python3`` is;
    - ``spark.executorEnv.PYTHONPATH``: gets ``iris.spark_bridge.session.startup``, with which workers start in a third
      of the time, in front of what it is;
    - Spark binds to the loopback address, if its master is ``local`` (or not set, which is the same);
    - two options that make small batches three times as fast;
    - bounds of the memory that Java's Avro allocates, which ``parse`` needs, see ``AVRO``;
    - with ``latency``, those that halve the processor time of a micro-batch of few events, see ``LATENCY``.

    A session of Spark Connect gets none of these: they are its server's.

    Args:
        builder: builder of the session.
        latency: True for fast answers.  Batches of many rows take longer then: leave it out for those.

    Raises:
        ConfigError: there is no Java that Spark runs on.
    """
    from iris.spark_bridge.session.builder import builder_options, with_startup

    given = builder_options(builder)
    remote = given.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is None or remote.startswith("local"):  # Spark starts the server of the latter itself
        prepare_environment(os.environ)
    if remote is not None:
        return _configured(given)
    settings = TUNED | AVRO | (LATENCY if latency else {})
    if is_local(given.get("spark.master"), os.environ):
        settings |= LOOPBACK
    given[_PATH] = with_startup(given.get(_PATH))
    return _configured(settings | given)


def _configured(settings: Mapping[str, str]) -> SparkSession.Builder:
    from iris.spark_bridge.session.builder import IrisBuilder

    configured = IrisBuilder()
    for name, value in settings.items():
        configured.config(name, value)
    return configured


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Set variables that Spark reads from the environment, where they are not set."""
    environment["JAVA_HOME"] = str(find_java(environment))
    environment.setdefault("PYSPARK_PYTHON", sys.executable)


def is_local(master: str | None, environment: MutableMapping[str, str]) -> bool:
    """Return whether driver and executors will be on this machine."""
    if master is None:
        # Under spark-submit the master is known to the JVM that started this process.
        return "PYSPARK_GATEWAY_PORT" not in environment and "MASTER" not in environment
    return master.startswith("local")


def foreach_batch(query: str, *, inline_rows: int = 0, **options: str) -> Callable[[DataFrame, int], None]:
    """Return a function for ``writeStream.foreachBatch`` that publishes each batch, once.

    For queries that do more with a batch than publish it::

        publish = iris.spark_bridge.foreach_batch("late-flights", topic="flights.late")

        def take(batch, number):
            batch.write.format("delta").mode("append").save(table)
            publish(batch.select("key", "value"), number)

    A batch that Spark repeats is not published again: the bridge remembers query and number.

    Args:
        query: name that distinguishes this query's batches for ever: 1 to 64 letters, digits, ``-`` and ``_``.
            A query that begins with a new checkpoint needs a new one, because its batches are numbered from 0 again.
        inline_rows: rows of the largest batch that is collected, and published by the driver itself: that takes half
            of the time.  A larger one is computed anew for Spark's workers, after its first rows have been collected.
            0: all go to workers.
        options: those of the sink.

    Raises:
        ConfigError: ``inline_rows`` is no number of rows, an option is wrong, or the query's name is.
    """
    from iris.spark_bridge.datasource.options import parse_sink_options

    if type(inline_rows) is not int or inline_rows < 0:
        raise ConfigError(f"inline_rows is {inline_rows!r}: use a whole number, 0 or more")
    parse_sink_options({**options, "query": query, "batch": "0"}, streaming=False)

    def publish(batch: DataFrame, number: int) -> None:
        if inline_rows:
            from iris.spark_bridge.datasource.inline_sink import publish_inline

            if publish_inline(batch, number, query=query, rows=inline_rows, given=options):
                return
        named = {**options, "query": query, "batch": str(number)}
        batch.write.format("iris").options(**named).mode("append").save()

    return publish
