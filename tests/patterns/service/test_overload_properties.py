"""Properties of shedding and adaptive limits under any load."""

from __future__ import annotations

import random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from iris.patterns.priority import Priority
from iris.patterns.service.concurrency_limit import AdaptiveConcurrency
from iris.patterns.service.load_shedding import LoadShedder

TARGET: Final = 0.02
LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


# -- shedding ------------------------------------------------------------------------------------------------

MOMENTS: Final = st.lists(
    st.tuples(
        st.sampled_from(["begun", "begun", "refuses", "gives up"]),
        st.floats(0, 0.3),
        st.integers(0, 200),
        st.integers(1, 64),
        st.sampled_from(Priority),
    ),
    max_size=80,
)


@given(MOMENTS)
def test_whatever_happens_the_dearest_are_never_refused_and_what_is_shed_is_counted(
    moments: list[tuple[str, float, int, int, Priority]],
) -> None:
    shedding = LoadShedder(TARGET)
    now, shed = 0.0, 0
    for what, pause, waiting, running, priority in moments:
        now += pause
        stands = shedding.stands(now, running)
        match what:
            case "begun":
                shedding.begun(now, waiting)
            case "refuses":
                refused = shedding.refuses(priority, now, waiting, running)
                shed += refused
                assert not (refused and priority is HIGH)
                assert not (refused and not stands), "only while the queue stands"
                if priority is LOW:
                    assert refused == stands, "the lowest goes first, however short its wait"
            case _:
                given_up = shedding.gives_up(pause, now, waiting, running)
                shed += given_up
                assert not (given_up and pause <= 2 * TARGET), "who has not waited long is served"
        assert shedding.shed == shed
        assert shedding.wait(now, waiting) >= 0
        assert shedding.target(running) >= TARGET
        assert shedding.busy or not shedding.stands(now, running), "it has to be asked as long as it may refuse"


@given(st.integers(1, 50), st.integers(1, 64))
def test_who_would_wait_longer_is_refused_sooner(waiting: int, running: int) -> None:
    """One more in the queue never turns a refusal into a yes."""
    answers: list[bool] = []
    for place in range(waiting):
        shedding = LoadShedder(TARGET)
        for turn in range(60):
            shedding.begun(turn * 0.01, 5)
        answers.append(shedding.refuses(NORMAL, 0.6, place, running))
    assert answers == sorted(answers)


def test_a_queue_is_given_the_time_of_a_burst_and_not_a_moment_more() -> None:
    shedding = LoadShedder(TARGET)
    shedding.begun(0.0, 3)
    assert not shedding.stands(3 * TARGET, 1)
    assert shedding.stands(3 * TARGET + 1e-6, 1)
    shedding.begun(0.1, 0)
    assert not shedding.stands(0.2, 1), "it was empty"


def test_for_a_second_after_a_refusal_the_next_queue_has_no_time_of_its_own() -> None:
    shedding = LoadShedder(TARGET)
    shedding.begun(0.0, 3)
    assert shedding.refuses(LOW, 0.1, 3, 1)
    shedding.begun(0.2, 0)
    assert shedding.busy
    assert shedding.refuses(LOW, 1.0, 1, 1)
    shedding.begun(1.5, 0)
    assert shedding.refuses(LOW, 2.0, 1, 1), "counted from the last one"
    shedding.begun(3.1, 0)
    assert not shedding.busy
    assert not shedding.refuses(LOW, 3.2, 1, 1)


# -- adaptive limits -----------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.lists(st.tuples(st.floats(0, 100), st.integers(1, 300)), max_size=400), st.randoms())
def test_no_times_at_all_drive_a_limit_out_of_its_bounds(
    most: int, ends: list[tuple[float, int]], rng: random.Random
) -> None:
    adaptive = AdaptiveConcurrency(most)
    for _ in range(5):
        for seconds, running in rng.sample(ends, len(ends)):
            limit = adaptive.ended(seconds, running)
            assert limit == adaptive.limit
            assert 1 <= limit <= most
    assert repr(adaptive) == f"<AdaptiveConcurrency: {adaptive.limit} of {most}>"


@settings(max_examples=30)
@given(st.integers(1, 100), st.floats(0.0001, 10), st.integers(0, 2**32))
def test_handlers_that_never_slow_each_other_down_may_all_run(most: int, seconds: float, seed: int) -> None:
    """Times that vary by chance alone cost no places for good."""
    rng = random.Random(seed)
    adaptive = AdaptiveConcurrency(most)
    reached = 0
    for _ in range(most * 400):
        reached = max(reached, adaptive.ended(seconds * rng.uniform(0.8, 1.2), adaptive.limit))
        if reached == most:
            break
    assert reached == most
