"""Gaps over losses, repeats, withdrawals and lost confirmations: exactly the unreported events, in any history."""

from __future__ import annotations

import random

import pytest

from iris.patterns.pubsub.interest.start_offsets import MAX_WITHDRAWN
from iris.patterns.pubsub.publish.publisher import Topic
from iris.spark_bridge.log.numbering import Numbering


class History:
    """A publisher, a link that loses, and a bridge; each event is one run."""

    def __init__(self) -> None:
        self.topic = Topic(0)
        self.numbering = Numbering()
        self.stored: set[int] = set()
        self.lost: set[int] = set()
        self.gaps: list[int] = []
        self.open: dict[int, tuple[tuple[int, int], ...] | None] = {}
        """Numbers that wait for confirmation, and what was withdrawn when each was sent first."""
        self.worst = 0

    def _send(self, number: int, *, arrives: bool) -> None:
        topic = self.topic
        milestones = topic.milestones
        if topic.unconfirmed or topic.withdrawn:
            milestones = topic.milestones_of(milestones, number)
        if not arrives or number in self.stored:
            return
        self.stored.add(number)
        self.numbering.arrive(number, 1, owed=0, milestones=milestones, shard=0, offset=len(self.stored))
        for hole in self.numbering.settle({0: len(self.stored)}):
            self.gaps += range(hole.first, hole.last + 1)

    def _number(self) -> int:
        self.topic.sequence += 1
        return self.topic.sequence

    def publish(self, *, arrives: bool) -> None:
        number = self._number()
        if not arrives:
            self.lost.add(number)
        self._send(number, arrives=arrives)

    def confirm(self, *, arrives: bool) -> int:
        number = self._number()
        self.topic.hold(number)
        self.open[number] = self.topic.withdrawn
        self._send(number, arrives=arrives)
        return number

    def repeat(self, number: int, *, arrives: bool) -> None:
        self._send(number, arrives=arrives)

    def confirmed(self, number: int) -> None:
        told = self.open.pop(number)
        self.topic.release(number)
        if told:
            self.topic.withdrawn = tuple(each for each in self.topic.withdrawn if each not in told)

    def give_up(self, number: int) -> None:
        del self.open[number]
        self.topic.release(number)
        self.topic.withdraw(number, number)
        self.worst = max(self.worst, len(self.topic.withdrawn))


def run(seed: int, *, steps: int, give_up: float) -> History:
    rng = random.Random(seed)
    history = History()
    history.confirmed(history.confirm(arrives=True))
    arrives = True
    for _ in range(steps):
        if rng.random() < 0.1:
            arrives = not arrives  # the bridge goes, or comes back
        chance = rng.random()
        waiting = list(history.open)
        if chance < 0.35:
            history.publish(arrives=arrives and rng.random() < 0.9)
        elif chance < 0.6 and len(waiting) < 12:
            history.confirm(arrives=arrives and rng.random() < 0.8)
        elif waiting:
            number = rng.choice(waiting)
            if rng.random() < give_up:
                history.give_up(number)
            elif number in history.stored and rng.random() < 0.8:
                history.confirmed(number)
            else:
                history.repeat(number, arrives=arrives)
    for number in list(history.open):
        history.repeat(number, arrives=True)
        history.confirmed(number)
    history.confirmed(history.confirm(arrives=True))
    return history


@pytest.mark.parametrize("give_up", [0.0, 0.05, 0.3])
def test_gaps_are_what_was_lost_and_not_confirmed_and_nothing_else(give_up: float) -> None:
    seen = 0
    for seed in range(150):
        history = run(seed, steps=80, give_up=give_up)
        if history.worst >= MAX_WITHDRAWN:
            continue
        assert sorted(history.gaps) == sorted(history.lost), f"seed {seed}"
        assert not history.stored & set(history.gaps)
        seen += 1
    assert seen > 50


def test_what_is_stored_is_never_a_gap_however_much_was_withdrawn() -> None:
    for seed in range(60):
        history = run(seed, steps=300, give_up=0.6)
        assert not history.stored & set(history.gaps)
        assert len(history.gaps) == len(set(history.gaps))
        assert set(history.lost) <= set(history.gaps)
        assert len(history.topic.withdrawn) <= MAX_WITHDRAWN
