"""Two checkouts in turns: what the ratio of figures is, and that both are measured."""

from __future__ import annotations

from benchmarks.turns import HERE, measure, ratios


def test_a_ratio_above_one_is_better_for_this_checkout() -> None:
    pairs = [(200.0, 100.0), (50.0, 100.0)]
    assert ratios(pairs, "higher") == [2.0, 0.5]
    assert ratios(pairs, "lower") == [0.5, 2.0]


def test_every_figure_of_a_case_is_measured() -> None:
    figures = measure(HERE, "request-1", 0.1)
    assert set(figures) == {"request-1/p50", "request-1/p99"}
    assert all(value > 0 and better == "lower" for value, better in figures.values())


def test_a_case_that_does_not_exist_has_no_figures() -> None:
    assert measure(HERE, "no-such-case", 0.1) == {}
