"""Sessions: what ``configure`` sets, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session import startup
from iris.spark_bridge.session.builder import IrisBuilder, builder_options
from iris.spark_bridge.session.session import LATENCY, LOOPBACK, TUNED, configure, is_local, prepare_environment


def test_a_local_session_is_tuned_and_binds_to_the_loopback_address() -> None:
    options = builder_options(configure(SparkSession.builder))
    assert options.items() >= (TUNED | LOOPBACK).items()


def test_what_was_set_before_or_is_set_later_wins() -> None:
    name = "spark.python.unix.domain.socket.enabled"
    assert builder_options(configure(SparkSession.builder.config(name, "false")))[name] == "false"
    assert builder_options(configure(SparkSession.builder).config(name, "false"))[name] == "false"


def test_a_session_for_fast_answers_has_more_set_but_not_over_the_users_head() -> None:
    assert not LATENCY.keys() & builder_options(configure(SparkSession.builder)).keys()
    name = "spark.driver.extraJavaOptions"
    options = builder_options(configure(SparkSession.builder.config(name, "-Dmine=1"), latency=True))
    assert options.items() >= (TUNED | LATENCY | {name: "-Dmine=1"}).items()


def test_a_session_on_a_cluster_is_not_bound_to_loopback() -> None:
    options = builder_options(configure(SparkSession.builder.master("spark://host:7077")))
    assert not LOOPBACK.keys() & options.keys()
    assert options["spark.master"] == "spark://host:7077"


@pytest.mark.parametrize(
    ("master", "environment", "expected"),
    [
        (None, {}, True),
        ("local[2]", {}, True),
        ("local-cluster[2,1,1024]", {}, True),
        ("spark://host:7077", {}, False),
        ("yarn", {}, False),
        (None, {"PYSPARK_GATEWAY_PORT": "1"}, False),
        (None, {"MASTER": "yarn"}, False),
    ],
)
def test_local_is_what_stays_on_this_machine(master: str | None, environment: dict[str, str], expected: bool) -> None:
    assert is_local(master, environment) == expected


def find_some_java(_: object) -> str:
    """Stand in for looking for one."""
    return "/java"


def test_sparks_workers_get_this_python_unless_another_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("iris.spark_bridge.session.session.find_java", find_some_java)
    environment = {"JAVA_HOME": "", "PATH": "", "HOME": str(tmp_path)}
    prepare_environment(environment)
    assert environment["JAVA_HOME"] == "/java"
    assert environment["PYSPARK_PYTHON"] == sys.executable
    environment["PYSPARK_PYTHON"] = "/other"
    prepare_environment(environment)
    assert environment["PYSPARK_PYTHON"] == "/other"


def test_workers_start_quickly_and_keep_the_users_path() -> None:
    name = "spark.executorEnv.PYTHONPATH"
    folder = str(Path(startup.__file__).parent)
    assert builder_options(configure(SparkSession.builder))[name] == folder
    assert builder_options(configure(SparkSession.builder.config(name, "/mine")))[name] == f"{folder}:/mine"


def test_a_session_of_spark_connect_gets_nothing_that_is_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = SparkSession.builder.remote("sc://host:15002").config("spark.sql.ansi.enabled", "false")
    monkeypatch.setattr("iris.spark_bridge.session.session.find_java", no_java)
    options = builder_options(configure(builder, latency=True))
    assert options == {"spark.remote": "sc://host:15002", "spark.sql.ansi.enabled": "false"}


def no_java(_: object) -> str:
    """Stand in for a machine without one."""
    raise ConfigError("Spark needs Java")


def test_workers_of_this_session_take_pyspark_from_the_package(spark: SparkSession) -> None:
    origin = udf(lambda _: __import__("pyspark").__file__, "STRING")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    rows = spark.range(2).select(origin("id").alias("path")).collect()
    assert {row.path for row in rows} == {pyspark.__file__}
    assert startup.__path__[0] not in os.environ.get("PYTHONPATH", "").split(":"), "that of this process stays"
    jvm: Any = spark.sparkContext._jvm
    assert jvm.System.getenv("PYTHONPATH").split(":")[0] == startup.__path__[0]


def test_workers_of_this_session_have_iris_from_their_parent_which_has_one_thread(spark: SparkSession) -> None:
    def look(_: int) -> str:
        import os
        import sys

        threads = len(os.listdir(f"/proc/{os.getppid()}/task"))  # noqa: PTH208
        return f"{'iris.sync' in sys.modules}, {threads} thread"

    assert spark.sparkContext.parallelize(range(2), 2).map(look).collect() == ["True, 1 thread"] * 2


def test_the_builder_can_be_chained_on() -> None:
    builder = configure(SparkSession.builder).appName("x").config("spark.a", "b").master("local[1]")
    assert isinstance(builder, IrisBuilder)
    assert builder_options(builder)["spark.app.name"] == "x"


def test_a_session_knows_the_format(spark: SparkSession) -> None:
    again = configure(SparkSession.builder).getOrCreate()
    assert again.sparkContext is spark.sparkContext
    assert again.dataSource is not None


def test_a_bridge_runs_without_spark_being_imported() -> None:
    code = "import sys, iris.spark_bridge, iris.spark_bridge.server.bridge; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
