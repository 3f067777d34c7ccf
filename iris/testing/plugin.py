"""Plugin of pytest: the options of simulations.  Loaded by its entry point where Iris is installed."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """See pytest."""
    group = parser.getgroup("iris", "simulations (iris.testing.simulate)")
    group.addoption("--iris-seed", type=int, metavar="N", help="run each simulation with this seed only")
    group.addoption("--iris-seeds", type=int, metavar="N", help="run each simulation with the seeds 0 to N - 1")
    group.addoption(
        "--iris-schedule", type=Path, metavar="FILE", help="run each simulation with this saved schedule of faults"
    )


def pytest_configure(config: pytest.Config) -> None:
    """See pytest."""
    if any(config.getoption(name) is not None for name in ("iris_seed", "iris_seeds", "iris_schedule")):
        from iris.testing.simulate import OPTIONS

        OPTIONS.seed = config.getoption("iris_seed")
        OPTIONS.seeds = config.getoption("iris_seeds")
        OPTIONS.schedule = config.getoption("iris_schedule")
