"""The model of requests: histories that keep to it, and one that breaks each of its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.support.request_model import Death, Effects, Outcome, Verdict, judge

REPLY, NOT_RUN, UNKNOWN, FAILED = Outcome.REPLY, Outcome.NOT_RUN, Outcome.UNKNOWN, Outcome.FAILED


def at_moments(effects: Mapping[str, Sequence[int | tuple[int, int]]] | None) -> dict[str, Effects]:
    """Effects at moments that are given, or at 10."""
    made: dict[str, Effects] = {}
    for member, ran in (effects or {}).items():
        pairs = [one if isinstance(one, tuple) else (one, 10) for one in ran]
        made[member] = Effects([number for number, _ in pairs], [moment for _, moment in pairs])
    return made


def judged(
    idempotent: Sequence[int] = (),
    plain: Sequence[int] = (),
    effects: Mapping[str, Sequence[int | tuple[int, int]]] | None = None,
    plain_effects: Mapping[str, Sequence[int | tuple[int, int]]] | None = None,
    deaths: Mapping[str, int] | None = None,
    moved: int = 0,
) -> Verdict:
    died = {member: Death(moment, moment + 2) for member, moment in (deaths or {}).items()}
    return judge(idempotent, plain, at_moments(effects), at_moments(plain_effects), died, moved)


def test_a_history_as_it_should_be() -> None:
    verdict = judged([REPLY] * 3, [REPLY, UNKNOWN, NOT_RUN], {"a": [0, 2], "b": [1]}, {"a": [0]})
    assert verdict.violations == ()
    assert (verdict.lost, verdict.doubled, verdict.after_death, verdict.beside) == (0, 0, 0, 0)
    assert verdict.outcomes == {"REPLY": 1, "NOT_RUN": 1, "UNKNOWN": 1}


def test_a_request_may_run_again_when_its_member_is_dead_and_that_is_counted() -> None:
    effects: dict[str, Sequence[int | tuple[int, int]]] = {"a": [0, 1], "b": [(0, 21)], "c": [(1, 22)]}
    verdict = judged([REPLY, REPLY], effects=effects, deaths={"a": 20}, moved=2)
    assert verdict.violations == ()
    assert (verdict.after_death, verdict.beside) == (2, 0)


@pytest.mark.parametrize(
    ("effects", "deaths"),
    [
        ({"a": [0], "b": [(0, 15)]}, {}),
        ({"a": [0], "b": [(0, 15)]}, {"a": 20}),  # the first one died later
        ({"a": [(0, 15)], "b": [0]}, {"a": 20}),  # the second one died
        ({"a": [0], "b": [(0, 15)], "c": [(0, 25)]}, {"a": 20}),  # one of two
        ({"a": [(0, 30)], "b": [0], "c": [(0, 25)]}, {"b": 20}),
    ],
)
def test_a_request_that_ran_again_while_its_member_lived_is_counted_for_itself(
    effects: Mapping[str, Sequence[int | tuple[int, int]]], deaths: Mapping[str, int]
) -> None:
    verdict = judged([REPLY], effects=effects, deaths=deaths, moved=1)
    assert verdict.violations == ()
    assert (verdict.after_death, verdict.beside) == (0, 1)


def test_an_outcome_that_is_not_known_may_have_had_an_effect() -> None:
    assert judged(plain=[UNKNOWN, UNKNOWN], plain_effects={"a": [1]}).violations == ()


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        (judged([FAILED], effects={"a": [0]}), "lost"),
        (judged([Outcome.NOTHING]), "lost"),
        (judged([REPLY], effects={"a": [0, 0]}, deaths={"a": 20}), "doubled"),
        (judged([REPLY], effects={"a": [0], "b": [(0, 21)]}, deaths={"a": 20}), "unexplained"),
        (judged([REPLY] * 2, effects={"a": [0, 1], "b": [0, 1]}, moved=1), "unexplained"),
        (judged([REPLY], effects={"a": [0]}, deaths={"a": 7}), "undead"),
        (judged(plain=[REPLY], plain_effects={"a": [(0, 10)]}, deaths={"a": 7}), "undead"),
        (judged([REPLY]), "invented"),
        (judged([REPLY], effects={"a": [0, 1]}), "invented"),
        (judged(plain=[REPLY]), "invented"),
        (judged(plain=[UNKNOWN], plain_effects={"a": [0, 7]}), "invented"),
        (judged(plain=[REPLY], plain_effects={"a": [0], "b": [0]}, deaths={"a": 20}), "doubled"),
        (judged(plain=[UNKNOWN], plain_effects={"a": [0, 0]}), "doubled"),
        (judged(plain=[NOT_RUN], plain_effects={"a": [0]}), "denied"),
        (judged(plain=[Outcome.NOTHING]), "silent"),
        (judged(plain=[FAILED], plain_effects={"a": [0]}), "silent"),
    ],
)
def test_every_rule_can_be_broken(verdict: Verdict, kind: str) -> None:
    assert verdict.violations[-1] == f"{kind}: 1 in all"
    assert len(verdict.violations) == 2


def test_of_many_violations_some_are_described_and_all_are_counted() -> None:
    verdict = judged([FAILED] * 1000)
    assert verdict.lost == 1000
    assert len(verdict.violations) == 11
