"""The worker of each job, its lease, and its outcome: no clock, no network, no disk."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import chain

import pytest

from iris.patterns.bridge_protocol import Place
from iris.spark_bridge.queues.machine import (
    JobState,
    JobVerdict,
    QueuedJob,
    QueueMachine,
    QueueWorker,
)
from iris.spark_bridge.queues.rows import JobRow


class Desk:
    """A machine, with what its shell does."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.now = 100.0
        self._next = 0

    def put(self, key: str | None = None, *, delay: float = 0.0, expires: float = math.inf, priority: int = 0) -> Place:
        place = Place(0, self._next)
        self._next += 1
        headers = {"job-priority": str(priority)}
        row = JobRow(place.offset, "jobs", key, b"x", "", "shop", headers, 0)
        job = QueuedJob(place, row, due=self.now + delay, expires=self.now + expires, attempts=0, error="")
        self.machine.add(job, self.now)
        return place

    def worker(self, limit: int = 16, *, lease: float = 30.0, attempts: int = 5, backoff: float = 1.0) -> QueueWorker:
        worker = QueueWorker(limit=limit, lease=lease, attempts=attempts, dead=lambda: "jobs.dead", backoff=backoff)
        self.machine.open(worker, self.now)
        return worker

    def give(self, *workers: QueueWorker) -> list[list[int]]:
        """Hand out; return the offsets of what each worker got, which it begins."""
        self.machine.expire(self.now)
        self.machine.assign(self.now)
        given: list[list[int]] = []
        for worker in workers:
            given.append([job.place.offset for job in worker.assigned])
            for job in worker.assigned:
                self.machine.begin(worker, job.place, self.now)
            worker.assigned.clear()
        return given

    def write(self) -> list[tuple[int, JobVerdict | None]]:
        """Write the outcomes; return them."""
        outcomes, self.machine.outcomes = self.machine.outcomes, []
        found = [(job.place.offset, job.verdict) for job in outcomes]
        self.machine.settle(outcomes, self.now)
        return found

    def fail(self, worker: QueueWorker, place: Place, attempt: int, *, permanent: bool = False) -> None:
        assert self.machine.fail(worker, place, "broken", self.now, attempt=attempt, permanent=permanent)


def test_workers_get_jobs_in_turns_and_no_more_than_their_limits() -> None:
    desk = Desk()
    one, other = desk.worker(2), desk.worker(3)
    for _ in range(9):
        desk.put()
    assert desk.give(one, other) == [[0, 2], [1, 3, 4]]
    assert desk.give(one, other) == [[], []]
    assert desk.machine.finish(other, Place(0, 1), desk.now)
    assert desk.give(one, other) == [[], []]  # its outcome is not on the disk
    assert desk.write() == [(1, JobVerdict.DONE)]
    assert desk.give(one, other) == [[], [5]]


def test_jobs_of_one_key_come_one_after_the_other_and_only_once_the_first_is_on_the_disk() -> None:
    desk = Desk()
    one, other = desk.worker(), desk.worker()
    first, _, third = desk.put("a"), desk.put("a"), desk.put("b")
    assert sorted(chain(*desk.give(one, other))) == [first.offset, third.offset]
    desk.machine.finish(one, first, desk.now)
    assert desk.give(one, other) == [[], []]
    desk.write()
    assert list(chain(*desk.give(one, other))) == [1]


def test_a_failed_job_waits_twice_as_long_each_time_and_those_of_its_key_wait_with_it() -> None:
    desk = Desk()
    worker = desk.worker(attempts=3)
    place = desk.put("a")
    desk.put("a")
    free = desk.put()
    assert desk.give(worker) == [[0, 2]]
    desk.machine.finish(worker, free, desk.now)
    desk.fail(worker, place, 1)
    assert desk.write() == [(2, JobVerdict.DONE), (0, JobVerdict.RETRY)]
    desk.now += 0.99
    assert desk.give(worker) == [[]]
    desk.now += 0.02
    assert desk.give(worker) == [[0]]
    desk.fail(worker, place, 2)
    desk.write()
    desk.now += 1.99
    assert desk.give(worker) == [[]]
    desk.now += 0.02
    assert desk.give(worker) == [[0]]
    desk.fail(worker, place, 3)
    assert desk.write() == [(0, JobVerdict.DEAD)]
    assert desk.give(worker) == [[1]]


def test_a_permanent_failure_is_dead_at_once() -> None:
    desk = Desk()
    worker = desk.worker()
    place = desk.put()
    desk.give(worker)
    desk.fail(worker, place, 1, permanent=True)
    assert desk.write() == [(0, JobVerdict.DEAD)]


def test_a_lease_ends_at_its_deadline_unless_it_is_extended() -> None:
    desk = Desk()
    worker = desk.worker(lease=10.0, backoff=0.0)
    lost, kept = desk.put(), desk.put()
    assert desk.give(worker) == [[0, 1]]
    desk.now += 6
    desk.machine.extend(worker, kept, desk.now)
    desk.now += 5
    assert desk.machine.deadline <= desk.now
    desk.machine.expire(desk.now)
    assert desk.write() == [(lost.offset, JobVerdict.RETRY)]
    assert worker.settled == [lost]
    assert desk.machine.lapsed == 1
    assert desk.give(worker) == [[0]]


def test_what_a_worker_has_not_begun_goes_to_others_when_it_stands_still_and_no_attempt_is_counted() -> None:
    desk = Desk()
    stuck = desk.worker(3, lease=10.0)
    for _ in range(3):
        desk.put()
    desk.machine.assign(desk.now)
    other = desk.worker(8, lease=10.0)
    desk.now += 10.5
    assert desk.give(other) == [[0, 1, 2]]
    assert stuck.is_stalled
    assert {job.attempts for job in desk.machine.jobs.values()} == {0}


def test_a_worker_that_had_nothing_to_do_for_longer_than_a_lease_does_not_stand_still() -> None:
    desk = Desk()
    worker = desk.worker(lease=10.0)
    desk.now += 60
    desk.put()
    desk.machine.assign(desk.now)
    assert desk.machine.deadline == desk.now + 10
    desk.machine.expire(desk.now)
    assert (worker.is_stalled, list(worker.hand)) == (False, [Place(0, 0)])


@pytest.mark.parametrize("begun", [True, False])
def test_a_lost_worker_costs_an_attempt_of_what_it_had_begun_and_what_waited_in_it_is_suspect(begun: bool) -> None:
    desk = Desk()
    worker = desk.worker(backoff=0.0, attempts=1)
    for _ in range(3):
        desk.put()
    desk.machine.assign(desk.now)
    if begun:
        desk.machine.begin(worker, Place(0, 1), desk.now)
    desk.machine.close(worker, desk.now, lost=True)
    assert desk.write() == ([(1, JobVerdict.DEAD)] if begun else [])
    other = desk.worker()
    left = [0, 2] if begun else [0, 1, 2]
    assert sorted(desk.give(other)[0]) == left
    assert sorted(place.offset for place in other.confirmed) == left, "each is begun when that is known"
    desk.machine.close(other, desk.now, lost=True)
    assert sorted(desk.write()) == [(offset, JobVerdict.RETRY) for offset in left]


def test_what_a_worker_that_stands_still_had_in_hand_is_suspect() -> None:
    desk = Desk()
    worker = desk.worker(lease=10.0)
    desk.put()
    desk.machine.assign(desk.now)
    desk.now += 10
    desk.machine.expire(desk.now)
    other = desk.worker()
    assert desk.give(other) == [[0]]
    assert (worker.confirmed, other.confirmed) == ([], [Place(0, 0)])


def test_a_worker_that_leaves_in_order_costs_none() -> None:
    desk = Desk()
    worker = desk.worker()
    desk.put()
    desk.give(worker)
    desk.machine.close(worker, desk.now, lost=False)
    assert desk.write() == []
    assert desk.give(desk.worker()) == [[0]]


def test_nothing_that_has_expired_is_handed_out() -> None:
    desk = Desk()
    desk.put(expires=5.0)
    desk.put(delay=4.0, expires=5.0)
    desk.put()
    desk.now += 5.0
    worker = desk.worker()
    assert desk.give(worker) == [[2]]
    assert desk.write() == [(0, JobVerdict.EXPIRED), (1, JobVerdict.EXPIRED)]


def test_a_delayed_job_takes_its_place_when_its_delay_is_over() -> None:
    desk = Desk()
    desk.put("a", delay=5.0)
    later = desk.put("a")
    worker = desk.worker()
    assert desk.give(worker) == [[1]]
    assert desk.machine.deadline == desk.now + 5.0
    desk.now += 5.0
    assert desk.give(worker) == [[]]
    desk.machine.finish(worker, later, desk.now)
    desk.write()
    assert desk.give(worker) == [[0]]


def test_a_higher_priority_goes_first_but_not_within_a_key() -> None:
    desk = Desk()
    desk.put()
    desk.put(priority=5)
    desk.put("a", priority=1)
    desk.put("a", priority=9)
    assert desk.give(desk.worker()) == [[1, 2, 0]]


def test_who_did_a_job_in_time_or_not_ends_it_for_all() -> None:
    desk = Desk()
    slow, quick = desk.worker(1, lease=10.0, backoff=0.0), desk.worker(1, lease=10.0)
    place = desk.put()
    assert desk.give(slow, quick) == [[0], []]
    desk.now += 11
    desk.machine.expire(desk.now)
    desk.write()
    slow.is_stalled = True
    assert desk.give(slow, quick) == [[], [0]]
    assert desk.machine.finish(slow, place, desk.now)
    assert desk.write() == [(0, JobVerdict.DONE)]
    assert not desk.machine.finish(quick, place, desk.now)


def test_after_a_restart_workers_keep_what_they_say_they_have() -> None:
    desk = Desk()
    desk.machine.rest(desk.now + 1.0)
    desk.put("a")
    desk.put("a")
    other, worker = desk.worker(), desk.worker()
    desk.machine.resume(worker, [Place(0, 0), Place(0, 2)], desk.now)
    assert desk.give(other) == [[]]
    desk.put("b")
    desk.now += 1.0
    assert desk.machine.deadline <= desk.now
    assert desk.give(other) == [[]]
    assert {job.place.offset for job in worker.begun.values()} == {0, 2}


def test_a_report_of_a_failure_counts_after_a_restart_and_once() -> None:
    desk = Desk()
    worker = desk.worker()
    place = desk.put()
    desk.fail(worker, place, 1)
    desk.write()
    assert not desk.machine.fail(worker, place, "again", desk.now, attempt=1, permanent=False)
    assert desk.machine.jobs[place].attempts == 1


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_job_ends_once_in_the_order_of_its_key_and_within_its_attempts(seed: int) -> None:
    r = random.Random(seed)
    desk = Desk()
    workers = [desk.worker(r.randint(1, 6), lease=8.0, attempts=4, backoff=0.5) for _ in range(3)]
    ended: list[tuple[int, JobVerdict | None]] = []
    keys = {desk.put(key := r.choice([None, "a", "b", "c"])).offset: key for _ in range(150)}
    for _ in range(4000):
        desk.now += r.random()
        desk.give(*workers)
        for worker in workers:
            assert len(worker.hand) <= worker.limit
        running = [keys[job.place.offset] for worker in workers for job in worker.hand.values()]
        assert all(count == 1 for key, count in Counter(running).items() if key is not None)
        worker = r.choice(workers)
        if worker.begun:
            place = r.choice(list(worker.begun))
            match r.randrange(6):
                case 0:
                    desk.fail(worker, place, desk.machine.jobs[place].attempts + 1)
                case 1:
                    desk.machine.release(worker, place, desk.now)
                case 2:
                    desk.machine.close(worker, desk.now, lost=r.random() < 0.5)
                    workers[workers.index(worker)] = desk.worker(r.randint(1, 6), lease=8.0, attempts=4, backoff=0.5)
                case _:
                    desk.machine.finish(worker, place, desk.now)
        ended += [(offset, verdict) for offset, verdict in desk.write() if verdict is not JobVerdict.RETRY]
        if not desk.machine.jobs:
            break
    assert Counter(offset for offset, _ in ended) == dict.fromkeys(keys, 1)
    for key in "abc":
        order = [offset for offset, _ in ended if keys[offset] == key]
        assert order == sorted(order)
    assert desk.machine.size == 0
    assert not any(worker.hand for worker in workers)


def test_a_queue_that_is_purged_holds_nothing() -> None:
    desk = Desk()
    worker = desk.worker(1)
    for _ in range(3):
        desk.put("a")
    desk.give(worker)
    assert desk.machine.clear() == 3
    assert not desk.machine.finish(worker, Place(0, 0), desk.now)
    assert desk.give(worker) == [[]]
    assert desk.put("a").offset == 3
    assert desk.give(worker) == [[3]]
    assert desk.machine.jobs[Place(0, 3)].state is JobState.BEGUN
