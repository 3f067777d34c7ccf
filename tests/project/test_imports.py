"""What ``import iris`` costs and brings along, seen from a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "pyarrow", "lmdb", "click", "rich", "pandas", "numpy")


def modules_after(statement: str) -> set[str]:
    """Every module that a fresh interpreter has loaded after ``statement``."""
    program = f"{statement}\nimport sys\nprint(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("heavy", HEAVY)
def test_import_iris_does_not_load_what_only_some_programs_need(heavy: str) -> None:
    assert heavy not in modules_after("import iris")


def test_the_probe_would_notice() -> None:
    assert "click" in modules_after("import iris, click")


def test_layers_are_loaded_once_under_their_full_name() -> None:
    loaded = modules_after("import iris, iris.kernel.errors, iris.patterns, iris.cluster, iris.security")
    assert "iris.patterns" in loaded
    assert loaded.isdisjoint({"patterns", "cluster", "security", "federation", "spark_bridge"})
