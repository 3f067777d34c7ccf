"""A flood of announcements: few are followed, each has its chance, and all are counted."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.discovery.mdns_records import MAX_FOLLOWED, FollowedAnnouncements


def full(random: Random | None = None) -> FollowedAnnouncements:
    followed = FollowedAnnouncements(random or Random(1))
    for number in range(MAX_FOLLOWED):
        assert followed.follow(f"first-{number}", 0.0) is None
    return followed


def held(followed: FollowedAnnouncements, prefix: str, count: int) -> int:
    return sum(f"{prefix}-{number}" in followed for number in range(count))


def test_as_many_as_there_is_room_for_are_followed_and_none_is_ignored() -> None:
    followed = full()
    assert held(followed, "first", MAX_FOLLOWED) == MAX_FOLLOWED
    assert followed.ignored == 0


def test_of_a_flood_in_one_moment_one_takes_the_place_of_another() -> None:
    followed = full()
    replaced = [followed.follow(f"flood-{number}", 10.0) for number in range(5000)]
    assert sum(name is not None for name in replaced) == 1
    assert held(followed, "first", MAX_FOLLOWED) == MAX_FOLLOWED - 1
    assert held(followed, "flood", 5000) == 1
    assert followed.ignored == 5000
    assert repr(followed) == f"<FollowedAnnouncements: {MAX_FOLLOWED}, 5000 ignored>"


def test_a_flood_that_lasts_replaces_one_in_a_second() -> None:
    followed = full()
    replaced = [followed.follow(f"flood-{number}", number / 100) for number in range(1000)]
    assert sum(name is not None for name in replaced) == 10


def test_an_honest_node_has_its_chance_as_soon_as_the_flood_pauses() -> None:
    followed = full()
    followed.follow("honest", 100.0)
    assert "honest" in followed


def test_who_takes_itself_back_makes_room() -> None:
    followed = full()
    assert followed.lose("first-7")
    assert not followed.lose("first-7")
    assert followed.follow("other", 0.0) is None
    assert "other" in followed
    assert followed.ignored == 0


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 200), st.floats(0.0, 0.5)), max_size=400),
    st.integers(0, 3),
)
def test_never_more_are_followed_than_there_is_room_for(steps: list[tuple[bool, int, float]], seed: int) -> None:
    followed = FollowedAnnouncements(Random(seed))
    plain: set[str] = set()
    now = 0.0
    for heard, number, seconds in steps:
        now += seconds
        name = str(number)
        if heard and name not in followed:
            replaced = followed.follow(name, now)
            if replaced is not None:
                plain.remove(replaced)
            if name in followed:
                plain.add(name)
        elif not heard:
            assert followed.lose(name) == (name in plain)
            plain.discard(name)
        assert len(plain) <= MAX_FOLLOWED
        assert all(name in followed for name in plain)
