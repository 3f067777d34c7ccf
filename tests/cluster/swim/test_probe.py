"""One probe, the round of probes, and the health that slows them."""

from __future__ import annotations

from random import Random

import pytest

from iris.cluster.swim.awareness import MAX_SCORE, Awareness
from iris.cluster.swim.failure_detector import OpenProbe, ProbeOrder, ProbeVerdict
from tests.support.membership import node


def test_a_probe_is_over_after_twice_its_timeout() -> None:
    probe = OpenProbe(node(1), 10.0, 0.25)
    assert probe.deadline == 10.25
    probe.widen([node(2)])
    assert probe.deadline == 10.5


def test_only_helpers_that_were_asked_report_and_once_each() -> None:
    probe = OpenProbe(node(1), 0.0, 0.25)
    probe.widen([node(2), node(3)])
    assert not probe.report(node(4), ProbeVerdict.ANSWERED)
    assert not probe.reached
    assert probe.report(node(2), ProbeVerdict.SILENT)
    assert not probe.report(node(2), ProbeVerdict.ANSWERED)
    assert not probe.reached
    assert probe.report(node(3), ProbeVerdict.ANSWERED)
    assert probe.reached


def test_everybody_is_probed_once_in_a_round() -> None:
    order = ProbeOrder(Random(1))
    members = [node(number) for number in range(20)]
    rounds: list[list[str]] = []
    for _ in range(3):
        order.refill(members)
        rounds.append([order.pop() or "" for _ in members])
        assert order.pop() is None
        assert sorted(rounds[-1]) == sorted(members)
    assert rounds[0] != rounds[1] != rounds[2]


def test_a_new_member_enters_the_running_round_anywhere() -> None:
    places: set[int] = set()
    for seed in range(60):
        order = ProbeOrder(Random(seed))
        order.refill([node(number) for number in range(4)])
        order.insert(node(9))
        left = [order.pop() for _ in range(5)]
        assert order.pop() is None
        places.add(left.index(node(9)))
    assert places == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("asked", "reported", "before", "after"),
    [
        (0, 0, 0, 1),
        (3, 3, 0, 0),
        (3, 3, 2, 1),
        (3, 2, 0, 1),
        (3, 0, 0, 3),
        (3, 0, 7, MAX_SCORE),
    ],
)
def test_silent_helpers_speak_against_oneself(asked: int, reported: int, before: int, after: int) -> None:
    health = Awareness()
    health.score = before
    health.missed(asked, reported)
    assert health.score == after
    assert health.factor == after + 1


def test_answers_restore_health_and_refutations_and_stalls_cost_it() -> None:
    health = Awareness()
    health.answered()
    assert health.score == 0
    health.refuted()
    health.stalled()
    assert health.score == 2
    health.refuted()
    assert health.score == 2, "others' word alone slows no further"
    health.stalled()
    assert health.score == 3
    health.answered()
    assert health.score == 2


def test_the_worst_lateness_counts_and_fades() -> None:
    health = Awareness()
    for seconds in (0.1, 0.3, 0.2):
        health.late(seconds)
    assert health.lateness == pytest.approx(0.27)
    for _ in range(44):
        health.late(0.0)
    assert 0 < health.lateness < 0.01 * 0.27
