"""Iris and what it needs travel with the program: to a real cluster whose Python has none of it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pyspark
import pytest
import trio

from iris.spark_bridge.session.java import find_java
from tests.spark_bridge.client.test_local_cluster import values_on
from tests.support.bridges import BridgeProcess, publish
from tests.support.programs import submitted
from tests.support.shipping import ROOT, make_archive, make_folder
from tests.support.spark_cluster import open_cluster

pytestmark = pytest.mark.long


def test_workers_that_lack_iris_get_it_as_an_archive(realm: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare")
    bare = tmp_path / "bare" / "bin" / "python"
    probe = subprocess.run([bare, "-c", "import iris"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'iris'" in probe.stderr
    archive = make_archive(make_folder(tmp_path / "deps"))
    home = Path(pyspark.__file__).parent
    with BridgeProcess(tmp_path / "log"), open_cluster(tmp_path, workers=1) as cluster:
        publish([b"a", b"b", b"c"], topic="in")
        options = [part for name, value in cluster.settings.items() for part in ("--conf", f"{name}={value}")]
        command = (
            *(str(home / "bin" / "spark-submit"), "--master", cluster.url, *options),
            *("--archives", f"{archive}#deps", "--conf", "spark.executorEnv.PYTHONPATH=deps"),
            *(submitted.__file__, str(tmp_path / "checkpoint")),
        )
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java()),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(bare),
            "PYTHONPATH": str(ROOT),
        }
        # Spark plans a query with the workers' Python on the driver, too: in a folder that has the same ``deps``.
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert trio.run(values_on, "out") == ["a", "b", "c"]
    work = next((tmp_path / "worker-0").glob("app-*/0"))
    assert (work / "deps" / "iris" / "spark_bridge").is_dir(), "the executor has unpacked it"
