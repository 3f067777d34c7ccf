"""Workers that wait for requests, and what reaches them while they do."""

from __future__ import annotations

from collections import Counter

import trio
from trio.testing import MockClock

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
from iris.patterns.service.worker_pool import PendingRequest, Role, WorkerPool
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

    def report_credit(self, node: NodeId, report: kinds.BroadcastCredit) -> bool:
        return True


async def test_a_request_may_come_at_the_moment_at_which_the_time_of_the_last_one_ends(
    autojump_clock: MockClock,
) -> None:
    service = Service("greeters")

    @service.request
    async def greet(request: iris.Request) -> object:
        return request.payload

    host = Host()
    handler = service.requests[None]
    peer = Peer(TestRealm().identity("store").public(), None, ("mem://store",), Config())
    async with trio.open_nursery() as nursery:
        membership = WorkerPool("greeters", Role(service, Limits(concurrency=1)), nursery, host)
        now = trio.current_time()
        for identifier in range(TRIALS):
            deadline = now + 1.0
            payload = wire.encode_payload(identifier, 1000)
            request = kinds.Request(identifier, "greeters", None, 1000, 0, None, payload)
            assert membership.accept(PendingRequest(peer, request, handler, {}, now))
            await trio.sleep_until(deadline)
            now = deadline
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert host.answered == list(range(TRIALS))
    assert membership.statistics().served == TRIALS
