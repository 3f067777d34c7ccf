"""Errors of ``format("iris")`` as users of Spark see them: the message, and no traceback of who noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tests.support.bridges import BridgeProcess, publish

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

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
        with pytest.raises(PythonException) as task:
            spark.read.format("iris").schema(FIELDS).option("mode", "FAILFAST").load().collect()
        texts["does not fit the schema"] = str(task.value)
        rows = spark.createDataFrame([("a..b", "x")], "topic STRING, value STRING")
        with pytest.raises(PythonException) as sink:
            rows.write.format("iris").mode("append").save()
        texts["'a..b' is not a topic"] = str(sink.value)
        stream = spark.readStream.format("iris").option("startingOffsets", '{"0": 99}').load().writeStream
        query = stream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with pytest.raises(StreamingQueryException) as plan:
            query.processAllAvailable()
        texts["option startingOffsets says 99"] = str(plan.value)
    for wanted, text in texts.items():
        assert wanted in text
    assert [wanted for wanted, text in texts.items() if "Traceback" in text or 'File "' in text] == []
