"""The Python of Spark's workers: this one, with PySpark from the package and not from Spark's zip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iris.spark_bridge.session.worker_python import find_worker_python, package_home


@pytest.fixture
def home() -> Path:
    found = package_home()
    assert found is not None
    return found


def run(program: str, code: str, path: list[str]) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(path)}
    done = subprocess.run([program, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_workers_take_pyspark_from_the_package_and_keep_the_rest_of_their_path(tmp_path: Path, home: Path) -> None:
    python = find_worker_python({"HOME": str(tmp_path)})
    (jar,) = home.glob("jars/spark-core_*.jar")
    zips = [str(path) for path in (home / "python" / "lib").glob("*.zip")]
    assert len(zips) == 2
    own = [str(tmp_path / "with space" / "*.zip"), str(tmp_path / "jobs.zip")]
    code = "import os, sys, importlib.util as u; print(sys.executable, u.find_spec('pyspark').origin, *sys.argv)\n"
    code += "print(*os.environ['PYTHONPATH'].split(':'), sep='\\n')"
    first, *path = run(python, code, [*zips, own[0], str(jar), own[1]])
    assert first == f"{sys.executable} {home / '__init__.py'} -c"
    assert path == own


def test_without_the_shim_they_would_take_the_zip(home: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('pyspark').origin)"
    (origin,) = run(sys.executable, code, [str(home / "python" / "lib" / "pyspark.zip")])
    assert "pyspark.zip" in origin


def test_another_spark_gets_this_python_as_it_is(tmp_path: Path, home: Path) -> None:
    assert find_worker_python({"HOME": str(tmp_path), "SPARK_HOME": str(tmp_path)}) == sys.executable
    assert find_worker_python({"HOME": str(tmp_path), "SPARK_HOME": str(home)}) != sys.executable
