"""Trials with real processes, on the system that needs nothing but trio."""

from __future__ import annotations

import dataclasses
import json
import os
import traceback
from pathlib import Path

import pytest

from benchmarks.load import processor_time
from benchmarks.systems import iris_members, system_named
from benchmarks.trial import ROOT, TrialError, last_words, run_trial
from benchmarks.worker import Task
from iris.bench.cases import CASES, Case


def case_named(name: str) -> Case:
    (found,) = (case for case in CASES if case.name == name)
    return found


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("trio TCP", "publish-100"),
        pytest.param("trio TCP", "request-1", marks=pytest.mark.long),
        pytest.param("trio TCP", "paced-1000", marks=pytest.mark.long),
        pytest.param("iris", "publish-100", marks=pytest.mark.long),
        pytest.param("iris", "request-64", marks=pytest.mark.long),
        ("iris", "paced-1000"),
        ("iris", "tunnel-64k"),
        pytest.param("iris", "broadcast-4", marks=pytest.mark.long),
        pytest.param("iris", "start", marks=pytest.mark.long),
        pytest.param("iris.aio", "fanout-4", marks=pytest.mark.long),
        pytest.param("iris.aio", "paced-1000", marks=pytest.mark.long),
        pytest.param("iris.aio", "request-64", marks=pytest.mark.long),
        pytest.param("iris.aio", "tunnel-64k", marks=pytest.mark.long),
        pytest.param("iris.aio", "broadcast-4", marks=pytest.mark.long),
        pytest.param("iris.aio", "start", marks=pytest.mark.long),
        pytest.param("iris.aio", "idle-link", marks=pytest.mark.long),
        pytest.param("iris.aio", "subscription", marks=pytest.mark.long),
        pytest.param("pyzmq DEALER", "request-64", marks=pytest.mark.long),
        pytest.param("pyzmq DEALER CURVE", "request-512", marks=pytest.mark.long),
    ],
)
def test_a_trial_reports_every_figure_of_its_case(system: str, name: str, tmp_path: Path) -> None:
    if system.startswith("pyzmq"):
        pytest.importorskip("zmq", reason="pip install pyzmq")
    case = case_named(name)
    case = dataclasses.replace(case, sinks=min(case.sinks, 1))
    figures = run_trial(system, case, seconds=0.1, directory=tmp_path)
    assert {figure.name for figure in case.figures} <= set(figures)
    assert all(figures[figure.name] > 0 for figure in case.figures)
    assert figures.get("lost", 0) == 0


def test_a_process_that_fails_ends_the_trial_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(TrialError, match="ValueError"):
        run_trial("no such system", case_named("request-1"), seconds=0.1, directory=tmp_path)


@pytest.mark.skipif(processor_time(os.getpid()) is None, reason="the processor time of others is read on Linux only")
def test_a_trial_tells_the_processor_time_of_a_message_at_both_ends(tmp_path: Path) -> None:
    seconds = 0.3
    figures = run_trial("trio TCP", case_named("request-1"), seconds=seconds, directory=tmp_path)
    source, sinks = figures["processor-source"], figures["processor-sinks"]
    asked = 1e6 / figures["rate"]
    assert 0.05 * asked < source < 1.5 * asked, "of one that asks and waits, or of a busy machine"
    assert 0.05 * asked < sinks < 1.5 * asked
    assert "processor-server" not in figures


def test_the_code_of_another_checkout_is_measured_by_this_program(tmp_path: Path) -> None:
    tree = tmp_path / "other"
    (tree / "benchmarks").mkdir(parents=True)
    (tree / "iris").symlink_to(ROOT / "iris")
    for file in ("__init__.py", "broker.py", "load.py", "system.py", "task_time.py", "worker.py"):
        (tree / "benchmarks" / file).symlink_to(ROOT / "benchmarks" / file)
    (tree / "benchmarks" / "systems").mkdir()
    (tree / "benchmarks" / "systems" / "__init__.py").write_text(
        "def system_named(name):\n    raise ValueError(f'measured in the other tree: {name}')\n"
    )
    with pytest.raises(TrialError, match="measured in the other tree: iris"):
        run_trial("iris", case_named("request-1"), seconds=0.1, directory=tmp_path, tree=tree)


def test_the_last_words_of_several_errors_are_not_the_frame_that_is_drawn_around_them() -> None:
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("no such port")])])
    assert last_words(traceback.format_exception(group)) == "ValueError: no such port"
    assert last_words(["", "\n"]) == ""


@pytest.mark.parametrize("name", ["iris", pytest.param("trio TLS", marks=pytest.mark.long)])
def test_handshakes_are_counted_when_both_ends_are_sure(name: str, tmp_path: Path) -> None:
    case = case_named("handshake")
    figures = run_trial(name, case, seconds=1.0, directory=tmp_path)
    assert figures["rate"] > 0


@pytest.mark.parametrize("name", ["members-1", pytest.param("members-64", marks=pytest.mark.long)])
async def test_members_that_grow_are_asked_in_turn_and_the_rate_that_is_kept_is_told(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iris_members, "MEMBERS", (1, 3))
    task = Task(case=case_named(name), seconds=0.5, broker="", addresses=())
    await iris_members.members(task)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures.keys() == {"rate-1", "rate-3", "kept", "kept-by-asker"}
    assert figures["kept"] == pytest.approx(figures["rate-3"] / figures["rate-1"])
    assert figures["kept-by-asker"] > 0


def test_every_case_can_be_done_by_iris() -> None:
    assert all(system_named("iris").does(case) for case in CASES)


def test_every_case_that_asyncio_has_is_done_by_iris_with_asyncio() -> None:
    """Handshakes are the mesh's, and many members in one process are nodes without a front."""
    without = {case.kind for case in CASES if not system_named("iris.aio").does(case)}
    assert without == {"handshake", "members"}
