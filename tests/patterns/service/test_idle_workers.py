"""Workers that wait for requests, and what reaches them while they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import final

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import iris
from iris.cluster.mesh.peer import Peer
from iris.cluster.mesh.reader import InboxReader
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.transport.memory import MemoryNetwork
from iris.kernel.wire import kinds
from iris.patterns.bridge_protocol import Bridges
from iris.patterns.observer import Observer
from iris.patterns.receive_limits import Arriving
from iris.patterns.service.reply_cache import Outcome
from iris.patterns.service.service import Limits, Service
from iris.patterns.service.worker_pool import PendingRequest, Role, WorkerPool, pending
from tests.support.realms import TestRealm

TRIALS = 32
"""trio takes the tasks of one turn in random order: so often at least once in each of both."""


class Host:
    """The node of a worker pool: notes which requests are answered."""

    def __init__(self) -> None:
        self.config = Config()
        self.reading = InboxReader(MemoryNetwork().transport("store"), self)
        self.arriving = Arriving(Counter(), NodeId("0" * 32), self.config)
        self.observer: Observer | None = None
        self.bridges: Bridges | None = None
        self.answered: list[int] = []

    def receive_frame(self, frame: bytes | memoryview) -> None:
        raise AssertionError(frame)

    def answer(self, job: PendingRequest, reply: Outcome, size: int) -> None:
        self.answered.append(job.identifier)

    def forget(self, job: PendingRequest) -> None:
        pass

    def weight_changed(self, cluster: str, weight: int) -> None:
        pass

    def answer_part(self, job: PendingRequest, part: kinds.Part, size: int) -> None:
        raise AssertionError(part)

    def report_credit(self, node: NodeId, report: kinds.BroadcastCredit) -> bool:
        return True


@asynccontextmanager
async def pool_of(service: Service, concurrency: int) -> AsyncIterator[tuple[WorkerPool, Host, Callable[..., bool]]]:
    """Open a worker pool; what accepts a request for it takes its number, and its time in seconds."""
    host = Host()
    peer = Peer(TestRealm().identity("store").public(), None, ("mem://store",), Config())

    async with trio.open_nursery() as nursery:
        pool = WorkerPool(service.name, Role(service, Limits(concurrency=concurrency)), nursery, host)

        def accept(number: int, seconds: float = 1.0) -> bool:
            payload = wire.encode_payload(number, 1000)
            request = kinds.Request(number, service.name, None, int(seconds * 1000), 0, None, payload)
            return pool.accept(pending(peer, request, service.requests[None], {}, trio.current_time()))

        yield pool, host, accept
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()


@final
class Steps(trio.abc.Instrument):
    """Counts how often tasks run."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_request_may_come_at_the_moment_at_which_the_time_of_the_last_one_ends(
    autojump_clock: MockClock,
) -> None:
    service = Service("greeters")

    @service.request
    async def greet(request: iris.Request) -> object:
        return request.payload

    async with pool_of(service, 1) as (membership, host, accept):
        now = trio.current_time()
        for identifier in range(TRIALS):
            assert accept(identifier)
            now += 1.0
            await trio.sleep_until(now)
    assert host.answered == list(range(TRIALS))
    assert membership.statistics().served == TRIALS


async def test_one_worker_is_woken_for_requests_that_come_together_and_wait_for_nothing(
    autojump_clock: MockClock,
) -> None:
    service = Service("greeters")

    @service.request
    async def greet(request: iris.Request) -> object:
        return request.payload

    async with pool_of(service, 16) as (pool, host, accept):
        for number in range(16):  # as many workers begin
            assert accept(number)
        await wait_all_tasks_blocked()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for number in range(16, 32):
            assert accept(number)
        await trio.sleep(0.1)
        trio.lowlevel.remove_instrument(steps)
        assert host.answered[16:] == list(range(16, 32)), "in their order"
        assert steps.count < 8
        assert pool.statistics().served == 32


async def test_as_soon_as_one_waits_the_others_go_on_beside_it(autojump_clock: MockClock) -> None:
    service = Service("greeters")
    begun: list[tuple[int, float]] = []

    @service.request
    async def greet(request: iris.Request) -> object:
        begun.append((request.payload, trio.current_time()))
        if request.payload % 3 == 0:
            await trio.sleep(0.5)
        return request.payload

    async with pool_of(service, 16) as (pool, host, accept):
        for _ in range(TRIALS):
            begun.clear()
            host.answered.clear()
            now = trio.current_time()
            for number in range(16):
                assert accept(number)
            await trio.sleep(0.1)
            assert sorted(begun) == [(number, now) for number in range(16)], "none waits for another one"
            for number in range(16, 26):
                assert accept(number)
            await trio.sleep(0.1)
            assert sorted(begun[16:]) == [(number, now + 0.1) for number in range(16, 26)]
            await trio.sleep(0.8)
            assert sorted(host.answered) == list(range(26))
        assert pool.statistics().served == 26 * TRIALS


async def test_each_handler_has_the_time_of_its_own_request(autojump_clock: MockClock) -> None:
    service = Service("greeters")
    seen: list[tuple[float, float]] = []

    @service.request
    async def greet(request: iris.Request) -> object:
        seen.append((trio.current_effective_deadline(), request.deadline))
        return request.payload

    async with pool_of(service, 2) as (_, host, accept):
        now = trio.current_time()
        for number, seconds in enumerate([1, 1, 3, 3, 2, 1, 5]):
            assert accept(number, seconds)
        await trio.sleep(0.1)
    assert host.answered == list(range(7))
    assert seen == [(now + seconds, now + seconds) for seconds in [1, 1, 3, 3, 2, 1, 5]]


async def test_who_is_cancelled_while_it_waits_for_nothing_cancels_no_other(autojump_clock: MockClock) -> None:
    service = Service("greeters")
    jobs: list[PendingRequest] = []

    @service.request
    async def greet(request: iris.Request) -> object:
        for job in pool._running:
            assert job.scope is not None
            if request.payload == 1:
                job.cancelled = True
                job.scope.cancel()
                jobs.append(job)
        if request.payload == 2:
            await trio.sleep(0.5)
        return request.payload

    async with pool_of(service, 1) as (pool, host, accept):
        for number in range(3):
            assert accept(number)
        await trio.sleep(0.9)
    assert len(jobs) == 1
    assert host.answered == [0, 1, 2]
