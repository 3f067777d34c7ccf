"""What holds for every test: the order in which trio runs its tasks comes from one seed."""

from __future__ import annotations

import pytest

from tests.support.scheduling import seed_scheduler


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of the order in which trio runs tasks")


def pytest_report_header(config: pytest.Config) -> str:
    return f"scheduler seed: {config.getoption('seed')} (repeat a run with --seed)"


@pytest.fixture(autouse=True)
def _repeatable_scheduler(request: pytest.FixtureRequest) -> None:
    seed_scheduler(int(request.config.getoption("seed") or 0))
