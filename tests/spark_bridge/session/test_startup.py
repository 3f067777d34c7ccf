"""Spark's workers: PySpark from the package, where Spark's zip, which is compiled anew each time, is a copy of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from iris.spark_bridge.session import startup
from iris.spark_bridge.session.startup.sitecustomize import is_parent_of_workers

STARTUP = Path(startup.__file__).parent
CODE = (
    "import os, sys, importlib.util as u\n"
    "print(u.find_spec('pyspark').origin)\n"
    "print(*[entry for entry in sys.path if entry in os.environ['PYTHONPATH'].split(':')], sep='\\n')\n"
)


@pytest.fixture
def home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def run(path: list[Path], code: str = CODE) -> list[str]:
    """Start a Python as Spark does, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def zips(home: Path) -> list[Path]:
    found = [*sorted((home / "python" / "lib").glob("*.zip")), *home.glob("jars/spark-core_*.jar")]
    assert len(found) == 3
    return found


def test_workers_take_pyspark_from_the_package_and_keep_the_rest_of_their_path(tmp_path: Path, home: Path) -> None:
    own = [tmp_path / "with space" / "lib.zip", tmp_path / "jobs.zip"]
    for archive in own:
        archive.parent.mkdir(exist_ok=True)
        zipfile.ZipFile(archive, "w").close()
    origin, *path = run([*zips(home), own[0], STARTUP, own[1]])
    assert origin == str(home / "__init__.py")
    assert path == list(map(str, own))


def test_without_it_they_would_take_the_zip(home: Path) -> None:
    origin, *_ = run(zips(home))
    assert "pyspark.zip" in origin


def test_a_spark_of_its_own_has_to_be_of_the_same_version(tmp_path: Path, home: Path) -> None:
    archive = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    for version, expected in (
        ((home / "version.py").read_text(), str(home / "__init__.py")),
        ('__version__ = "9.9.9"\n', f"{archive}/pyspark/__init__.py"),
        (None, f"{archive}/pyspark/__init__.py"),
    ):
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr("pyspark/__init__.py", "")
            if version is not None:
                opened.writestr("pyspark/version.py", version)
        assert run([archive, STARTUP])[0] == expected


def test_the_module_of_this_name_that_the_machine_has_is_run_as_well(tmp_path: Path, home: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_run = True\n")
    code = "import builtins, sitecustomize; print(builtins.was_run, sitecustomize.__file__)"
    assert run([*zips(home), STARTUP, tmp_path], code) == [f"True {tmp_path / 'sitecustomize.py'}"]


def test_a_path_that_leads_nowhere_else_stays(tmp_path: Path) -> None:
    """A machine of a cluster with Spark's own PySpark alone."""
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("pyspark/__init__.py", "")
    bare = [sys.executable, "-S", "-c", "import sitecustomize\n" + CODE]
    environment = {"PYTHONPATH": f"{archive}:{STARTUP}"}
    done = subprocess.run(bare, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"{archive}/pyspark/__init__.py"


@pytest.mark.parametrize(
    ("module", "prepared"),
    [
        ("pyspark.daemon pyspark.worker", True),
        ("pyspark.daemon pyspark.sql.worker.write_into_data_source", True),
        ("pyspark.daemon pyspark.sql.worker.lookup_data_sources", False),
        ("pyspark.sql.streaming.python_streaming_source_runner", False),
    ],
)
def test_a_parent_of_workers_that_read_or_write_imports_iris_for_them(module: str, prepared: bool) -> None:
    assert is_parent_of_workers(["python3", "-m", *module.split()]) is prepared
    assert not is_parent_of_workers(["python3", "-c", "pass"])
