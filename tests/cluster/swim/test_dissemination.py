"""Updates wait to be sent: the least sent first, each often enough, none for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.swim import gossip as dissemination
from iris.cluster.swim.gossip import Accusation, GossipQueue, Update, sends
from iris.cluster.swim.records import NodeRecord
from iris.kernel.config import Config
from tests.support.membership import node, record


def hint(number: int) -> Accusation:
    return Accusation(node=node(number), incarnation=1)


@pytest.mark.parametrize(("members", "often"), [(2, 12), (100, 12), (999, 12), (1000, 16), (10_000, 20)])
def test_each_update_is_sent_at_least_twelve_times(members: int, often: int) -> None:
    assert sends(members, Config()) == often


def test_an_update_is_taken_as_often_as_it_should_and_then_forgotten() -> None:
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    assert [waiting.pop(1000, 10, 3) for _ in range(4)] == [[hint(1)]] * 3 + [[]]
    assert len(waiting) == 0


def test_a_newer_update_takes_the_place_of_the_older_and_starts_again() -> None:
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    waiting.pop(1000, 10, 3)
    waiting.add(("a",), hint(2))
    assert len(waiting) == 1
    assert [waiting.pop(1000, 10, 3) for _ in range(4)] == [[hint(2)]] * 3 + [[]]


@pytest.mark.parametrize(
    ("sent", "new", "pressing", "riding"), [(0, False, 0, 4), (0, True, 3, 4), (7, True, 1, 4), (9, True, 0, 3)]
)
def test_what_its_subject_tells_everybody_presses_for_a_round_if_it_is_new_and_else_rides_along(
    sent: int, new: bool, pressing: int, riding: int
) -> None:
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    for _ in range(sent):
        waiting.pop(1000, 10, 12)
    waiting.sent_directly(("a",), 12, new=new)
    waiting.sent_directly(("a",), 12, new=True)  # said again: nothing changes
    seen: list[bool] = []
    while len(waiting):
        seen.append(waiting.pressing)
        assert waiting.pop(1000, 10, 12) == [hint(1)]
    assert seen == [True] * pressing + [False] * riding
    assert not waiting.pressing
    waiting.sent_directly(("a",), 12)
    assert len(waiting) == 0


def test_news_of_whoever_tells_everybody_itself_presses_again_when_it_comes_otherwise() -> None:
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    waiting.sent_directly(("a",), 12)
    assert not waiting.pressing
    waiting.add(("a",), hint(2))
    assert waiting.pressing
    assert [len(waiting.pop(1000, 10, 12)) for _ in range(13)] == [1] * 12 + [0]


@given(st.lists(st.tuples(st.sampled_from("atdx"), st.integers(0, 3)), max_size=60))
def test_something_presses_just_while_something_waits_that_does_not_only_ride(steps: list[tuple[str, int]]) -> None:
    waiting = GossipQueue()
    left: dict[int, tuple[int, bool]] = {}
    numbers = {node(number): number for number in range(4)}
    for step, number in steps:
        key = (str(number),)
        match step:
            case "a":
                waiting.add(key, hint(number))
                left[number] = (6, False)
            case "t":
                waiting.sent_directly(key, 6)
                if number in left and not left[number][1]:
                    left[number] = (min(left[number][0], 4), True)
            case "d":
                waiting.discard(key)
                left.pop(number, None)
            case _:
                for update in waiting.pop(1000, 10, 6):
                    assert isinstance(update, Accusation)
                    taken = numbers[update.node]
                    count, told = left[taken]
                    left[taken] = (count - 1, told)
                    if count == 1:
                        del left[taken]
        assert len(waiting) == len(left)
        assert waiting.pressing == any(not told for _, told in left.values())


def test_the_least_sent_goes_first() -> None:
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    assert waiting.pop(1000, 1, 5) == [hint(1)]
    waiting.add(("b",), hint(2))
    assert waiting.pop(1000, 1, 5) == [hint(2)]
    assert waiting.pop(1000, 1, 5) == [hint(1)]


def test_what_does_not_fit_waits_and_what_fits_nowhere_goes_alone() -> None:
    waiting = GossipQueue()
    large = record(1, site="x" * 100)
    waiting.add(("small",), hint(1))
    waiting.add(("large",), large)
    waiting.add(("other",), hint(2))
    assert waiting.pop(100, 10, 5) == [hint(1), hint(2)]
    assert waiting.pop(100, 10, 5) == [large]


def test_a_full_queue_drops_what_was_sent_most_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dissemination, "MAX_WAITING", 2)
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    waiting.pop(1000, 10, 5)
    waiting.add(("b",), hint(2))
    waiting.add(("c",), hint(3))
    assert waiting.dropped == 1
    assert waiting.get(("a",)) is None
    assert (waiting.get(("b",)), waiting.get(("c",))) == (hint(2), hint(3))


def test_what_is_discarded_is_not_sent() -> None:
    waiting = GossipQueue()
    waiting.add(("a",), hint(1))
    waiting.discard(("a",))
    waiting.discard(("never",))
    assert waiting.pop(1000, 10, 5) == []


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 200)), max_size=30),
    st.integers(40, 600),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_every_update_goes_out_the_same_number_of_times_within_the_bounds(
    added: list[tuple[int, int]], room: int, count: int, often: int
) -> None:
    waiting = GossipQueue()
    latest: dict[int, Update] = {}
    for key, padding in added:
        latest[key] = NodeRecord(node=node(key), name="c", proof=bytes(padding))
        waiting.add((str(key),), latest[key])
    taken: Counter[Update] = Counter()
    while len(waiting):
        message = waiting.pop(room, count, often)
        assert 0 < len(message) <= count
        assert sum(update.size for update in message) <= room or len(message) == 1
        taken.update(message)
    assert taken == Counter(dict.fromkeys(latest.values(), often))
