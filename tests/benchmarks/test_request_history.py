"""The model of requests: histories that keep to it, and one that breaks each of its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.requests.history import Outcome, Verdict, judge

REPLY, NOT_RUN, UNKNOWN, FAILED = Outcome.REPLY, Outcome.NOT_RUN, Outcome.UNKNOWN, Outcome.FAILED


def judged(
    idempotent: Sequence[int] = (),
    plain: Sequence[int] = (),
    effects: Mapping[str, Sequence[int]] | None = None,
    plain_effects: Mapping[str, Sequence[int]] | None = None,
    killed: Sequence[str] = (),
) -> Verdict:
    return judge(idempotent, plain, effects or {}, plain_effects or {}, set(killed))


def test_a_history_as_it_should_be() -> None:
    verdict = judged([REPLY] * 3, [REPLY, UNKNOWN, NOT_RUN], {"a": [0, 2], "b": [1]}, {"a": [0]})
    assert verdict.violations == ()
    assert (verdict.lost, verdict.doubled, verdict.repeated, verdict.moved) == (0, 0, 0, 0)
    assert verdict.outcomes == {"REPLY": 1, "NOT_RUN": 1, "UNKNOWN": 1}


def test_a_request_may_run_again_when_its_member_was_killed_and_that_is_counted() -> None:
    verdict = judged([REPLY, REPLY], effects={"a": [0, 1], "b": [0], "c": [1]}, killed=["a"])
    assert verdict.violations == ()
    assert (verdict.repeated, verdict.moved) == (2, 0)
    assert judged([REPLY], effects={"a": [0], "b": [0]}).moved == 1


def test_an_outcome_that_is_not_known_may_have_had_an_effect() -> None:
    assert judged(plain=[UNKNOWN, UNKNOWN], plain_effects={"a": [1]}).violations == ()


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        (judged([FAILED], effects={"a": [0]}), "lost"),
        (judged([Outcome.NOTHING]), "lost"),
        (judged([REPLY], effects={"a": [0, 0]}, killed=["a"]), "doubled"),
        (judged([REPLY]), "invented"),
        (judged([REPLY], effects={"a": [0, 1]}), "invented"),
        (judged(plain=[REPLY]), "invented"),
        (judged(plain=[UNKNOWN], plain_effects={"a": [0, 7]}), "invented"),
        (judged(plain=[REPLY], plain_effects={"a": [0], "b": [0]}, killed=["a"]), "doubled"),
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
