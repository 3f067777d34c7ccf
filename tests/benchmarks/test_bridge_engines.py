"""A short run of the rates of a bridge's engines: each has its line."""

from __future__ import annotations

import pytest

from benchmarks.bridge.engines import measure_engines
from tests.spark_bridge.election.test_engines import needs_etcd
from tests.support.spark_packages import kafka_source


@needs_etcd
@pytest.mark.long
@pytest.mark.xdist_group("kafka")
@pytest.mark.skipif(not kafka_source(), reason="Spark's Kafka source is not to be had: apt install maven")
def test_each_engine_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    measure_engines(500, 3, 1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert sum("us of each" in line for line in lines) == 8
    assert sum("to its row" in line for line in lines) == 2
