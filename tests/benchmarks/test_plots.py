"""The pictures of a benchmark run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.plots import draw_plots
from benchmarks.report import Report, Run
from benchmarks.system import Roles, System, Task
from iris.bench.cases import CASES, Case, Kind

pytest.importorskip("matplotlib", reason="the pictures of the benchmark are drawn by matplotlib")

RUN = Run(date="2026-01-01", seconds=1.0, rounds=2)


def system(name: str) -> System:
    def role(_task: Task) -> None: ...

    kinds: dict[Kind, Roles] = {case.kind: Roles(sink=role, source=role) for case in CASES}
    return System(name=name, package="trio", encrypted=True, module="trio", roles=kinds)


def measured(*cases: Case) -> Report:
    """Return a report in which every figure of every case has two rounds."""
    systems = [system("iris"), system("peer")]
    report = Report(run=RUN, cases=cases, systems=systems)
    for case in cases:
        for factor, one in enumerate(systems, start=1):
            for tail in (1, 2):
                figures = {figure.name: 10.0 * factor for figure in case.figures}
                if "p50" in figures:
                    figures |= {"p50": 100.0 * factor, "p90": 200.0, "p99": 400.0, "p99.9": 8000.0 * tail}
                report.add(case, one, figures)
    return report


def words(picture: Path) -> set[str]:
    """Return the texts in a picture; the file names them in comments beside their outlines."""
    return {
        line.strip().removeprefix("<!--").removesuffix("-->").strip()
        for line in picture.read_text().splitlines()
        if line.strip().startswith("<!--")
    }


def test_every_case_has_a_picture(tmp_path: Path) -> None:
    pictures = draw_plots(measured(*CASES), tmp_path / "figures")
    assert [picture.name for picture in pictures] == [f"bench-{case.name}.svg" for case in CASES]
    assert all(case.title in words(picture) for case, picture in zip(CASES, pictures, strict=True))


def test_a_case_that_was_not_measured_has_none(tmp_path: Path) -> None:
    assert draw_plots(Report(run=RUN, cases=CASES, systems=[system("iris")]), tmp_path) == []


def test_latencies_are_drawn_by_percentile_with_every_system(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "paced-1000")
    (picture,) = draw_plots(measured(case), tmp_path)
    assert {"p50", "p90", "p99", "p99.9", "iris", "peer", "us"} <= words(picture)


def test_each_further_nine_of_a_percentile_gets_the_same_room_and_latencies_a_logarithmic_axis() -> None:
    from matplotlib.figure import Figure

    from benchmarks.plots import _percentile_lines

    case = next(case for case in CASES if case.name == "paced-1000")
    axes = Figure().subplots()
    _percentile_lines(measured(case), case, axes)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [round(place) for place in axes.get_xticks()] == [2, 10, 100, 1000]
    ours, _ = axes.get_lines()
    heights: Any = ours.get_ydata()
    assert list(heights) == [100, 200, 400, 12_000], "medians of the rounds"


def test_the_same_figures_make_the_same_file(tmp_path: Path) -> None:
    case = CASES[0]
    (one,) = draw_plots(measured(case), tmp_path / "one")
    (other,) = draw_plots(measured(case), tmp_path / "other")
    assert one.read_bytes() == other.read_bytes()
