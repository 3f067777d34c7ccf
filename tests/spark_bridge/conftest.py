"""Fixtures of the tests with a real Spark: one session, in a realm of its own."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from iris import spark_bridge
from tests.support.spark_packages import AVRO, kafka_source, spark_packages

QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
"""What Spark, Arrow and pandas warn of in their own code."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Pass over the warnings that come of Spark's own code, in tests with a session."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(QUIET)


@pytest.fixture(scope="session")
def realm() -> Iterator[Path]:
    """A local realm that this test run has for itself; its processes inherit it from the environment."""
    # Sockets have short paths, and pytest's are long.
    directory = Path(tempfile.mkdtemp(prefix="iris-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRIS_HOME", str(directory / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(realm: Path) -> Iterator[SparkSession]:
    """A Spark session on two cores, made as users make it; tests/support/spark has what makes it quick."""
    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = {
        "spark.local.dir": str(realm / "spark"),
        "spark.sql.warehouse.dir": str(realm / "warehouse"),
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
    }
    if packages := [*spark_packages(), *kafka_source()]:
        settings["spark.jars"] = ",".join(map(str, packages))
    for name, value in settings.items():
        builder = builder.config(name, value)
    interrupt = signal.getsignal(signal.SIGINT)
    session = spark_bridge.configure(builder).getOrCreate()
    # Spark takes Ctrl-C, and raises it wherever it comes: the other tests of this process have it as trio takes it.
    signal.signal(signal.SIGINT, interrupt)
    yield session
    session.stop()


@pytest.fixture
def avro(spark: SparkSession) -> SparkSession:
    """A session that reads Avro."""
    if not any(AVRO[0] in package.name for package in spark_packages()):
        pytest.skip("the package for Avro is not on this machine, and mvn is missing or does not find it")
    return spark
