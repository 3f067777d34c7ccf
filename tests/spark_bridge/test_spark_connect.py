"""Spark Connect: the same source and sink by a client that has no Java machine of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.spark_bridge.client.test_local_cluster import values_on
from tests.support.bridges import BridgeProcess, publish

pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status: pip install 'pyspark[connect]'")

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.long


def test_a_session_of_spark_connect_reads_and_publishes(realm: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.support.connect", str(tmp_path))
    with BridgeProcess(tmp_path / "log"):
        publish([b"a", b"b", b"c"], topic="in")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout.splitlines()[-1])
        assert seen["session"].startswith("pyspark.sql.connect")
        assert seen["rows"] == ["a", "b", "c"]
        assert (seen["figures"]["lag"], seen["figures"]["lost"]) == (0, 0)
        assert "did you mean subscribePattern" in seen["error"]
        assert "Traceback" not in seen["error"]
        assert trio.run(values_on, "out") == ["a", "b", "c"]
