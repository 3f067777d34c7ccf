"""The demo's checks: everything right passes, and each thing that can be wrong is noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.demo.checks import Counters, Outcome, check_outcome, differing_carriers, figures_from_report
from iris.demo.data import CarrierFigures
from tests.support.outcomes import SHA, counters, right_outcome


def failed(outcome: Outcome) -> list[str]:
    return [check.name for check in check_outcome(outcome) if not check.ok]


def found(outcome: Outcome, name: str) -> str:
    (check,) = (check for check in check_outcome(outcome) if check.name == name)
    return check.found


def test_all_is_well_when_all_is_right() -> None:
    assert failed(right_outcome()) == []


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CarrierFigures)])
def test_any_figure_that_differs_is_noticed(field: str) -> None:
    right = right_outcome()
    spoiled = dataclasses.replace(right.spark["AA"], **{field: getattr(right.spark["AA"], field) + 1})
    outcome = right_outcome(spark={**right.spark, "AA": spoiled})
    assert "Spark and pandas agree" in failed(outcome)
    assert found(outcome, "Spark and pandas agree") == "they differ about AA"


def test_the_smallest_difference_of_a_mean_is_noticed() -> None:
    right = right_outcome()
    spoiled = dataclasses.replace(right.spark["AA"], mean_delay=1.5000000000000002)
    assert failed(right_outcome(spark={**right.spark, "AA": spoiled})) == ["Spark and pandas agree"]


@pytest.mark.parametrize("side", ["spark", "pandas"])
def test_a_carrier_that_only_one_of_them_knows_is_noticed(side: str) -> None:
    right = right_outcome()
    without = {carrier: figures for carrier, figures in right.pandas.items() if carrier != "ZZ"}
    assert "Spark and pandas agree" in failed(right_outcome(**{side: without}))


def test_an_event_in_place_of_another_is_noticed_although_the_number_is_right() -> None:
    """Flight 3 is missing and flight 2 is there twice."""
    right = right_outcome()
    doubled = {**right.spark, "ZZ": dataclasses.replace(right.spark["ZZ"], id_sum=4, id_square_sum=8)}
    outcome = right_outcome(spark=doubled, pandas=doubled)
    assert failed(outcome) == ["every event is counted once"]
    assert found(outcome, "every event is counted once") == "5 of 5 flights"


ids = st.lists(st.integers(0, 30), min_size=31, max_size=31)


@given(ids)
def test_only_each_number_once_passes(numbers: list[int]) -> None:
    """Checked against counting, on numbers of which some come twice and some never."""
    figures = {
        "AA": CarrierFigures(
            flights=len(numbers),
            arrived=0,
            mean_delay=None,
            id_sum=sum(numbers),
            id_square_sum=sum(number * number for number in numbers),
        )
    }
    outcome = right_outcome(rows=31, spark=figures, pandas=figures)
    sums = (sum(range(31)), sum(number * number for number in range(31)))
    assert ("every event is counted once" in failed(outcome)) == (
        (sum(numbers), sum(number * number for number in numbers)) != sums
    )


def spoil(part: str, **changes: Any) -> Outcome:
    whole: Mapping[str, Any] = getattr(right_outcome(), part)
    return right_outcome(**{part: {**whole, **changes}})


REQUESTS = "no idempotent request failed"
OBSERVATIONS = "every observation is that of the table"
BOARDS = "every board shows every gate change in order"
ARCHIVE = "the archive holds the table, bit by bit"


@pytest.mark.parametrize(
    ("outcome", "names"),
    [
        (spoil("asked", failed=1, right=11, errors=["MemberLost: x"]), {REQUESTS, OBSERVATIONS}),
        (spoil("asked", wrong=1, right=11), {OBSERVATIONS}),
        (right_outcome(killed="exit status 0"), {REQUESTS}),
        (spoil("changed", boards=[{"changes": 4, "digest": SHA}] * 2), {BOARDS}),
        (spoil("changed", boards=[{"changes": 4, "digest": SHA}] * 2 + [{"changes": 3, "digest": SHA}]), {BOARDS}),
        (spoil("changed", boards=[{"changes": 4, "digest": SHA}] * 2 + [{"changes": 4, "digest": "x"}]), {BOARDS}),
        (spoil("archived", receipt={"bytes": 99, "sha256": SHA}), {ARCHIVE}),
        (spoil("archived", receipt={"bytes": 100, "sha256": "cd" * 32}), {ARCHIVE}),
    ],
)
def test_what_goes_wrong_in_a_stage_is_noticed(outcome: Outcome, names: set[str]) -> None:
    assert set(failed(outcome)) == names


def test_the_first_errors_are_shown() -> None:
    outcome = spoil("asked", failed=1, errors=["MemberLost: the member is gone"])
    assert found(outcome, REQUESTS).endswith("; MemberLost: the member is gone")


PATTERNS = [
    ("asked", "counters", "request"),
    ("changed", "counters", "broadcast"),
    ("changed", "survey_counters", "survey"),
    ("archived", "counters", "tunnel"),
    ("published", "counters", "publish"),
]


@pytest.mark.parametrize(("part", "field", "pattern"), PATTERNS)
@pytest.mark.parametrize(
    "change",
    [{"answered": 1}, {"waiting": 1}, {"lost": {"link full": 1}}, {"expired": 1}, {"refused": 1}],
)
def test_counters_that_do_not_add_up_are_noticed(part: str, field: str, pattern: str, change: dict[str, Any]) -> None:
    sent = getattr(right_outcome(), part)[field]["sent"]
    outcome = spoil(part, **{field: counters(sent, **change)})
    assert failed(outcome) == [f"{pattern} counters add up, nothing is lost"]


@pytest.mark.parametrize(("part", "field", "pattern"), [case for case in PATTERNS if case[2] != "tunnel"])
def test_too_few_messages_are_noticed_although_they_add_up(part: str, field: str, pattern: str) -> None:
    outcome = spoil(part, **{field: counters(1)})
    assert failed(outcome) == [f"{pattern} counters add up, nothing is lost"]


def test_a_loss_that_is_accounted_for_adds_up_and_is_no_success() -> None:
    lossy = counters(5, answered=4, lost={"link full": 1})
    assert Counters.from_fields(lossy).add_up
    assert failed(spoil("published", counters=lossy)) == ["publish counters add up, nothing is lost"]


def test_every_check_says_what_was_found() -> None:
    assert all(check.found for check in check_outcome(right_outcome()))


def test_what_spark_reports_is_read_back() -> None:
    figures = right_outcome().spark
    reported = {carrier: dataclasses.asdict(one) for carrier, one in figures.items()}
    assert figures_from_report(reported) == figures
    assert differing_carriers(figures_from_report(reported), figures) == []
