"""Sessions: what ``configure`` sets, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

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


def test_workers_of_this_session_take_pyspark_from_the_package(spark: SparkSession) -> None:
    origin = udf(lambda _: __import__("pyspark").__file__, "STRING")  # pyright: ignore[reportUnknownLambdaType]
    assert {row[0] for row in spark.range(2).select(origin("id")).collect()} == {pyspark.__file__}


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
