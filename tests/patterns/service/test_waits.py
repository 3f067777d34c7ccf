"""Queue delay of a member, as reported to its callers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.patterns.service.load_shedding import QueueDelay


def waited(*waits: float, every: float = 0.01) -> tuple[QueueDelay, float]:
    """Have requests begin at a rate, each after a wait; return the time of the last one, too."""
    made, now = QueueDelay(), 100.0
    for wait in waits:
        now += every
        made.begun(now - wait, now)
    return made, now


def test_where_nothing_ever_waited_there_is_no_delay() -> None:
    assert QueueDelay().delay(None, 0.0) == QueueDelay().delay(None, 1e9) == 0.0
    assert QueueDelay().lately == 0.0


def test_it_follows_what_requests_waited_lately() -> None:
    made, now = waited(*[0.5] * 100)
    assert made.delay(None, now) == pytest.approx(0.5, rel=0.2)
    assert made.lately == made.delay(None, now)
    made, now = waited(*[0.5] * 100, *[0.1] * 100)
    assert made.delay(None, now) == pytest.approx(0.1, rel=0.2)


def test_a_queue_that_stands_still_shows_by_what_waits_in_it() -> None:
    made, now = waited(*[0.001] * 100)
    assert made.delay(now, now + 5.0) == 5.0
    assert made.delay(now, now) == pytest.approx(0.001, rel=0.2), "it has just come"


def test_what_waited_once_is_forgotten_while_nothing_begins() -> None:
    made, now = waited(*[5.0] * 100)
    delays = [made.delay(None, now + later) for later in (0.0, 0.25, 0.5, 1.0, 3.0, 1e6)]
    assert delays == [pytest.approx(delays[0] * part) for part in (1, 0.5, 0.25, 1 / 16, 1 / 4096, 0)]
    made.begun(now + 3.0, now + 3.0)
    assert made.delay(None, now + 3.0) < 0.01, "nor does it come back with the next request"


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=30), st.none() | st.floats(0, 10))
def test_it_lies_between_nothing_and_the_longest_wait(steps: list[tuple[float, float]], waiting: float | None) -> None:
    made, now = QueueDelay(), 0.0
    for pause, wait in steps:
        now += pause
        made.begun(now - wait, now)
    longest = max([wait for _, wait in steps] + ([waiting] if waiting is not None else []), default=0.0)
    assert 0.0 <= made.delay(None if waiting is None else now - waiting, now) <= longest + 1e-9
