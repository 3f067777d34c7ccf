"""Members that owe an answer and say nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from iris.cluster.membership.unanswered import Unanswered
from iris.kernel.names import NodeId
from tests.support.membership import near

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)
PATIENCE = 0.25
LOOK = 1 / 16


def looks(until: float) -> Iterator[float]:
    for number in range(int(until / LOOK) + 1):
        yield number * LOOK


def test_a_member_that_owes_an_answer_and_is_silent_is_doubted_when_patience_is_over() -> None:
    doubts = Unanswered(PATIENCE)
    doubted = [now for now in looks(0.3) if doubts.look(now, {ONE: 7})]
    assert doubted == [PATIENCE]


def test_a_member_from_which_frames_come_is_not_doubted() -> None:
    doubts = Unanswered(PATIENCE)
    assert not [now for now in looks(10) if doubts.look(now, {ONE: int(now / 0.2)})]


def test_silence_counts_from_the_last_frame() -> None:
    doubts = Unanswered(PATIENCE)
    doubted = [now for now in looks(1.4) if doubts.look(now, {ONE: min(int(now * 16), 16)})]
    assert doubted == [1.0 + PATIENCE]


def test_who_owes_nothing_is_not_doubted_and_begins_anew() -> None:
    doubts = Unanswered(PATIENCE)
    doubts.look(0.0, {ONE: 1})
    assert doubts.look(5.0, {}) == []
    assert doubts.look(5.1, {ONE: 1}) == []
    assert doubts.look(5.1 + PATIENCE, {ONE: 1}) == [ONE]


def test_each_member_has_its_own_patience() -> None:
    doubts = Unanswered(PATIENCE)
    doubts.look(0.0, {ONE: 0})
    doubts.look(0.2, {ONE: 0, TWO: 0})
    assert doubts.look(0.25, {ONE: 0, TWO: 0}) == [ONE]
    assert doubts.look(0.45, {ONE: 0, TWO: 0}) == [TWO]


def test_a_long_request_costs_a_question_in_a_second_and_no_more() -> None:
    doubts, frames, doubted = Unanswered(PATIENCE), 0, list[float]()
    for now in looks(60):
        if doubts.look(now, {ONE: frames}):
            doubted.append(now)
            frames += 1  # the answer to the probe
    assert 50 <= len(doubted) <= 65
    assert near(doubted[0], PATIENCE)
    assert all(later - earlier >= 0.9 for earlier, later in itertools.pairwise(doubted[2:]))


def test_a_member_at_work_again_is_doubted_as_early_as_before() -> None:
    doubts, frames = Unanswered(PATIENCE), 0
    for now in looks(20):
        frames += bool(doubts.look(now, {ONE: frames}))
    frames += 10
    doubts.look(20.0, {ONE: frames})
    assert doubts.look(20.0 + PATIENCE, {ONE: frames}) == [ONE]
