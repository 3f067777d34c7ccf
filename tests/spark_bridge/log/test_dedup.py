"""Repeats: each number of a publisher is stored once, whatever the order, or refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iris.spark_bridge.log.dedup import BLOCK, BLOCK_BYTES, WINDOW, PublisherWindow, Verdict, admit_runs
from tests.support.arrivals import fake_event, numbered


def test_a_late_number_below_the_newest_is_new() -> None:
    window = PublisherWindow({})
    assert window.admit(6) is Verdict.NEW
    assert window.admit(5) is Verdict.NEW
    assert window.admit(5) is Verdict.REPEAT


def test_a_number_below_the_window_is_stale_whether_it_was_stored_or_not() -> None:
    window = PublisherWindow({})
    window.admit(1)
    window.admit(WINDOW + BLOCK)
    assert window.admit(1) is Verdict.STALE
    assert window.admit(2) is Verdict.STALE
    assert window.admit(2 * BLOCK) is Verdict.NEW


def test_the_oldest_block_of_the_window_is_known_and_the_last_number_below_it_is_stale() -> None:
    window = PublisherWindow({})
    window.admit(WINDOW)
    assert window.admit(BLOCK - 1) is Verdict.STALE
    assert not window.admit_all(BLOCK - 1, 1)
    assert window.admit(BLOCK) is Verdict.NEW
    assert window.admit_all(BLOCK + 1, 2)


def test_a_window_is_what_its_blocks_say() -> None:
    window = PublisherWindow({})
    for number in (3, BLOCK + 1):
        window.admit(number)
    again = PublisherWindow({number: bytes(bits) for number, bits in window.blocks.items()})
    assert [again.admit(n) for n in (3, 4, BLOCK + 1)] == [Verdict.REPEAT, Verdict.NEW, Verdict.REPEAT]
    assert again.changed == {0}


def test_blocks_outside_of_the_window_are_given_up() -> None:
    window = PublisherWindow({0: bytes(BLOCK_BYTES)})
    window.admit(WINDOW)
    assert window.expired == {0}
    assert set(window.blocks) == {WINDOW // BLOCK}


@given(st.lists(st.integers(1, 3 * BLOCK), max_size=200))
def test_within_the_window_each_number_is_new_exactly_once(numbers: list[int]) -> None:
    window = PublisherWindow({})
    seen: set[int] = set()
    for number in numbers:
        assert (window.admit(number) is Verdict.NEW) == (number not in seen)
        seen.add(number)


def test_events_without_number_are_never_repeats() -> None:
    windows = {"ab" * 16: PublisherWindow({})}
    event = fake_event(b"x")
    new, repeats, stale = admit_runs([event, event, *numbered(1, 2), *numbered(2, 3)], windows.__getitem__)
    assert [payload for run in new for payload in run.payloads] == [b"x", b"x", b"1", b"2", b"3"]
    assert (repeats, stale) == (1, [])


def test_publishers_are_told_apart() -> None:
    windows = {"aa" * 16: PublisherWindow({}), "bb" * 16: PublisherWindow({})}
    events = [e for n in (1, 2) for p in windows for e in numbered(n, n, publisher=p)]
    new, repeats, _ = admit_runs([*events, *events], windows.__getitem__)
    assert (len(new), repeats) == (4, 4)


def test_stale_events_are_handed_back() -> None:
    window = PublisherWindow({})
    window.admit(2 * WINDOW)
    new, repeats, stale = admit_runs(numbered(1, 2), lambda _: window)
    assert ([*new], repeats, [run.confirm for run in stale]) == ([], 0, [1, 2])
