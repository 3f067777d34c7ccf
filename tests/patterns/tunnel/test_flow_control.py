"""Flow control: tunnel data in flight is enough for any link, with little that only queues."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from iris.patterns.tunnel.flow_control import LEAST, MOST, QUICK, SHARE, STEP, InflightLimit

CHUNK = 32 * 1024


@dataclass
class Pipe:
    """A link of some rate and latency in front of which data queues, and a sender that always has some."""

    rate: float
    """Rate of the link, in bytes per second."""
    latency: float
    """Seconds there and back with an empty queue."""
    jitter: float = 0.0
    chunk: int = CHUNK
    flight: InflightLimit = field(default_factory=InflightLimit)
    now: float = 0.0
    free_at: float = 0.0
    delivered: int = 0
    coming: list[tuple[float, int, int]] = field(default_factory=list)
    queues: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        chance = random.Random(1)
        end = self.now + seconds
        while self.now < end:
            while self.flight.has_room:
                self.free_at = max(self.free_at, self.now) + self.chunk / self.rate
                if self.flight.add(self.chunk):
                    back = self.free_at + self.latency + chance.random() * self.jitter
                    heapq.heappush(self.coming, (back, self.flight.mark(self.now), self.flight.in_flight))
            self.queues.append(max(0.0, self.free_at - self.now) * self.rate)
            self.now, number, _ = heapq.heappop(self.coming)
            before = self.flight.in_flight
            self.flight.arrived(number, self.now)
            self.delivered += before - self.flight.in_flight


@pytest.mark.parametrize("latency", [0.0002, 0.002, 0.05])
@pytest.mark.parametrize("rate", [1e6, 20e6, 300e6])
def test_a_link_is_kept_busy_and_its_queue_short(rate: float, latency: float) -> None:
    pipe = Pipe(rate, latency)
    pipe.run(5)
    pipe.delivered = 0
    pipe.queues.clear()
    pipe.run(5)
    assert pipe.delivered / 5 > 0.85 * rate
    assert max(pipe.queues) < max(LEAST * STEP + CHUNK, 5 * STEP, 1.5 * QUICK * rate)


@pytest.mark.parametrize("latency", [0.0002, 0.002])
@pytest.mark.parametrize("rate", [20e6, 300e6])
def test_beside_requests_the_queue_is_shorter_and_the_link_still_busy(rate: float, latency: float) -> None:
    pipe = Pipe(rate, latency, chunk=STEP // SHARE)
    pipe.flight.share(True)
    pipe.run(2)
    pipe.delivered = 0
    pipe.queues.clear()
    pipe.run(2)
    assert pipe.delivered / 2 > 0.85 * rate
    assert max(pipe.queues) < 6 * STEP // SHARE


def test_whoever_comes_and_goes_data_never_waits_for_a_mark_that_was_not_sent() -> None:
    chance = random.Random(5)
    flight = InflightLimit()
    marks: deque[int] = deque()
    now = 0.0
    for _ in range(20_000):
        now += chance.random() * 0.001
        flight.share(chance.random() < 0.5)
        if flight.has_room:
            if flight.add(chance.randrange(STEP // SHARE)):
                marks.append(flight.mark(now))
        else:
            assert marks
        if marks and chance.random() < 0.3:
            flight.arrived(marks.popleft(), now)


def test_to_far_nodes_requests_make_no_difference() -> None:
    flight = InflightLimit(slack=8)
    flight.share(True)
    assert fill(flight) == 4


def test_jitter_does_not_starve_a_link() -> None:
    pipe = Pipe(100e6, 0.001, jitter=0.001)
    pipe.run(5)
    pipe.delivered = 0
    pipe.run(5)
    assert pipe.delivered / 5 > 0.7 * 100e6


def test_a_link_that_becomes_slower_is_not_flooded() -> None:
    pipe = Pipe(300e6, 0.05)
    pipe.run(5)
    assert pipe.flight.limit > 10e6
    pipe.rate = 20e6
    pipe.run(10)
    assert pipe.flight.limit < 3e6


def test_a_longer_route_is_learnt_in_time() -> None:
    pipe = Pipe(100e6, 0.001)
    pipe.run(5)
    pipe.latency = 0.05
    pipe.run(40)
    pipe.delivered = 0
    pipe.run(5)
    assert pipe.delivered / 5 > 0.7 * 100e6


def test_the_limit_stays_within_its_bounds_whatever_comes_back() -> None:
    chance = random.Random(3)
    flight = InflightLimit()
    now, newest = 0.0, 0
    for _ in range(20_000):
        now += chance.random() * chance.choice([0.0001, 0.01, 1])
        if flight.has_room and flight.add(chance.randrange(70_000)):
            newest = flight.mark(now)
        if chance.random() < 0.3:
            flight.arrived(chance.randrange(newest + 3), now)
        if chance.random() < 0.001:
            flight.reset()
        flight.expire(now, 5.0)
        assert LEAST * STEP // SHARE <= flight.limit <= MOST * STEP
        assert 0 <= flight.in_flight < flight.limit + 70_000


def fill(flight: InflightLimit) -> int:
    """Send until there is no room; return how many marks have left."""
    marks = 0
    while flight.has_room:
        if flight.add(CHUNK):
            marks += 1
            flight.mark(0.0)
    return marks


def test_a_mark_that_is_lost_is_covered_by_the_next() -> None:
    flight = InflightLimit()
    fill(flight)
    assert flight.in_flight == 4 * STEP
    flight.arrived(3, 0.001)
    assert flight.in_flight == STEP


def test_a_mark_that_never_left_does_not_make_the_others_be_forgotten() -> None:
    flight = InflightLimit()
    fill(flight)
    flight.arrived(1000, 0.001)
    assert flight.in_flight == 4 * STEP
    flight.arrived(4, 0.001)
    assert flight.in_flight == 0


@pytest.mark.parametrize("how", ["reset", "expire"])
def test_marks_that_are_all_lost_hold_nobody_up(how: str) -> None:
    flight = InflightLimit()
    fill(flight)
    flight.expire(3.9, 4.0)
    assert not flight.has_room
    if how == "reset":
        flight.reset()
    else:
        flight.expire(4.1, 4.0)
    assert flight.has_room
    assert flight.in_flight == 0


class Waiting:
    def __init__(self, flight: InflightLimit, told: list[Waiting], size: int) -> None:
        self.flight = flight
        self.told = told
        self.size = size

    def offer(self) -> None:
        self.told.append(self)
        self.flight.add(self.size)


def test_those_who_wait_are_told_in_turn_as_far_as_the_room_goes() -> None:
    flight = InflightLimit()
    told: list[Waiting] = []
    fill(flight)
    waiting = [Waiting(flight, told, STEP // 2) for _ in range(10)]
    for one in waiting:
        flight.block(one)
    flight.forget(waiting[1])
    flight.arrived(1, 0.001)
    assert told == [waiting[0], waiting[2]]
    flight.unblock_one()
    assert len(told) == 2, "there is no room for another"
    flight.reset()
    assert told[:6] == [waiting[0], *waiting[2:7]]
