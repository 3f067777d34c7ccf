"""Simulations: the same seed gives the same run, and what a failing seed says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
import iris.testing
from iris.testing.faults import CALM, CHAOS, Faults, Schedule
from iris.testing.running import run_once
from iris.testing.simulation import SimulationFailed, simulate
from iris.testing.world import World
from tests.support.simulated import echoes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "testing"
ROOT = EXAMPLES.parents[1]


def digests(seeds: int, seconds: float, **environment: str) -> list[str]:
    """Return the digests of runs in a process of its own."""
    command = [sys.executable, "-m", "tests.support.simulated", str(seeds), str(seconds)]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return ran.stdout.split()


def test_the_same_seed_gives_the_same_run_in_every_process_whatever_its_environment() -> None:
    one = digests(2, 40.0, PYTHONHASHSEED="1")
    other = digests(2, 40.0, PYTHONHASHSEED="2", TZ="Asia/Tokyo", LC_ALL="C.UTF-8", PYTHONOPTIMIZE="1")
    assert one == other
    assert len(set(one)) == 2, "each seed gives another run"


@pytest.mark.long
def test_the_same_seed_gives_the_same_run_a_hundred_times() -> None:
    one, other, third = (digests(100, 60.0, PYTHONHASHSEED=str(hash_seed)) for hash_seed in (1, 2, 3))
    assert one == other == third
    assert len(set(one)) == 100


def test_another_run_in_the_same_process_is_the_same() -> None:
    schedule, faults = Schedule(seed=5, seconds=60), Faults(kinds=CHAOS.kinds, pause=10.0)
    runs = [run_once(echoes, schedule, faults) for _ in range(2)]
    assert runs[0].trace.digest == runs[1].trace.digest
    replayed = run_once(echoes, runs[0].schedule)
    assert replayed.trace.digest == runs[0].trace.digest, (
        "a schedule that was drawn and one that was saved are the same"
    )
    assert runs[0].schedule.faults


def test_a_seed_that_fails_is_shrunk_and_says_how_to_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @simulate(seeds=20, hours=0.1, faults=CHAOS)
    async def breaks_if_anything_crashes(world: iris.testing.World) -> None:
        world.start("a", trio.sleep_forever)
        await world.healed.wait()
        assert not [entry for entry in world.trace.entries if entry.text == "crashes"]

    with pytest.raises(SimulationFailed) as caught:
        breaks_if_anything_crashes()
    message = str(caught.value)
    assert "shrunk to 1 faults" in message
    assert "--iris-schedule .iris-simulations/" in message
    assert "FAULT Crash a" in message
    (saved,) = Path(".iris-simulations").glob("*.json")
    assert [type(fault).__name__ for fault in Schedule.load(saved).faults] == ["Crash"]
    assert "<svg" in saved.with_suffix(".html").read_text()


def test_a_test_that_does_not_end_fails() -> None:
    @simulate(seeds=1, hours=0.01, shrink_runs=0)
    async def never_ends(_: iris.testing.World) -> None:
        await trio.sleep_forever()

    with pytest.raises(SimulationFailed, match="has not ended 900 s after the faults were over"):
        never_ends()


def test_only_async_functions_are_simulated() -> None:
    with pytest.raises(TypeError, match="is no async function"):
        simulate()(print)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations where they stand before 3.14")
def test_a_world_that_only_type_checkers_see_is_no_trouble() -> None:
    ran: list[World] = []
    namespace: dict[str, Any] = {"simulate": simulate, "ran": ran}
    source = "@simulate(seeds=1, hours=0.01)\nasync def test_it(world: hidden.World) -> None: ran.append(world)"
    exec(compile(source, "<late>", "exec", dont_inherit=True), namespace)
    namespace["test_it"]()
    assert len(ran) == 1


def test_a_program_that_fails_fails_the_test_and_one_that_is_restarted_does_not() -> None:
    async def fails() -> None:
        await trio.sleep(1)
        raise iris.ConfigError("not today")

    async def with_it(world: iris.testing.World) -> None:
        world.start("a", fails)
        await world.healed.wait()

    async def restarting(world: iris.testing.World) -> None:
        world.start("a", fails, restart=(iris.ConfigError,))
        await world.healed.wait()

    assert isinstance(run_once(with_it, Schedule(seed=0, seconds=10), CALM).error, iris.ConfigError)
    run = run_once(restarting, Schedule(seed=0, seconds=10), CALM)
    assert run.error is None
    assert len([entry for entry in run.trace.entries if "not today" in entry.text]) == 5


# -- as users run it -----------------------------------------------------------------------------------------


def run_example(name: str, directory: Path, *options: str) -> str:
    """Run a test of the examples in a process of its own, and return what it writes."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "iris.testing.plugin", "-c", os.devnull, "--tb=short"),
        *(f"--rootdir={directory}", "-p", "no:cacheprovider", str(EXAMPLES / name), *options),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}"}
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def test_a_users_test_finds_the_lost_update_of_the_example_and_its_command_repeats_it(tmp_path: Path) -> None:
    assert len((EXAMPLES / "test_counter.py").read_text().splitlines()) < 30
    written = run_example("test_counter.py", tmp_path)
    assert "has happened more than once" in written
    assert "--iris-schedule" in written
    assert "1 faults" not in written, "none was drawn"
    (saved,) = (tmp_path / ".iris-simulations").glob("*.json")
    assert saved.with_suffix(".html").exists()
    failed = next(line for line in written.splitlines() if "has happened more than once" in line)
    assert failed in run_example("test_counter.py", tmp_path, "--iris-schedule", str(saved))


@pytest.mark.long
def test_a_users_test_finds_the_double_charge_of_the_example_and_its_command_repeats_it(tmp_path: Path) -> None:
    assert len((EXAMPLES / "test_till.py").read_text().splitlines()) < 30
    written = run_example("test_till.py", tmp_path)
    assert "has happened more than once" in written
    (saved,) = (tmp_path / ".iris-simulations").glob("*.json")
    assert 0 < len(Schedule.load(saved).faults) <= 5
    failed = next(line for line in written.splitlines() if "has happened more than once" in line)
    assert failed in run_example("test_till.py", tmp_path, "--iris-schedule", str(saved))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen", ["tcp://127.0.0.1:0"]),
        ("seeds", ["tcp://192.0.2.1:7000"]),
        ("lan", False),
        ("revocations", "revoked"),
        ("environment", iris.Environment()),
    ],
)
def test_what_a_simulation_cannot_honour_is_refused_by_its_name(name: str, value: Any) -> None:
    options = {name: value}

    @simulate(seeds=1, hours=0.01)
    async def opening(world: World) -> None:
        with pytest.raises(iris.ConfigError, match=rf"^{name} has no meaning in a simulation"):
            async with iris.open_node("shop", **options):
                pass
        defaults: dict[str, Any] = {"listen": (), "seeds": [], "lan": True, "revocations": None, "environment": None}
        async with iris.open_node("shop", **defaults) as node:
            assert node.name == "shop"

    opening()
