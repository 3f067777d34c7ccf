"""Plugin of pytest: options of simulations, and a fixture.  Loaded by its entry point where Iris is installed."""

from __future__ import annotations

from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final

import pytest

_SIMULATED: Final = pytest.StashKey[bool]()


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
    config.addinivalue_line("markers", "iris(**options): options of iris.testing.simulate for a test with iris_world")
    if any(config.getoption(name) is not None for name in ("iris_seed", "iris_seeds", "iris_schedule")):
        from iris.testing.simulate import OPTIONS

        OPTIONS.seed = config.getoption("iris_seed")
        OPTIONS.seeds = config.getoption("iris_seeds")
        OPTIONS.schedule = config.getoption("iris_schedule")


@pytest.fixture
def iris_world(request: pytest.FixtureRequest) -> Any:
    """The ``World`` of a simulation: an async test that takes it runs as ``iris.testing.simulate`` has it run.

    ``@pytest.mark.iris(seeds=..., hours=..., faults=...)`` gives its arguments.
    """
    if not request.node.stash.get(_SIMULATED, False):
        raise pytest.UsageError("iris_world is for tests that are async functions: they run in its simulation")


def pytest_itemcollected(item: pytest.Item) -> None:
    """See pytest."""
    if isinstance(item, pytest.Function) and "iris_world" in item.fixturenames and iscoroutinefunction(item.obj):
        item.stash[_SIMULATED] = True
        item.obj = _simulated(item.obj, item.get_closest_marker("iris"))


def _simulated(function: Any, marker: pytest.Mark | None) -> Any:
    from iris.testing.simulate import simulate

    async def test(world: Any, **fixtures: Any) -> None:
        await function(iris_world=world, **fixtures)

    simulation = simulate(**({} if marker is None else marker.kwargs))(test)

    # No async function: other plugins, which run those, leave it alone.
    def run(iris_world: None, **fixtures: Any) -> None:  # noqa: ARG001 -- there is one for each seed
        simulation(**fixtures)

    return run
