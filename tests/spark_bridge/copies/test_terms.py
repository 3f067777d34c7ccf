"""Events of another log that are those of this one."""

from __future__ import annotations

from iris.spark_bridge.copies.terms import LogState


def test_of_a_log_in_a_term_of_this_history_what_lies_before_the_next_term_is_the_same() -> None:
    state = LogState(term=5, history=[(2, {0: 100, 1: 90}), (5, {0: 150, 1: 95})])
    assert state.forks(1) == {0: 100, 1: 90}
    assert state.forks(2) == {0: 150, 1: 95}
    assert state.forks(5) == {}


def test_of_a_log_in_a_term_that_is_not_in_this_history_nothing_is_the_same() -> None:
    # Promoted by force at offset 100, it wrote other events from there than this one has up to 150.
    state = LogState(term=5, history=[(2, {0: 50, 1: 40}), (5, {0: 150, 1: 95})])
    assert state.forks(4) == {0: 0, 1: 0}
    assert state.forks(3) == {0: 0, 1: 0}
