"""What the tests with a real Spark share: one session, in a realm of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from iris import spark_bridge
from iris.spark_bridge.session.session import QUICK_JAVA


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
    """A Spark session on two cores, made as users make it."""
    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(realm / "spark"),
        "spark.sql.warehouse.dir": str(realm / "warehouse"),
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUICK_JAVA,  # the whole session is shorter than Java's second compiler takes
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = spark_bridge.configure(builder).getOrCreate()
    yield session
    session.stop()
