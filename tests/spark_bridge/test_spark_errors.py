"""Errors of ``format("iris")`` as users of Spark see them: the message, and no traceback of who noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.functions import udf

from iris.cli.main import run_command
from tests.support.bridges import BridgeProcess, publish

FIELDS = "n INT, _topic STRING"


def test_the_traceback_of_an_error_of_the_user_stays(spark: SparkSession, realm: Path) -> None:
    broken = udf(lambda value: value // 0, "INT")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(PythonException, match="Traceback"):
        spark.range(1).select(broken("id")).collect()


def test_an_error_is_its_message(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    with BridgeProcess(tmp_path / "log"):
        publish([b"nonsense"])
        with pytest.raises(AnalysisException) as load:
            spark.read.format("iris").option("subscribePatern", "x").load()
        texts["did you mean subscribePattern"] = str(load.value)
        with pytest.raises(AnalysisException) as task:
            spark.read.format("iris").schema(FIELDS).load().collect()
        texts["iris.spark_bridge.parse(df, schema)"] = str(task.value)
        rows = spark.createDataFrame([("a..b", "x")], "topic STRING, value STRING")
        with pytest.raises(PythonException) as sink:
            rows.write.format("iris").mode("append").save()
        texts["'a..b' is not a topic"] = str(sink.value)
        stream = spark.readStream.format("iris").option("startingOffsets", '{"0": 99}').load().writeStream
        query = stream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with pytest.raises(StreamingQueryException) as plan:
            query.processAllAvailable()
        texts["option startingOffsets says 99"] = str(plan.value)
        typed = spark.readStream.format("iris").schema(FIELDS).option("endingOffsets", "latest").load().writeStream
        query = typed.format("noop").option("checkpointLocation", str(tmp_path / "typed")).start()
        with pytest.raises(StreamingQueryException) as options:
            query.processAllAvailable()
        texts["option endingOffsets is for a batch read"] = str(options.value)
    for wanted, text in texts.items():
        assert wanted in text
    assert [wanted for wanted, text in texts.items() if "Traceback" in text or 'File "' in text] == []


def test_a_bridge_that_is_away_and_a_wrong_key_are_one_sentence(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.key").touch(mode=0o600)
    assert run_command(("keys", "realm", str(tmp_path / "realm"))) == 0
    other = ("keys", "cluster", str(tmp_path / "realm"), "other", "--out", str(tmp_path / "other.key"))
    assert run_command((*other, "--seeds", "tcp://127.0.0.1:1")) == 0
    cases = {
        "bridge 'bridge' cannot be reached after 1 s: no node serves it; is 'iris bridge --name bridge'": {},
        "No such file or directory": {"credential": str(tmp_path / "absent.key")},
        "not a credential file": {"credential": str(tmp_path / "empty.key")},
        "bridge 'bridge' cannot be reached after 1 s": {"credential": str(tmp_path / "other.key")},
    }
    texts: dict[str, str] = {}
    for number, (wanted, options) in enumerate(cases.items()):
        with pytest.raises(AnalysisException) as load:
            spark.read.format("iris").options(bridgeTimeout="1", **options).load()
        texts[f"{number} {wanted}"] = str(load.value)
    for wanted, text in texts.items():
        assert wanted[2:] in text
    assert [wanted for wanted, text in texts.items() if "Traceback" in text or 'File "' in text] == []


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ({"continuous": "1 second"}, "Data source iris does not support continuous processing"),
        ({"realTime": "5 seconds"}, "The input stream .*python.* is not supported in Real-time Mode"),
    ],
)
def test_spark_has_no_other_modes_for_python_sources(
    spark: SparkSession, realm: Path, tmp_path: Path, trigger: dict[str, str], message: str
) -> None:
    spark.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
    try:
        with BridgeProcess(tmp_path / "log"):
            writer = spark.readStream.format("iris").load().writeStream.format("noop").outputMode("update")
            started = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger)
            with pytest.raises(PySparkException, match=message):
                started.start().awaitTermination(300)
    finally:
        spark.conf.unset("spark.sql.streaming.realTimeMode.allowlistCheck")


def test_a_source_in_python_has_no_say_in_these() -> None:
    wanted = ("preferredLocations", "metrics", "reportMetrics")
    assert [name for name in wanted if hasattr(DataSourceStreamReader, name)] == []


def test_the_progress_tells_lag_losses_and_rates_of_the_source_and_the_rows_of_the_sink(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    with BridgeProcess(tmp_path / "log"):
        publish([b"one", b"two"])
        events = spark.readStream.format("iris").option("subscribe", "a.>").load().select("value")
        query = (
            events.writeStream.format("iris")
            .options(topic="out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            query.processAllAvailable()
            publish([b"three"])
            query.processAllAvailable()
        finally:
            query.stop()
    batches = [json.loads(one.json) for one in query.recentProgress if one.numInputRows]
    sources = [batch["sources"][0] for batch in batches]
    assert [source["numInputRows"] for source in sources] == [2, 1]
    assert [(source["latestOffset"]["lag"], source["latestOffset"]["lost"]) for source in sources] == [(0, 0), (0, 0)]
    assert sources[1]["latestOffset"]["perSecond"] > 0
    assert all(source["processedRowsPerSecond"] > 0 for source in sources)
    assert [batch["sink"]["numOutputRows"] for batch in batches] == [2, 1]
    assert [source.get("metrics", {}) for source in sources] == [{}, {}], "Spark takes no others of a source in Python"
