"""Shedding: a queue that stands is kept short, a burst is served, and the dearest requests go last."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from iris.kernel.errors import ConfigError
from iris.patterns.priority import Priority, check_priority
from iris.patterns.service.load_shedding import LoadShedder

LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


class Server:
    """A queue before so many handlers of equal speed, run by events; notes how long each request took."""

    def __init__(self, *, handlers: int, seconds: float, target: float = 0.02, seed: int = 1) -> None:
        self.shedding = LoadShedder(target)
        self.handlers = handlers
        self.seconds = seconds
        self.random = Random(seed)
        self.queue: deque[float] = deque()
        self.ends: list[float] = []
        self.took: list[tuple[float, float]] = []
        self.refused: list[float] = []

    def run_until(self, now: float) -> None:
        while self.ends and min(self.ends) <= now:
            end = min(self.ends)
            self.ends.remove(end)
            self._begin(end)

    def _begin(self, now: float) -> None:
        while self.queue:
            arrived = self.queue.popleft()
            if self.shedding.gives_up(now - arrived, now, len(self.queue), len(self.ends)):
                self.refused.append(arrived)
                continue
            self.shedding.begun(now, len(self.queue))
            self._serve(arrived, now)
            return

    def _serve(self, arrived: float, now: float) -> None:
        end = now + self.seconds * self.random.uniform(0.5, 1.5)
        self.ends.append(end)
        self.took.append((arrived, end - arrived))

    def arrive(self, now: float, priority: Priority = NORMAL) -> None:
        self.run_until(now)
        if len(self.ends) < self.handlers:
            self._serve(now, now)
        elif self.shedding.refuses(priority, now, len(self.queue), len(self.ends)):
            self.refused.append(now)
        else:
            self.queue.append(now)

    def load(self, rate: float, begin: float, end: float) -> None:
        """Requests at random moments, so many per second."""
        now = begin
        while now < end:
            self.arrive(now)
            now += self.random.expovariate(rate)
        self.run_until(end)

    def waits(self, begin: float, end: float) -> list[float]:
        return sorted(seconds for arrived, seconds in self.took if begin <= arrived < end)


def p99(values: list[float]) -> float:
    return values[int(len(values) * 0.99)]


@pytest.mark.parametrize(("handlers", "seconds"), [(1, 0.001), (8, 0.01), (64, 0.05), (4, 1.0)])
@pytest.mark.parametrize("factor", [2.0, 10.0])
def test_under_overload_as_much_is_served_as_possible_and_in_time(handlers: int, seconds: float, factor: float) -> None:
    server = Server(handlers=handlers, seconds=seconds)
    capacity = handlers / seconds
    length = min(10_000 / capacity / factor * 4, 400 * seconds + 4)
    server.load(0.5 * capacity, 0, length)
    unloaded = p99(server.waits(0, length))
    server.load(factor * capacity, length, 2 * length)
    served = len(server.waits(length, 2 * length))
    assert served >= 0.9 * capacity * length
    assert p99(server.waits(1.5 * length, 2 * length)) <= max(3 * unloaded, unloaded + 0.06)
    server.load(0.5 * capacity, 2 * length, 3 * length)
    late = server.waits(2.5 * length, 3 * length)
    assert p99(late) <= 1.3 * unloaded, "it recovers"


def test_a_burst_that_nothing_follows_is_served_to_its_end() -> None:
    server = Server(handlers=1, seconds=0.01)
    for _ in range(200):
        server.arrive(0.0)
    server.run_until(10.0)
    assert len(server.took) == 200
    assert not server.refused


def test_without_a_queue_nothing_is_refused() -> None:
    server = Server(handlers=8, seconds=0.01)
    server.load(0.7 * 800, 0, 20)
    assert not server.refused
    assert server.shedding.wait(20, 0) == 0.0


def standing(gap: float = 0.001) -> tuple[LoadShedder, float]:
    """A queue that has stood for long, in which a request begins every ``gap`` seconds."""
    shedding = LoadShedder(0.02)
    now = 0.0
    for _ in range(1000):
        now += gap
        shedding.begun(now, 10)
    return shedding, now


def test_the_lowest_priority_is_refused_first_and_the_highest_never() -> None:
    shedding, now = standing()
    assert [shedding.refuses(priority, now, 5, 4) for priority in (LOW, NORMAL, HIGH)] == [True, False, False]
    assert [shedding.refuses(priority, now, 50, 4) for priority in (LOW, NORMAL, HIGH)] == [True, True, False]
    assert shedding.shed == 3
    assert shedding.wait(now, 50) == pytest.approx(0.05)


def test_slow_handlers_let_others_wait_as_long_as_they_take() -> None:
    shedding, now = standing(gap=0.25)
    assert shedding.target(running=4) == pytest.approx(1.0)
    assert not shedding.refuses(NORMAL, now, 3, 4)
    assert shedding.refuses(NORMAL, now, 5, 4)


def test_a_queue_that_was_empty_does_not_stand() -> None:
    shedding, now = standing()
    assert shedding.stands(now, 4)
    shedding.begun(now, 0)
    assert not shedding.busy
    assert not shedding.stands(now, 4)
    shedding.begun(now + 0.001, 10)
    assert not shedding.refuses(LOW, now + 0.05, 500, 4)


def test_handlers_that_all_hang_make_the_wait_grow() -> None:
    shedding, now = standing()
    assert not shedding.refuses(NORMAL, now + 0.01, 5, 4)
    assert shedding.refuses(NORMAL, now + 0.5, 5, 4)


def test_who_has_waited_too_long_is_given_up_only_while_others_are_refused() -> None:
    shedding, now = standing()
    assert not shedding.gives_up(1.0, now, 9, 4)
    assert shedding.refuses(NORMAL, now, 500, 4)
    assert shedding.gives_up(0.05, now, 9, 4)
    assert not shedding.gives_up(0.03, now, 9, 4)
    assert not shedding.gives_up(1.0, now + 0.1, 9, 4)
    assert shedding.refuses(NORMAL, now, 500, 4)
    assert shedding.gives_up(0.05, now, 0, 4)
    assert shedding.busy, "for a while"
    shedding.begun(now + 2, 0)
    assert not shedding.busy


def test_priorities_have_names() -> None:
    assert [check_priority(name) for name in ("low", "normal", "high")] == [LOW, NORMAL, HIGH]
    for name in ("LOW", "", "urgent"):
        with pytest.raises(ConfigError, match="use 'low', 'normal' or 'high'"):
            check_priority(name)
