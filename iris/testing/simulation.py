"""Simulate: a test under many seeds, and what is said of the first that makes it fail."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Final, final

from iris.patterns.service import python_signature
from iris.testing.faults import CALM, Faults, Schedule
from iris.testing.running import GRACE, Run, Test, run_once
from iris.testing.shrinking import shrink
from iris.testing.timeline import timeline, timeline_page

_HOUR: Final = 3600.0


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class SimulationOptions:
    """Options of the command line for all simulations; set by the pytest plugin."""

    seed: int | None = None
    """Run this seed only."""
    seeds: int | None = None
    """Run so many."""
    schedule: Path | None = None
    """Run this saved schedule only."""
    directory: Path = Path(".iris-simulations")
    """Directory in which schedules and timelines of failures are saved."""
    command: str = ""
    """Command by which a program that is not pytest runs one saved schedule, which follows."""


OPTIONS: Final = SimulationOptions()


class SimulationFailed(AssertionError):
    """A seed has made a test fail.  The message has the command that repeats it, and a timeline."""


def simulate(
    *, seeds: int | Iterable[int] = 100, hours: float = 0.1, faults: Faults = CALM, shrink_runs: int = 100
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Run a test in a simulated world, once for each seed.

    The test is an async function; its first argument is the ``World``, others are fixtures of pytest.  The same seed
    gives the same run: order of tasks, latencies, random numbers and faults, whatever PYTHONHASHSEED and machine.  The
    first seed that makes it fail is shrunk: fewer and shorter faults that make it fail alike.  Then the test fails
    with ``SimulationFailed``, and saves schedule and timeline in ``.iris-simulations``.

    Args:
        seeds: the number of seeds, from 0; or the seeds themselves.
        hours: hours for which there are faults, in virtual time.  The test may go on for 15 minutes after that.
        faults: distributions that they are drawn from: ``CALM`` has none, ``CHAOS`` all kinds.
        shrink_runs: runs of the test that may be made to shrink a failure.
    """

    def decorate(function: Callable[..., object]) -> Callable[..., None]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is no async function: simulate runs those only")

        @wraps(function)
        def run(*args: object, **fixtures: object) -> None:
            async def test(world: object) -> None:
                await function(*args, world, **fixtures)

            if OPTIONS.schedule is not None:
                check_run(test, run_once(test, Schedule.load(OPTIONS.schedule), detailed=True), shrink_runs=0)
                return
            wanted = seeds if OPTIONS.seeds is None else OPTIONS.seeds
            chosen = range(wanted) if isinstance(wanted, int) else wanted
            for seed in chosen if OPTIONS.seed is None else (OPTIONS.seed,):
                drawn = run_once(test, Schedule(seed=seed, seconds=hours * _HOUR), faults)
                check_run(test, drawn, shrink_runs=shrink_runs)

        parameters = list(python_signature(function).parameters.values())
        world = next(place for place, parameter in enumerate(parameters) if parameter.name != "self")
        del parameters[world]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        del run.__wrapped__  # pytest would look through it, and see a coroutine
        return run

    return decorate


def check_run(test: Test, run: Run, *, shrink_runs: int) -> None:
    """Raise SimulationFailed if a run has failed; it is shrunk and saved."""
    if run.error is None:
        return
    best = shrink(run, lambda schedule, limit: run_once(test, schedule, limit=limit), shrink_runs)
    limit = max(best.ended, best.schedule.seconds) + GRACE
    detailed = run_once(test, best.schedule, detailed=True, limit=limit)
    error = detailed.error or best.error
    assert error is not None
    raise SimulationFailed(_report(run, best, detailed, error)) from error


def _report(first: Run, best: Run, detailed: Run, error: BaseException) -> str:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    directory = OPTIONS.directory
    directory.mkdir(parents=True, exist_ok=True)
    plain = "".join(letter if letter.isalnum() else "-" for letter in test.rpartition("/")[2] or "simulation")
    saved = directory / f"{plain}-{first.schedule.seed}.json"
    page = saved.with_suffix(".html")
    best.schedule.save(saved)

    def size(run: Run) -> str:
        return f"{len(run.schedule.faults)} faults in {run.ended:.0f} s"

    page.write_text(timeline_page(detailed, error, test))
    lines = [
        f"seed {first.schedule.seed}: {type(error).__name__}: {error}",
        "",
        f"{size(first)}, shrunk to {size(best)}.  Repeat it:",
        f"    {_command(test, saved)}",
        *([f"The whole seed: {_command(test, None, first.schedule.seed)}"] if test else []),
        f"As a page: {page}",
        "",
        *timeline(detailed),
    ]
    if detailed.error is None:
        lines.insert(1, "The run did not fail when it was repeated: something in the test is not the simulation's.")
    return "\n".join(lines)


def _command(test: str, saved: Path | None, seed: int = 0) -> str:
    if OPTIONS.command and saved is not None:
        return f"{OPTIONS.command} {saved}"
    chosen = f"--iris-schedule {saved}" if saved is not None else f"--iris-seed {seed}"
    return f"{Path(sys.executable).name} -m pytest '{test}' {chosen}"
