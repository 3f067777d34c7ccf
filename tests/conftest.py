"""Fixtures and rules of every test.

Trio runs its tasks in an order that comes from one seed, no secret shows anywhere, and the counters of every node,
membership and subscription that a test makes add up at its end.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from iris.security.files import container
from tests.support.accounts import accounts_add_up
from tests.support.canary_watch import CanaryWatch
from tests.support.children import sitecustomize
from tests.support.scheduling import seed_scheduler

TESTS = Path(__file__).parent


LOG = pytest.StashKey[tuple[int, list[logging.Handler]]]()
"""Level and handlers of the log before a test."""


# Hooks, as fixtures that are in force for every test cost each of them a third of a millisecond.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have trio run the tasks of each test in an order that comes from one seed."""
    logger = logging.getLogger("iris")
    item.stash[LOG] = logger.level, [*logger.handlers]
    seed_scheduler(int(item.config.getoption("seed") or 0))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Put the log back: a command that ran in this process may have had it written to a stream that is closed now."""
    level, handlers = item.stash[LOG]
    logger = logging.getLogger("iris")
    logger.setLevel(level)
    logger.handlers[:] = handlers


# How long an example takes says more about what else the machine is doing.  Every run tries the same examples; one with
# a seed of its own looks for others, and twice as many.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("exploring", deadline=None, max_examples=100)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of the order in which trio runs tasks")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell has what it starts in the background ignore Ctrl-C, and so would every program that tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has them ignore that
    os.environ.setdefault("SPARK_CONF_DIR", str(TESTS / "support" / "spark"))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each process with numpy had threads that wait by spinning
    hypothesis.settings.load_profile("exploring" if config.getoption("seed") else "repeatable")
    config.pluginmanager.register(CanaryWatch(), "canaries")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a test by the length of a long text: it may be a megabyte, or another one in each process."""
    return f"{len(val)} long" if isinstance(val, str | bytes) and len(val) > 100 else None


SHARED = ("kafka", "spark", "wheel", "databases", "iris_verb", "built_site", "wrong_options")
"""Fixtures that take longer to set up than most of the tests that share them: a Spark session, a member, a bridge."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have one process run all tests that share one of these, unless a file says who shares it.

    Raises:
        UsageError: a test waits in real time and should not: pytest-trio takes a clock from the test's own arguments.
    """
    fixtures = getattr(item, "fixturenames", ())
    for name in SHARED:
        if name in fixtures and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(name))
    arguments = inspect.signature(item.obj).parameters if isinstance(item, pytest.Function) else fixtures
    if "autojump_clock" in fixtures and "autojump_clock" not in arguments:
        raise pytest.UsageError(f"{item.nodeid}: a fixture has a virtual clock; take autojump_clock here, too")


LONGEST = ("project", "spark_bridge", "benchmarks", "demo", "network", "testing", "cli", "deploy", "doors", "examples")
"""Folders whose tests start programs and wait for them, up to a minute."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests, have the longest begin first, so that all end at the same time."""
    if hasattr(config, "workerinput"):
        last = len(LONGEST)
        ranks = {folder: rank for rank, folder in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.relative_to(TESTS).parts[0], last))


def pytest_collection() -> None:
    """Collect no garbage while pytest makes what it keeps of 10,000 tests: it took a sixth of the time of that."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Have the garbage collector pass over what pytest keeps, and look for garbage less often.

    Each collection looked at all of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(sitecustomize.GARBAGE)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a worker send how a test failed and what it wrote also where that is no text: parts of names of files."""
    report = yield
    report.sections = [(name, sendable(text)) for name, text in report.sections]
    if report.longrepr is not None and report.longreprtext != sendable(report.longreprtext):
        report.longrepr = sendable(report.longreprtext)
    return report


def sendable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def pytest_report_header(config: pytest.Config) -> str:
    return f"scheduler seed: {config.getoption('seed')} (repeat a run with --seed)"


@pytest.fixture(autouse=True)
def _accounts_add_up() -> Iterator[None]:
    with accounts_add_up():
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_passphrases() -> Iterator[None]:
    """Have this process wrap files at the least cost that they may ask for; its children do as users do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "_LOG_N", min(container._LOG_N_RANGE))
        yield


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes of the test find each other, and nobody else's."""
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))


@pytest.fixture
def silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that nothing is logged as an error: a client's mistake is reported to that client, and counted."""
    with caplog.at_level(logging.DEBUG):
        yield
    records = caplog.get_records("call")
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []
