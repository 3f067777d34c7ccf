"""Missing events of a topic: never one that is there, is still to come, or was never there."""

from __future__ import annotations

import random

import pytest

from iris.spark_bridge.log import numbering as numberings
from iris.spark_bridge.log.numbering import Hole, Numbering, PublisherNumberings


class Log:
    """A shard, as far as numbers are concerned."""

    def __init__(self, numbering: Numbering | None = None) -> None:
        self.numbering = numbering or Numbering()
        self.offset = 0
        self.begin = 0

    def take(
        self,
        first: int,
        count: int = 1,
        *,
        began: int = 0,
        held: int = 0,
        owed: int = 0,
        withdrawn: tuple[int, ...] = (),
    ) -> None:
        """Store events; ``held`` is the first one that the publisher may still send again."""
        milestones = (began,) if not held else (began, began, began, held, *withdrawn)
        self.numbering.arrive(first, count, owed=owed, milestones=milestones, shard=0, offset=self.offset)
        self.offset += count

    def settle(self) -> list[tuple[int, int, int]]:
        """End an append; return what is missing: first, last, and the offset before which it is."""
        found = [(hole.first, hole.last, hole.offset) for hole in self.numbering.settle({0: self.begin})]
        self.begin = self.offset
        return found

    def restart(self) -> None:
        """Go on with what was written."""
        self.numbering = Numbering(self.numbering.next, self.numbering.holes)


def test_what_follows_without_a_hole_is_whole() -> None:
    log = Log()
    log.take(1, 5)
    log.take(6)
    assert log.settle() == []
    log.restart()
    log.take(7, 3)
    assert log.settle() == []


def test_a_number_that_is_skipped_is_missing_before_the_event_that_shows_it() -> None:
    log = Log()
    log.take(1, 5)
    log.take(8)
    log.take(12, 2)
    assert log.settle() == [(6, 7, 5), (9, 11, 6)]
    assert log.settle() == []


def test_it_is_noticed_across_a_restart() -> None:
    log = Log()
    log.take(1, 5)
    log.settle()
    log.restart()
    log.take(10)
    assert log.settle() == [(6, 9, 5)]


def test_what_is_still_sent_again_is_not_missing() -> None:
    log = Log()
    log.take(1, 5)
    log.take(10, held=6)
    assert log.settle() == []
    log.restart()
    log.take(6, 4, held=6)
    log.take(11)
    assert log.settle() == []


def test_what_was_given_up_is_missing_where_readers_have_not_been_yet() -> None:
    log = Log()
    log.take(1, 5)
    log.take(10, held=6)
    log.take(7, held=6)
    assert log.settle() == []
    log.restart()
    assert log.offset == 7
    log.take(11, held=9)
    assert log.settle() == [(6, 6, 7), (8, 8, 7)]
    log.take(12)
    assert log.settle() == [(9, 9, 8)]


def test_what_a_repeat_says_is_old() -> None:
    """It was made when something else was waited for; what is newer says that nothing is."""
    log = Log()
    log.take(5)
    log.take(9, held=6)
    log.take(7, held=6)
    log.settle()
    log.take(10)
    log.take(8, held=6)
    assert log.settle() == [(6, 6, 3)]


@pytest.mark.parametrize(("owed", "missing"), [(0, []), (1, [(1, 6, 0)]), (4, [(4, 6, 0)]), (7, [])])
def test_of_a_topic_that_is_new_that_is_missing_which_was_owed(owed: int, missing: list[tuple[int, int, int]]) -> None:
    log = Log()
    log.take(7, owed=owed)
    assert log.settle() == missing


def test_a_topic_that_its_publisher_had_forgotten_has_no_events_in_between() -> None:
    log = Log()
    log.take(1, 5)
    log.settle()
    log.take(1001, began=1000)
    log.take(2001, 3, began=2000)
    assert log.settle() == []
    log.take(3003, began=3000)
    assert log.settle() == [(3001, 3002, 9)]


def test_a_subscription_that_is_told_again_changes_nothing() -> None:
    log = Log()
    log.take(1, 5, owed=1)
    log.take(9, owed=3)
    assert log.settle() == [(6, 8, 5)]


def test_holes_are_bounded_and_the_oldest_is_given_up() -> None:
    log = Log()
    log.take(1)
    for number in range(numberings.MAX_HOLES + 5):
        log.take(3 + 2 * number, held=1)
    assert [first for first, _, _ in log.settle()] == [2, 4, 6, 8, 10]
    assert len(log.numbering.holes) == numberings.MAX_HOLES


@pytest.mark.parametrize("seed", [*range(50), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(50, 200))])
def test_whatever_comes_in_whatever_order_each_number_is_there_to_come_or_missing(seed: int) -> None:
    """A publisher that loses frames, gives some up, and a bridge that is restarted in between."""
    chance = random.Random(seed)
    log = Log()
    stored: set[int] = set()
    missing: list[int] = []
    held: dict[int, int] = {}  # by the first number of a run, its length
    number = 1
    for _ in range(200):
        match chance.choice(["plain", "confirmed", "repeat", "give up", "settle", "restart"]):
            case "plain" | "confirmed" as kind:
                count = chance.randint(1, 4)
                if kind == "confirmed":
                    held[number] = count
                if chance.random() < 0.7:
                    log.take(number, count, held=min(held, default=0), owed=0 if stored else 1)
                    stored.update(range(number, number + count))
                number += count
            case "repeat" if held:
                first = chance.choice([*held])
                if first not in stored:
                    log.take(first, held[first], held=min(held), owed=0 if stored else 1)
                    stored.update(range(first, first + held[first]))
            case "give up" if held:
                del held[chance.choice([*held])]
            case "settle":
                missing += [at for first, last, _ in log.settle() for at in range(first, last + 1)]
            case "restart":
                missing += [at for first, last, _ in log.settle() for at in range(first, last + 1)]
                log.restart()
            case _:
                pass
    log.take(number)
    stored.add(number)
    missing += [at for first, last, _ in log.settle() for at in range(first, last + 1)]
    assert len(missing) == len(set(missing))
    first_ever = 1 if stored else number
    assert set(missing) == set(range(first_ever, number)) - stored


def test_a_publisher_of_many_topics_is_remembered_by_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numberings, "MAX_TOPICS", 3)
    known = PublisherNumberings([("old", Numbering(5)), ("older", Numbering(6))])
    for name in ("a", "old", "b", "c"):
        known.topic(name)
    assert list(known.topics) == ["old", "b", "c"]
    assert (known.changed, known.expired) == ({"old", "b", "c"}, {"older", "a"})
    assert known.topic("older").next == 0
    assert known.expired == {"a", "old"}


def test_a_hole_says_how_many_events_are_missing() -> None:
    assert Hole(3, 7, 0, 0).size == 5


def test_what_was_withdrawn_is_not_missing_and_what_lies_between_is() -> None:
    log = Log()
    log.take(1, 5)
    log.take(12, held=12, withdrawn=(6, 7, 9, 10))
    assert log.settle() == [(8, 8, 5), (11, 11, 5)]
    log.take(15, held=13)
    log.take(20, held=20, withdrawn=(13, 14, 16, 19))
    assert log.settle() == []
    log.restart()
    log.take(21, held=21, withdrawn=(13, 14, 16, 19))
    assert log.settle() == []


def test_what_was_withdrawn_and_had_come_is_counted_once() -> None:
    log = Log()
    log.take(1, 5)
    log.take(8, held=8, withdrawn=(4, 6))
    assert log.settle() == [(7, 7, 5)]
