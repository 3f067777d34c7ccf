"""Two checkouts in turns: what the ratio of figures is, which are slower, and that both are measured."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from benchmarks import turns
from benchmarks.turns import HERE, HOT, chosen, compare, least_bytecodes, measure, measure_pairs, ratios, verdict
from iris.bench.cases import CASES, Case

REQUEST = next(case for case in CASES if case.name == "request-1")


def test_a_ratio_above_one_is_better_for_this_checkout() -> None:
    pairs: list[tuple[turns.Figures, turns.Figures]] = [
        ({"rate": (200.0, "higher"), "p50": (200.0, "lower")}, {"rate": (100.0, "higher"), "p50": (100.0, "lower")}),
        ({"rate": (50.0, "higher"), "only here": (1.0, "lower")}, {"rate": (100.0, "higher")}),
    ]
    assert ratios(pairs) == {"rate": [2.0, 0.5], "p50": [0.5]}


@pytest.mark.parametrize(
    ("name", "each", "said"),
    [
        ("rate", [1.1, 0.5, 0.97], ""),
        ("rate", [1.1, 0.5, 0.969], "in doubt"),
        ("rate", [0.99, 0.95, 0.96, 0.94, 0.96], "slower"),
        ("rate", [1.01, 0.95, 0.96, 0.94, 0.96], "in doubt"),
        ("rate", [1.3, 1.2, 1.1] + 12 * [0.9], "MUCH SLOWER"),
        ("rate", [1.3, 1.2, 1.1, 1.0] + 11 * [0.9], "in doubt"),
        ("p50", [0.93], "slower"),
        ("p50", [0.929], "MUCH SLOWER"),
        ("p99", [0.5], ""),
    ],
)
def test_the_median_of_the_pairs_is_judged_and_tails_are_not(name: str, each: list[float], said: str) -> None:
    assert verdict(name, each) == said


def test_what_is_slower_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    here: turns.Figures = {"rate": (90.0, "higher"), "processor, us": (10.0, "lower")}
    there: turns.Figures = {"rate": (100.0, "higher"), "processor, us": (10.0, "lower")}
    assert compare("iris, one-way", [(here, there)]) == (["iris, one-way: rate 0.90"], [])
    title, rate, processor = capsys.readouterr().out.splitlines()
    assert title == "iris, one-way"
    assert rate.split() == ["rate", "90", "100", "0.90", "MUCH", "SLOWER"]
    assert processor.split() == ["processor,", "us", "10", "10", "1.00"]


@pytest.mark.parametrize(("rate", "measured"), [(100.0, 2), (50.0, 6)])
def test_what_seems_slower_is_measured_three_times_as_often(
    rate: float, measured: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order: list[Path] = []

    def reached(tree: Path, system: str, case: Case, seconds: float, directory: Path) -> turns.Figures:
        order.append(tree)
        return {"rate": (rate if tree == HERE else 100.0, "higher")}

    monkeypatch.setattr(turns, "measure", reached)
    assert len(measure_pairs("iris", REQUEST, tmp_path, tmp_path, 2, 0.1)) == measured
    assert order[:4] == [HERE, tmp_path, tmp_path, HERE]


def test_bytecodes_are_counted_again_before_there_are_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts = {HERE: iter([110.0, 100.0]), tmp_path: iter([100.0, 105.0])}

    def count(tree: Path) -> turns.Figures:
        return {"event": (next(counts[tree]), "lower")}

    monkeypatch.setattr(turns, "count_bytecodes", count)
    assert least_bytecodes(tmp_path) == ({"event": (100.0, "lower")}, {"event": (100.0, "lower")})


def test_without_a_choice_what_every_message_takes_is_measured() -> None:
    assert [(system, case.name) for system, case in chosen((), (), everything=False)] == list(HOT)
    assert [
        (system, case.name) for system, case in chosen(("iris.aio",), ("request-1", "handshake"), everything=False)
    ] == [("iris.aio", "request-1")]
    assert {case.name for _, case in chosen((), (), everything=True)} == {case.name for case in CASES}
    with pytest.raises(click.UsageError, match="no case no-such-case; there are publish-100"):
        chosen((), ("no-such-case",), everything=False)


def test_every_figure_of_a_case_is_measured(tmp_path: Path) -> None:
    figures = measure(HERE, "iris", REQUEST, 0.1, tmp_path)
    assert set(figures) >= {"p50", "p99"}
    assert all(value > 0 and better == "lower" for value, better in figures.values())


def test_a_checkout_that_cannot_do_a_case_has_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(HERE, "no such system", REQUEST, 0.1, tmp_path) == {}
    assert "request-1 of no such system" in capsys.readouterr().err
