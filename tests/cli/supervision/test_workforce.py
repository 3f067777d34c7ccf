"""Decisions about workers that serve, die, are replaced and leave."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Sequence
from typing import final

import pytest

from iris.cli.supervision.workforce import (
    FIRST_DELAY,
    HEALTHY,
    MAX_DELAY,
    SLOW,
    Announce,
    Effect,
    Finish,
    Kill,
    Say,
    Start,
    State,
    Terminate,
    Worker,
    Workforce,
)

DRAIN, GRACE = 5.0, 10.0


@final
class Processes:
    """Processes that a workforce has started, terminated and killed."""

    def __init__(self, count: int) -> None:
        self.now = 1000.0
        self.workforce = Workforce(count, DRAIN, GRACE)
        self.lines: list[str] = []
        self.terminated: list[Worker] = []
        self.killed: list[Worker] = []
        self.running: list[Worker] = []
        self.status: int | None = None
        self.announced = 0
        self._pid = 100
        self.perform(self.workforce.begin(self.now))

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(worker=worker):
                    self._pid += 1
                    self.workforce.started(worker, self._pid)
                    self.running.append(worker)
                case Terminate(worker=worker):
                    assert worker in self.running
                    self.terminated.append(worker)
                case Kill(worker=worker):
                    assert worker in self.running
                    self.killed.append(worker)
                case Announce():
                    self.announced += 1
                case Say(text=text):
                    self.lines.append(text)
                case Finish(status=status):
                    assert self.status is None
                    self.status = status
        assert len({worker.place.listen for worker in self.running}) == len(self.running)
        assert all(worker.place.listen <= self.workforce.count for worker in self.running)
        assert all(worker.place.metrics < self.workforce.count for worker in self.running)

    def serve(self, *workers: Worker) -> None:
        for worker in workers:
            self.perform(self.workforce.serving(worker, self.now))

    def end(self, worker: Worker, status: int = 0, error: str = "") -> None:
        self.running.remove(worker)
        if error:
            self.workforce.failed(worker, error)
        self.perform(self.workforce.ended(worker, status, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.workforce.expire(self.now))

    def replace(self) -> None:
        self.perform(self.workforce.replace(self.now))

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.perform(self.workforce.stop(number, self.now))


def serving(count: int) -> Processes:
    processes = Processes(count)
    processes.serve(*processes.running)
    return processes


def test_all_are_started_at_once_and_it_is_said_once_that_they_serve() -> None:
    processes = Processes(3)
    assert [worker.place for worker in processes.running] == [(0, 0, False), (1, 1, False), (2, 2, False)]
    processes.serve(*processes.running)
    assert processes.lines == ["supervisor: starting 3 workers", "supervisor: 3 workers serve"]
    assert processes.announced == 1


def test_a_worker_that_was_healthy_is_started_again_at_once_at_its_place() -> None:
    processes = serving(2)
    first, second = processes.running
    processes.wait(HEALTHY)
    processes.end(first, -signal.SIGKILL)
    assert processes.lines[-1] == "worker 101 was killed by SIGKILL (out of memory?); starting another"
    assert [worker.place for worker in processes.running] == [(1, 1, False), (0, 0, False)]
    assert processes.running[0] is second


def test_the_back_off_doubles_up_to_its_bound_and_begins_anew_after_a_time_of_health() -> None:
    processes = serving(1)
    delays: list[float] = []
    for _ in range(9):
        (worker,) = processes.running
        processes.end(worker, 1)
        assert processes.running == []
        delays.append(processes.workforce.deadline - processes.now)
        processes.wait(delays[-1])
        processes.serve(*processes.running)
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert (delays[0], delays[-1]) == (FIRST_DELAY, MAX_DELAY)
    processes.wait(HEALTHY)
    processes.end(processes.running[0], 1)
    assert len(processes.running) == 1
    processes.end(processes.running[0], 1)
    assert processes.workforce.deadline - processes.now == FIRST_DELAY


def test_why_a_worker_does_not_start_is_said_once_while_it_is_the_same() -> None:
    processes = serving(2)
    processes.wait(HEALTHY)
    processes.end(processes.running[0], -signal.SIGSEGV)
    before = len(processes.lines)
    for error in ("no database", "no database", "no database", "disk full"):
        processes.end(processes.running[-1], 2, error)
        processes.wait(MAX_DELAY)
    backing = "then with back-off up to 30 s"
    assert processes.lines[before:] == [
        f"worker 103 did not start: no database; starting another in 0.5 s, {backing}",
        f"worker 106 did not start: disk full; starting another in 4 s, {backing}",
    ]


def test_if_none_ever_served_each_error_is_said_once_and_its_status_is_that_of_the_supervisor() -> None:
    processes = Processes(3)
    for worker in tuple(processes.running):
        assert processes.status is None
        processes.end(worker, 2, "app fails when it is imported")
    assert processes.lines[1:] == ["app fails when it is imported"]
    assert processes.status == 2


@pytest.mark.parametrize(("status", "told"), [(-11, "was killed by SIGSEGV"), (0, "ended with status 0")])
def test_a_process_that_ends_silently_before_it_serves_is_an_error_too(status: int, told: str) -> None:
    processes = Processes(1)
    processes.end(processes.running[0], status)
    assert processes.lines[1:] == [f"worker 101 {told} before it served"]
    assert processes.status == 1


def test_who_failed_before_the_first_one_served_is_started_again() -> None:
    processes = Processes(2)
    first, second = processes.running
    processes.end(first, 2, "address in use")
    assert processes.workforce.deadline == processes.now + SLOW, "the other one may serve yet"
    processes.serve(second)
    assert "a worker did not start: address in use; starting another in 0.5 s" in processes.lines[-1]
    processes.wait(FIRST_DELAY)
    processes.serve(processes.running[-1])
    assert processes.lines[-1] == "supervisor: 2 workers serve"


def test_workers_are_replaced_one_at_a_time_and_each_leaves_when_the_new_one_serves() -> None:
    processes = serving(2)
    first, second = processes.running
    processes.replace()
    third = processes.running[-1]
    assert (len(processes.running), third.place, processes.terminated) == (3, (2, 0, True), [])
    processes.serve(third)
    assert processes.terminated == [first]
    assert len(processes.running) == 3, "the next one waits until the first one has ended"
    processes.end(first)
    fourth = processes.running[-1]
    assert (len(processes.running), fourth.place) == (3, (0, 1, True))
    processes.serve(fourth)
    assert processes.terminated == [first, second]
    processes.end(second)
    assert processes.running == [third, fourth]
    assert processes.lines[2:] == [
        "supervisor: replacing 2 workers, one after the other",
        "worker 103 serves: worker 101 leaves",
        "worker 104 serves: worker 102 leaves",
        "supervisor: 2 workers replaced",
    ]


def test_the_first_port_is_taken_again_however_often_workers_are_replaced() -> None:
    processes = serving(3)
    for _ in range(5):
        processes.replace()
        for _ in range(3):
            processes.serve(processes.running[-1])
            processes.end(processes.terminated.pop())
        assert processes.lines[-1] == "supervisor: 3 workers replaced"
        assert 0 in [worker.place.listen for worker in processes.running]


def test_if_the_new_one_does_not_start_all_old_ones_stay() -> None:
    processes = serving(2)
    old = tuple(processes.running)
    processes.replace()
    processes.end(processes.running[-1], 2, "app.py:3: SyntaxError")
    assert processes.terminated == []
    assert tuple(processes.running) == old
    assert processes.lines[-1] == (
        "worker 103 did not start: app.py:3: SyntaxError; nothing more is replaced, and who serves goes on"
    )
    processes.replace()
    assert len(processes.running) == 3, "the next attempt"


def test_who_dies_while_its_successor_starts_is_followed_by_that() -> None:
    processes = serving(2)
    first, _ = processes.running
    processes.replace()
    successor = processes.running[-1]
    processes.end(first, -signal.SIGKILL)
    assert processes.lines[-1].endswith("; another one is starting")
    processes.serve(successor)
    assert len(processes.running) == 3
    assert processes.terminated == [], "the second one is being replaced"


def test_who_dies_before_its_turn_is_not_replaced_again() -> None:
    processes = serving(2)
    processes.wait(HEALTHY)
    first, second = processes.running
    processes.replace()
    successor = processes.running[-1]
    processes.end(second, 1)
    processes.serve(*processes.running)
    processes.end(first)
    assert processes.lines[-1] == "supervisor: 2 workers replaced"
    assert processes.terminated == [first]
    assert successor in processes.running


def test_a_second_sighup_replaces_those_that_were_just_replaced_too() -> None:
    processes = serving(2)
    processes.replace()
    processes.serve(processes.running[-1])
    processes.replace()
    for _ in range(6):
        while processes.terminated:
            processes.end(processes.terminated.pop())
        for worker in tuple(processes.running):
            if worker.state is State.STARTING:
                processes.serve(worker)
    assert sorted(worker.pid for worker in processes.running) == [104, 105]


def test_sighup_starts_who_waits_for_its_back_off() -> None:
    processes = serving(1)
    processes.end(processes.running[0], 1)
    processes.replace()
    assert len(processes.running) == 1
    assert processes.lines[-1] == "supervisor: 1 worker replaced"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_has_all_leave_whatever_they_are_at(number: int) -> None:
    processes = serving(2)
    processes.replace()
    processes.stop(number)
    assert len(processes.terminated) == 3
    assert f"supervisor: {signal.Signals(number).name}: 3 workers leave within 5 s" in processes.lines[-1]
    processes.replace()
    for worker in tuple(processes.running):
        assert processes.status is None
        processes.end(worker)
    assert processes.status == 0
    assert processes.workforce.deadline == math.inf


def test_the_second_signal_kills_and_ends_at_once() -> None:
    processes = serving(2)
    processes.stop()
    processes.stop()
    assert processes.killed == processes.running
    assert processes.status == 128 + signal.SIGTERM


def test_who_does_not_leave_in_time_is_killed_and_the_supervisor_says_so_by_its_status() -> None:
    processes = serving(2)
    first, second = processes.running
    processes.stop()
    processes.end(first)
    processes.wait(DRAIN + GRACE)
    assert processes.killed == [second]
    assert processes.lines[-1] == "worker 102 has not left within 15 s and is killed"
    processes.end(second, -signal.SIGKILL)
    assert processes.status == 1


def test_a_signal_ends_a_supervisor_without_workers() -> None:
    processes = serving(1)
    processes.end(processes.running[0], 1)
    processes.stop()
    assert processes.status == 0


def test_a_slow_start_is_said_once() -> None:
    processes = Processes(1)
    processes.wait(SLOW)
    processes.wait(SLOW)
    assert processes.lines[1:] == ["worker 101 does not serve after 30 s"]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_wanted_number_comes_to_serve_again(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 4)
    processes = serving(count)
    for _ in range(300):
        match rng.randrange(6):
            case 0:
                processes.replace()
            case 1:
                processes.wait(rng.expovariate(0.2))
            case 2 if processes.running:
                processes.end(rng.choice(processes.running), rng.choice([0, 1, -9]))
            case _:
                processes.serve(*rng.sample(processes.running, min(1, len(processes.running))))
        assert len(processes.running) <= count + 1
    for _ in range(4 * count + 4):
        processes.wait(MAX_DELAY)
        processes.serve(*processes.running)
        for worker in tuple(processes.running):
            if worker.state is State.LEAVING:
                processes.end(worker)
    assert len(processes.running) == count
    assert all(worker.state is State.SERVING for worker in processes.running)
    assert processes.status is None
