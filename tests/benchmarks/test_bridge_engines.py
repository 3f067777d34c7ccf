"""A short run of the rates of a bridge's engines: each has its line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark_bridge.election.test_engines import needs_etcd
from tests.support.spark_packages import kafka_source


@needs_etcd
@pytest.mark.long
@pytest.mark.xdist_group("kafka")
@pytest.mark.skipif(not kafka_source(), reason="Spark's Kafka source is not to be had: apt install maven")
def test_each_engine_has_its_line() -> None:
    # In a process of its own: Spark's Java has the environment of the session that a process opened first.
    command = [sys.executable, "-m", "benchmarks.bridge", "engines", "--events=500", "--answers=3", "--rounds=1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert sum("us of each" in line for line in lines) == 8
    assert sum("to its row" in line for line in lines) == 2
