"""The measurements of requests, small: they measure what they say, and the targets hold."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock

from benchmarks.requests import broadcast, keys, overload, overload_processes
from benchmarks.requests.overload import Phase, recovery
from benchmarks.requests.task_time import TaskTime, marked


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_only_marked_tasks_and_those_they_begin_are_timed(autojump_clock: MockClock) -> None:
    async def child() -> None:
        busy(0.02)
        await trio.sleep(0.1)
        busy(0.01)

    async def stranger() -> None:
        await trio.sleep(0.05)
        busy(0.2)

    instrument = TaskTime()
    trio.lowlevel.add_instrument(instrument)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stranger)
        with marked():
            nursery.start_soon(child)
    trio.lowlevel.remove_instrument(instrument)
    assert instrument.seconds == pytest.approx(0.03, abs=0.015)


def test_recovery_is_the_time_until_the_last_slow_reply() -> None:
    phase = Phase(0.5, seconds=[0.5, 0.1, 0.4, 0.1, 0.1], ended=[10.0, 10.5, 11.0, 12.0, 13.0])
    assert recovery(phase, 0.1) == 1.0
    assert recovery(phase, 1.0) == 0.0


def test_overload_is_served_or_refused_and_what_comes_after_it_is_served() -> None:
    """How much and how fast is the benchmark's question, which needs a machine of its own; not here."""
    unloaded, *phases = overload.run((0.5, 2.0, 10.0), 0.6, calm=1.2)
    assert unloaded.outcomes == {"reply": unloaded.asked}
    for overloaded, after in zip(phases[::2], phases[1::2], strict=True):
        assert overloaded.outcomes.keys() <= {"reply", "Overloaded"}
        assert overloaded.outcomes["reply"] > 0
        # A tenth of what is asked may be repeated, ten a second, and a hundred at once.
        assert overloaded.attempts <= 1.1 * overloaded.asked + 10 * overloaded.lasted + 101
        assert overloaded.grown <= overload.FLAT
        assert after.outcomes["reply"] >= 0.9 * after.asked


@pytest.mark.long
def test_processes_that_are_asked_twice_what_they_can_serve_answer_or_refuse() -> None:
    """How fast they are is the benchmark's question; here it is that every request has one of the two ends."""
    double, after = overload_processes.run((2.0,), 1.0, calm=1.0)
    assert double.outcomes.keys() <= {"reply", "Overloaded"}
    assert double.outcomes["reply"] > 0
    assert double.asked <= double.attempts <= 4 * double.asked
    assert after.outcomes["reply"] > 0


def test_a_broadcast_to_a_hundred_costs_its_sender_no_more_than_three_times_that_to_ten() -> None:
    """In messages, which are the same in each run; the benchmark itself takes the time."""
    ten, hundred = broadcast.run((10, 100), 20)
    assert ten.told_once
    assert hundred.told_once
    assert 10 <= ten.messages <= hundred.messages <= 30
    assert ten.all_answered
    assert hundred.all_answered
    assert 10 <= ten.survey_messages <= hundred.survey_messages <= 30


@pytest.mark.parametrize("rerun", [True, pytest.param(False, marks=pytest.mark.long)])
def test_requests_with_a_key_have_their_effect_once_while_members_are_killed(rerun: bool) -> None:
    found = keys.run(300, rerun=rerun, pause=0.05, members=2, kill_bridge=False)
    assert found.kept, str(found)
    assert found.members_killed
