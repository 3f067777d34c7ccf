"""Losses of a subscription: reported in their places where these are known, and all of them in any case."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iris.kernel import wire
from iris.patterns.pubsub.subscribe import AnnouncedLosses
from tests.support.subscriptions import Desk


def told_while_taking(desk: Desk, losses: AnnouncedLosses, count: int | None = None) -> int:
    """Receive what waits, or ``count`` events, and return how many losses were reported."""
    told = taken = 0
    while taken != count and (event := desk.take_one()) is not None:
        told += losses.before(event)
        taken += 1
    return told


def test_losses_on_topics_of_one_event_each_are_told() -> None:
    desk = Desk(max_events=10)
    losses = AnnouncedLosses(desk.subscription)
    for number in range(8000):
        desk.numbers(1, 1, topic=f"t.{number}")
    assert told_while_taking(desk, losses) == 7990 == desk.subscription.statistics().lost


def test_who_is_always_too_slow_is_told_all_the_same() -> None:
    desk = Desk(max_events=10)
    losses = AnnouncedLosses(desk.subscription)
    told = 0
    for number in range(1000):
        for part in "abcd":
            desk.numbers(1, 1, topic=f"{part}.{number}")
        told += told_while_taking(desk, losses, 1)
        assert (
            desk.subscription.statistics().lost - told <= 10 * 3 * 2
        )  # what was lost while all that waited was taken, twice
    assert told + told_while_taking(desk, losses) == desk.subscription.statistics().lost


def test_a_member_of_a_group_is_told_what_was_dropped() -> None:
    desk = Desk(max_events=10, group="g")
    losses = AnnouncedLosses(desk.subscription)
    desk.numbers(1, 25)
    assert told_while_taking(desk, losses) == 15


def test_what_cannot_be_read_at_the_end_is_told_without_an_event() -> None:
    desk = Desk()
    losses = AnnouncedLosses(desk.subscription)
    desk.numbers(1, 1)
    desk.deliver(2, [wire.join_payload(b"\xc1", packed=True)])
    assert losses.unreported() == 0  # it waits
    assert told_while_taking(desk, losses) == 0
    assert (losses.unreported(), losses.unreported(), losses.count(), losses.count()) == (1, 0, 1, 0)


actions = st.lists(
    st.tuples(st.just("come"), st.sampled_from("abcdefgh"), st.integers(0, 2), st.integers(1, 8))
    | st.tuples(st.just("take"), st.just(""), st.just(0), st.integers(1, 6)),
    max_size=60,
)


@given(actions=actions, topics=st.integers(1, 8))
def test_what_is_told_adds_up_to_what_is_lost(actions: list[tuple[str, str, int, int]], topics: int) -> None:
    desk = Desk(max_events=5, max_bytes=60)
    losses = AnnouncedLosses(desk.subscription)
    following = dict.fromkeys("abcdefgh", 1)
    told = 0
    last = 0

    def take() -> bool:
        nonlocal told, last
        event = desk.take_one()
        if event is None:
            return False
        missed = losses.before(event)
        assert missed >= 0
        if topics == 1:  # then it is reported where it is missing
            assert int(event.payload) == last + 1 + missed
            last = int(event.payload)
        told += missed
        assert told <= desk.subscription.statistics().lost
        return True

    desk.numbers(1, 1, topic="a")
    following["a"] = 2
    for kind, topic, gap, count in actions:
        if kind == "come":
            topic = "abcdefgh"["abcdefgh".index(topic) % topics]
            desk.numbers(following[topic] + (gap if following[topic] > 1 else 0), count, topic=topic)
            following[topic] += count + (gap if following[topic] > 1 else 0)
        else:
            for _ in range(count):
                take()
    while take():
        pass
    assert told + losses.unreported() == desk.subscription.statistics().lost
