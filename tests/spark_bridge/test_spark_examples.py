"""The example pipelines on real flights: what Spark says is what pandas says."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql import SparkSession

import iris
from docs.pages import blocks, matches
from tests.support.bridges import BridgeProcess

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "spark"
ROWS = 1500

pandas: Any = importlib.import_module("pandas")  # the stubs know what the package uses, and tests use more
THREE_HOURS, SIX_HOURS = pandas.Timedelta(hours=3), pandas.Timedelta(hours=6)


@pytest.fixture(autouse=True)
def bridge(realm: Path, tmp_path: Path) -> Iterator[BridgeProcess]:
    with BridgeProcess(tmp_path / "log") as bridge:
        yield bridge


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports an example as Python does when it is run."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module


def flights(example: Any) -> Any:
    table = example("airport").read_table("flights.csv.zip", ROWS)
    return table.assign(hour=pandas.to_datetime(table["time_hour"]).dt.tz_localize(None))


def test_every_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {"airport", "delays", "weather", "results"}


@pytest.mark.parametrize("name", ["delays", "weather", "results"])
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) < 90
    assert f"python examples/spark/{name}.py" in text


def test_windowed_delays_are_told_once_behind_the_watermark(spark: SparkSession, tmp_path: Path, example: Any) -> None:
    told = {(row.start, row.origin): row for row in example("delays").run(spark, tmp_path, ROWS)}
    table = flights(example)
    watermark = table["hour"].max() - SIX_HOURS
    table = table.assign(start=table["hour"].dt.floor("3h"))
    windows = table[table["start"] + THREE_HOURS <= watermark].groupby(["start", "origin"])["dep_delay"]
    expected = windows.agg(["size", "mean"])
    assert len(expected) > 10
    assert told.keys() == {(start.to_pydatetime(), origin) for start, origin in expected.index}
    for (start, origin), figures in expected.iterrows():
        row = told[start.to_pydatetime(), origin]
        assert row.flights == figures["size"]
        assert row.mean_delay == pytest.approx(figures["mean"])


def test_every_flight_meets_the_weather_of_its_hour(spark: SparkSession, tmp_path: Path, example: Any) -> None:
    joined = example("weather").run(spark, tmp_path, ROWS)
    weather = example("airport").read_table("weather.csv", ROWS // 10)
    expected = flights(example).merge(weather, on=["origin", "time_hour"])
    assert len(expected) > 500
    found = [(row.carrier, row.flight, row.origin, round(row.wind_speed, 6)) for row in joined]
    expected = expected.round({"wind_speed": 6})
    columns = zip(*(expected[name] for name in ("carrier", "flight", "origin", "wind_speed")), strict=True)
    assert sorted(found) == sorted(columns)


def test_a_service_answers_from_what_spark_publishes(spark: SparkSession, tmp_path: Path, example: Any) -> None:
    table = flights(example)
    late = table[table["dep_delay"] > 60]["carrier"].value_counts()
    answers = example("results").run(spark, tmp_path, list(late.index), ROWS)
    assert answers == late.to_dict()
    assert sum(answers.values()) > 10


def test_the_program_of_the_page_prints_what_it_says(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """In the session of these tests; its terminals as they are typed are a long test, as those of other pages."""
    page = list(blocks(ROOT / "docs" / "howto" / "spark" / "read.md"))
    (program,) = (block.file for block in page if block.file is not None)
    (shown,) = (block.code for block in page if block.code.startswith(f"$ python {program.name}\n"))
    for text in ('{"item": "tea", "price": 3.5}', '{"item": "milk", "price": 1.2}'):
        publish_text("orders.created", text)
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        for view in ("events", "orders"):
            spark.catalog.dropTempView(view)
    said = capsys.readouterr().out
    assert matches(shown.partition("\n")[2], said), said


def test_what_does_not_fit_is_a_dead_letter_of_the_program_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ('{"item": "tea", "price": 3.5}', '{"item": "milk", "price": "much"}'):
        publish_text("orders.created", text)
    runpy.run_path(str(ROOT / "examples" / "howto" / "dead_letters.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == ["tea 3.5", '{"item": "milk", "price": "much"}']


def publish_text(topic: str, text: str) -> None:
    """Publish as ``iris pub`` does."""

    async def run() -> None:
        async with iris.open_node("publisher") as node:
            await node.wait_for("bridge", timeout=60)
            await node.publish_confirmed(topic, text, timeout=60)

    trio.run(run)
