"""Trials with real processes, on the system that needs nothing but trio."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.case import CASES, Case
from benchmarks.systems import system_named
from benchmarks.trial import TrialError, run_trial


def case_named(name: str) -> Case:
    (found,) = (case for case in CASES if case.name == name)
    return found


@pytest.mark.parametrize("name", ["publish-100", "request-1", "paced-1000"])
def test_a_trial_reports_every_figure_of_its_case(name: str, tmp_path: Path) -> None:
    case = case_named(name)
    figures = run_trial(system_named("trio TCP"), case, seconds=0.1, broker="", directory=tmp_path)
    assert {figure.name for figure in case.figures} <= set(figures)
    assert all(figures[figure.name] > 0 for figure in case.figures)
    assert figures.get("lost", 0) == 0


def test_a_process_that_fails_ends_the_trial_with_its_last_words(tmp_path: Path) -> None:
    broken = dataclasses.replace(system_named("trio TCP"), name="no such system")
    with pytest.raises(TrialError, match="ValueError"):
        run_trial(broken, case_named("request-1"), seconds=0.1, broker="", directory=tmp_path)
