"""Plugin of pytest: a realm for each run of tests, options of simulations, and their fixtures.

Loaded by its entry point in every project in whose environment Iris is installed.  So it imports nothing but pytest
until a test uses it, and touches no file: a test run without Iris has neither cost nor traces of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final, cast

import pytest

_SIMULATED: Final = pytest.StashKey[bool]()
_HAS_REALM: Final = pytest.StashKey[bool]()

_HOME: Final = "IRIS_HOME"

VARIABLES: Final = (
    _HOME, "IRIS_CONTEXT", "IRIS_CREDENTIAL", "IRIS_LISTEN", "IRIS_METRICS", "IRIS_PASSPHRASE",
    "IRIS_READY_FD", "IRIS_SEEDS",
)  # fmt: skip
"""Variables that say to which realm a program belongs, and where it and its figures are found."""

_OWN_REALM: Final = "iris_own_realm"

_WORLDS: Final = {"iris_world": "iris.testing", "iris_aio_world": "iris.aio.testing"}
"""Fixtures of simulated tests, and the modules whose ``simulate`` runs them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """See pytest."""
    group = parser.getgroup("iris", "simulations (iris.testing.simulate)")
    group.addoption("--iris-seed", type=_whole(0), metavar="N", help="run each simulation with this seed only")
    group.addoption("--iris-seeds", type=_whole(1), metavar="N", help="run each simulation with the seeds 0 to N - 1")
    group.addoption(
        "--iris-schedule", type=Path, metavar="FILE", help="run each simulation with this saved schedule of faults"
    )
    parser.addini(
        _OWN_REALM,
        "true: nodes that tests open are of a local realm that is made for this run, and never meet your own "
        "services; false: of the realm that IRIS_CREDENTIAL, IRIS_SEEDS and IRIS_HOME say (default: true)",
        type="bool",
        default=True,
    )


def _whole(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number.  No seeds at all would let every simulation pass."""

    def read(text: str) -> int:
        from iris.kernel.numerals import read_whole

        number = read_whole(text, least)
        if number is None:
            raise ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return number

    return read


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """See pytest: before the first module of the project is imported, which may read the environment."""
    _give_realm(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """See pytest."""
    _give_realm(config)  # where a conftest has loaded this plugin
    config.addinivalue_line("markers", "iris(**options): options of iris.testing.simulate for a test with iris_world")
    if any(config.getoption(name) is not None for name in ("iris_seed", "iris_seeds", "iris_schedule")):
        from iris.testing.simulation import OPTIONS

        OPTIONS.seed = config.getoption("iris_seed")
        OPTIONS.seeds = config.getoption("iris_seeds")
        OPTIONS.schedule = config.getoption("iris_schedule")


def _give_realm(config: pytest.Config) -> None:
    """Have this process, and those that it starts, find no realm but one of its own, made when a node needs it.

    Its keys are fresh, so that nobody else's nodes meet, or accept, those of the tests.  They are removed at the end.
    """
    if config.stash.get(_HAS_REALM, False) or not config.getini(_OWN_REALM):
        return
    config.stash[_HAS_REALM] = True
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    # Not made here: most test runs need none.  Nobody can guess the name, nor make it before.
    # The real path: TMPDIR may lead over a link of the user's, which private files refuse.
    temporary = os.path.realpath(tempfile.gettempdir())
    home = os.path.join(temporary, f"iris-tests-{os.urandom(16).hex()}")  # noqa: PTH118 -- for speed
    os.environ[_HOME] = home

    def restore() -> None:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(home, ignore_errors=True)

    config.add_cleanup(restore)


@pytest.fixture
def iris_world(request: pytest.FixtureRequest) -> Any:
    """The ``World`` of a simulation: an async test that takes it runs as ``iris.testing.simulate`` has it run.

    ``@pytest.mark.iris(seeds=..., hours=..., faults=...)`` gives its arguments.
    """
    _check_simulated(request, "iris_world")


@pytest.fixture
def iris_aio_world(request: pytest.FixtureRequest) -> Any:
    """The same for a test that is for asyncio: the ``World`` of ``iris.aio.testing.simulate``."""
    _check_simulated(request, "iris_aio_world")


def _check_simulated(request: pytest.FixtureRequest, name: str) -> None:
    item = cast("pytest.Item", request.node)  # pyright: ignore[reportUnknownMemberType] -- of no type there
    if not item.stash.get(_SIMULATED, False):
        raise pytest.UsageError(f"{name} is for tests that are async functions: they run in its simulation")


def pytest_itemcollected(item: pytest.Item) -> None:
    """See pytest."""
    if not isinstance(item, pytest.Function):
        return
    for name, module in _WORLDS.items():
        if name in item.fixturenames and iscoroutinefunction(item.obj):
            item.stash[_SIMULATED] = True
            item.obj = _simulated(item.obj, item.get_closest_marker("iris"), name, module)
            # As a plain function also where another plugin has an item of its own for async ones, as pytest-asyncio.
            item.runtest = partial(pytest.Function.runtest, item)  # type: ignore[method-assign]


def _simulated(function: Any, marker: pytest.Mark | None, name: str, module: str) -> Any:
    from importlib import import_module

    async def test(world: Any, **fixtures: Any) -> None:
        await function(**{name: world}, **fixtures)

    options: Mapping[str, Any] = {} if marker is None else marker.kwargs
    positional = () if marker is None else marker.args
    try:
        simulation = import_module(module).simulate(*positional, **options)(test)
    except TypeError as error:
        raise pytest.UsageError(f"{function.__qualname__}: @pytest.mark.iris: {error}") from None

    # No async function: other plugins, which run those, leave it alone.
    def run(**fixtures: Any) -> None:
        del fixtures[name]  # there is one for each seed
        simulation(**fixtures)

    return run
