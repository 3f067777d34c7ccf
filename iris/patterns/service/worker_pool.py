"""Worker pool: one membership of this node in a cluster, with its bounded queue, its workers and its counters.

A worker is a task that takes one request after the other: a task for each request would cost as much as the rest of
the request's path.  The caller's remaining time is the deadline of the cancel scope around the handler.  A request
whose deadline passed in the queue is never run.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, final

import trio
from msgspec import Struct, structs

from iris.cluster.mesh import InboxReader, InboxWaiter, Peer
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import RemoteError, RemoteProtocolError, TunnelBroken
from iris.kernel.names import NodeId, account_of
from iris.kernel.rates import Rates
from iris.kernel.statistics import Statistics
from iris.kernel.tasks import interruptible
from iris.kernel.wire import kinds
from iris.patterns.bridge_protocol import Bridges
from iris.patterns.latency import LatencyStatistics, LatencyTable
from iris.patterns.messages import Message, Outbox, OwnNode, Request, Sender
from iris.patterns.observer import Observed, Observer, Pattern
from iris.patterns.payloads import encoded
from iris.patterns.priority import Priority, served_priority
from iris.patterns.receive_limits import Arriving
from iris.patterns.request import (
    DRAINING,
    EACH,
    EXPIRED,
    IDEMPOTENCY_KEY,
    KEYED,
    MEMBER_LEFT,
    OF_HANDLER,
    OVERLOADED,
    PRIORITY_SHIFT,
)
from iris.patterns.service.broadcast_queue import BroadcastQueue, CreditReporter
from iris.patterns.service.concurrency_limit import AdaptiveConcurrency
from iris.patterns.service.contexts import fresh_context, in_fresh_contexts
from iris.patterns.service.failure_log import FailureLog, serving_log
from iris.patterns.service.handlers import InProcess, Unserved, described, failure_in, is_only
from iris.patterns.service.load_shedding import LoadShedder, QueueDelay
from iris.patterns.service.loops import noted_mend
from iris.patterns.service.outcomes import KeptOutcomes, UndoneStep, undone_step
from iris.patterns.service.outside import CutOff, HandlerScope, OutsideTask, OutsideTasks, RequestHandler
from iris.patterns.service.process_calls import error_name
from iris.patterns.service.process_pool import ProcessPool, ProcessStatistics, processors
from iris.patterns.service.reply_cache import Outcome
from iris.patterns.service.service import BroadcastHandler, Limits, Service, TunnelHandler
from iris.patterns.service.signatures import BAD_REQUEST
from iris.patterns.tunnel import Tunnel
from iris.security.identity import PeerIdentity

_HIGH: Final = Priority.HIGH
_NORMAL: Final = Priority.NORMAL
_HEADER: Final = 192
"""Size that a header takes beside its name and its value, in bytes."""


@final
class PendingRequest(Struct, eq=False):
    """One request at a member, from its arrival to its answer.  Made by ``pending``; its times are trio's.

    Attributes:
        peer: the caller.
        handler: handler of its operation.
        headers: its headers, decoded.
        flags: the flags of the request as it came.
        priority: the ``Priority`` among them.
        arrived: time of its arrival.
        begun: time at which its handler was called; that of its arrival until then.
        deadline: time at which its caller waits no more.
        key: idempotency key under which its outcome is kept.  None if it has none.
        size: bytes that it takes of the room for what waits.
        account: account whose share of the queue it takes while it waits; empty if it found a free place.
        cost: part of that share that it takes.
        counted: True while its outcome is being recorded: its handler has ended, and was counted.
        refused: True if its handler has raised ``RemoteError``: it says that it has had no effect.
        unserved: None unless its handler has raised ``Unserved``; True if another program may have begun with it.
    """

    peer: Peer
    identifier: int
    operation: str | None
    handler: RequestHandler | InProcess
    headers: Mapping[str, str]
    payload: wire.Payload
    flags: int
    priority: int
    arrived: float
    begun: float
    deadline: float
    key: str | None = None
    size: int = 0
    account: str = ""
    cost: int = 0
    scope: HandlerScope | None = None
    cancelled: bool = False
    counted: bool = False
    refused: bool = False
    unserved: bool | None = None
    undoes: UndoneStep | None = None


def pending(
    peer: Peer,
    request: kinds.Request,
    handler: RequestHandler | InProcess,
    headers: Mapping[str, str],
    arrived: float,
) -> PendingRequest:
    """Return a request as it waits here.

    Args:
        peer: the caller.
        request: the request as it came.
        handler: handler of its operation.
        headers: its headers, decoded.
        arrived: time of its arrival, on trio's clock.
    """
    flags = request.flags
    return PendingRequest(
        peer, request.id, request.operation, handler, headers, request.payload, flags, flags >> PRIORITY_SHIFT & 3,
        arrived, arrived, arrived + request.budget / 1000, headers.get(IDEMPOTENCY_KEY) if flags & KEYED else None,
    )  # fmt: skip


@final
class ServiceStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of one membership.

    At any time ``received == served + failed + expired + cancelled + refused + running + queued``, and the same for
    ``broadcasts_received`` and ``tunnels_received`` with what is below each of them.
    """

    received: int
    served: int
    failed: int
    expired: int
    cancelled: int
    refused: int
    shed: int
    """Refused requests that would have waited, or had waited, for too long."""
    paused: int
    """Requests, broadcasts and tunnels that were refused because the service was paused."""
    repeated: int
    """Idempotent requests that were known already; not counted in ``received``."""
    replayed: int
    """Requests with an idempotency key that were answered with a recorded outcome.  They count as received and as
    served, whatever that is."""
    running: int
    queued: int
    concurrency: int
    """Handlers that may run at the same time now."""
    broadcasts_received: int
    broadcasts: int
    """Broadcasts that every handler has handled without an error."""
    broadcasts_failed: int
    """Broadcasts whose handler raised."""
    broadcasts_refused: int
    """Broadcasts that found no room here, are above this node's limits or malformed, or whose sender may not use this
    service; their senders get a report."""
    broadcasts_cancelled: int
    """Broadcasts that were still here when this member left; their senders get a report."""
    broadcasts_queued: int
    """Broadcasts that wait, and the one that the handlers are at."""
    queue_delay: float
    """Average wait of recent requests for a handler, in seconds."""
    latency: Mapping[str | None, LatencyStatistics]
    """Latency of each operation, from a request's arrival to the handler's reply or error, and the errors raised."""
    tunnels_received: int
    tunnels_running: int
    tunnels_served: int
    tunnels_failed: int
    """Tunnels whose handler raised, or whose other end was lost."""
    tunnels_cancelled: int
    """Tunnels whose handler was still at work when this member left."""
    programs: int = 1
    """Members that it stands for: programs that serve through a door, or this one alone."""
    processes: int = 0
    """Processes for handlers that run or start."""
    processes_died: int = 0
    """Processes that have ended by themselves, or were killed by others."""
    processes_killed: int = 0
    """Processes that were killed because a handler went on after its time."""

    @property
    def at_work(self) -> int:
        """Requests, broadcasts and tunnels that run or wait: what a member that leaves waits for."""
        return self.running + self.queued + self.broadcasts_queued + self.tunnels_running


class PoolHost(CreditReporter, Protocol):
    """The node that a worker pool is of: its ``Server``.  No method blocks, and none is called from another thread."""

    @property
    def config(self) -> Config:
        """Limits where a member sets none."""
        ...

    @property
    def reading(self) -> InboxReader:
        """Reader of the frames that requests come by."""
        ...

    @property
    def arriving(self) -> Arriving:
        """Counter of what cannot be read."""
        ...

    @property
    def observer(self) -> Observer | None:
        """Observer of the handlers that run.  None if there is none."""
        ...

    @property
    def bridges(self) -> Bridges | None:
        """The bridges that keep outcomes.  None: none are kept, and requests with a key are refused."""
        ...

    def answer(self, job: PendingRequest, reply: Outcome, size: int) -> None:
        """Send the outcome of a request, of so many bytes.  Called once for each, before ``forget``."""
        ...

    def answer_part(self, job: PendingRequest, part: kinds.Part, size: int) -> None:
        """Send a part of the outcome of a survey's request, of so many bytes.  Called before ``answer``."""
        ...

    def forget(self, job: PendingRequest) -> None:
        """Note that a request has ended.  Called once for each."""
        ...

    def weight_changed(self, cluster: str, weight: int) -> None:
        """Let callers know for how many members this one stands.  Does not block."""
        ...


class PauseFlag(Protocol):
    """Flag that has a service refuse everything for now."""

    def is_set(self) -> bool:
        """Return whether it is set.  Called for each request, broadcast and tunnel that comes; must not block."""
        ...


@final
class WorkerPools(dict[str, "WorkerPool"]):
    """The memberships of one node, by cluster.  The table is made before the parts that announce how busy a node is."""

    @property
    def queue_delay(self) -> float:
        """Time that requests wait for a handler here, in seconds, in the slowest membership."""
        return max((membership.queue_delay for membership in self.values()), default=0.0)


@final
class Role(NamedTuple):
    """A node's part as a member of a cluster.

    Attributes:
        service: handlers, with what they need.
        limits: limits on the work that it accepts.
        flag: flag that pauses the service.  None if it is never paused.
        node: the node that requests show their handlers.  None for handlers of Iris's own, which do not ask.
    """

    service: Service
    limits: Limits
    flag: PauseFlag | None = None
    node: OwnNode | None = None


@final
class WorkerPool:
    """Worker pool of this node as a member of one cluster.

    Args:
        nursery: nursery of its workers; what it cancels is no longer answered.

    Attributes:
        broadcasts: queue of the broadcasts that wait.
        kept: outcomes of requests with an idempotency key.  None: such requests are refused.
        weight: members that it stands for: more than one where its handlers stand for several programs.
    """

    # As in ``Node``: with so many attributes each look-up of a method would search a dict.
    __slots__ = (
        "_adaptive", "_broadcasts_done", "_broadcasts_failed", "_bytes", "_cancelled", "_concurrency", "_context",
        "_drained", "_expired", "_failed", "_flag", "_host", "_hurried", "_identity", "_idle", "_is_over", "_latency",
        "_node", "_nursery", "_outside", "_processes", "_queue", "_queue_bytes", "_queue_limit", "_rates", "_refused",
        "_running", "_sender", "_served", "_shedding", "_tunnels_cancelled", "_tunnels_failed", "_tunnels_running",
        "_tunnels_served", "_urgent", "_waiting", "_waits", "_woken", "_workers", "broadcasts", "cluster", "draining",
        "failures", "kept", "paused", "received", "repeated", "service", "weight",
    )  # fmt: skip

    def __init__(
        self,
        cluster: str,
        role: Role,
        nursery: trio.Nursery,
        host: PoolHost,
    ) -> None:
        service, limits, self._flag, self._node = role
        config = host.config
        self.cluster: Final = cluster
        self.service: Final = service
        self.draining = False
        self.weight = 1
        self.paused = 0
        self.kept: Final = (
            None
            if service.outcomes is None or host.bridges is None
            else KeptOutcomes(service.outcomes, cluster, host.bridges, nursery)
        )
        self._host = host
        self._waits = QueueDelay()
        self._latency = LatencyTable()
        self._nursery = nursery
        self._concurrency = limits.concurrency or config.service_concurrency
        self._queue_limit = limits.queue or config.service_queue
        self._queue_bytes = limits.queue_bytes or config.service_queue_bytes
        self._bytes = 0  # of payloads of requests that did not find a free place when they came
        self._queue: deque[PendingRequest] = deque()
        self._urgent: deque[PendingRequest] = deque()
        self._hurried: set[str] = set()
        """Callers of whom an important request has begun since the last one that is none."""
        self._waiting: Counter[str] = Counter()
        """Cost of what waits, by caller: bytes, and for each request as many as one place of the queue has."""
        self._shedding = LoadShedder(config.queue_delay_target)
        self._rates = (
            None
            if limits.rate is None and limits.rate_bytes is None
            else Rates(limits.rate, limits.rate_bytes, trio.current_time())
        )
        self._adaptive = AdaptiveConcurrency(self._concurrency) if limits.adaptive else None
        if self._adaptive is not None:
            self._concurrency = self._adaptive.limit
        in_processes = [one for one in service.requests.values() if isinstance(one, InProcess)]
        self._processes = (
            ProcessPool(cluster, in_processes, min(processors(), self._concurrency), config.max_payload, nursery)
            if in_processes
            else None
        )
        self._running: set[PendingRequest] = set()
        self._served = self._failed = self._expired = self._cancelled = self._refused = 0
        self.received = 0
        self._broadcasts_done = self._broadcasts_failed = 0
        self.repeated = 0
        self._outside = service._outside if self.kept is None else None
        """Tasks of another event loop that serve the requests.  None: workers do, which are tasks of trio's."""
        self._is_over = False
        """True once what serves requests outside is being cancelled."""
        self._workers = 0
        self._idle: dict[InboxWaiter, None] = {}
        self._woken = 0
        """Workers that were woken and have not looked at the queue yet."""
        self._tunnels_running = self._tunnels_served = self._tunnels_failed = self._tunnels_cancelled = 0
        self.broadcasts: Final = BroadcastQueue(cluster, config.broadcast_window, self._queue_bytes, host)
        self._drained = trio.Event()
        self.failures: Final = FailureLog(cluster)
        self._identity: PeerIdentity | None = None
        """Identity of the caller of the last request: the next one has the same most of the time."""
        self._sender = Sender("", NodeId(""))
        """The caller of the last request, as handlers see it."""
        self._context = copy_context()
        """Context that every handler begins with, for any caller: the one of the code that joined the cluster."""
        self._context.run(served_priority.set, Priority.NORMAL)
        self._context.run(serving_log.set, self.failures)

    def __repr__(self) -> str:
        return f"<WorkerPool in {self.cluster}: {len(self._running)} running, {self.queued} queued>"

    async def open(self) -> None:
        """Start what its handlers need; call it before ``accept``.

        Raises:
            ConfigError: a process of its handlers cannot be started.
        """
        if self._processes is not None:
            await self._processes.open()
        if self._outside is not None:
            self._nursery.start_soon(self._outside.run)
            self._nursery.start_soon(self._keep, self._outside)

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the counters."""
        processes = ProcessStatistics() if self._processes is None else self._processes.statistics()
        return ServiceStatistics(
            received=self.received,
            served=self._served,
            failed=self._failed,
            expired=self._expired,
            cancelled=self._cancelled,
            refused=self._refused,
            shed=self._shedding.shed,
            paused=self.paused,
            repeated=self.repeated,
            replayed=0 if self.kept is None else self.kept.replayed,
            running=len(self._running),
            queued=self.queued,
            concurrency=self._concurrency,
            broadcasts_received=self.broadcasts.received,
            broadcasts=self._broadcasts_done,
            broadcasts_failed=self._broadcasts_failed,
            broadcasts_refused=self.broadcasts.refused,
            broadcasts_cancelled=self.broadcasts.cancelled,
            broadcasts_queued=len(self.broadcasts),
            queue_delay=self._waits.lately,
            latency={name: of for table in self._latency.statistics().values() for name, of in table.items()},
            tunnels_received=(
                self._tunnels_running + self._tunnels_served + self._tunnels_failed + self._tunnels_cancelled
            ),
            tunnels_running=self._tunnels_running,
            tunnels_served=self._tunnels_served,
            tunnels_failed=self._tunnels_failed,
            tunnels_cancelled=self._tunnels_cancelled,
            programs=self.weight,
            processes=processes.processes,
            processes_died=processes.died,
            processes_killed=processes.killed,
        )

    # -- requests -------------------------------------------------------------------------------------------

    def accept(self, job: PendingRequest) -> bool:
        """Accept a request; return False if the queue is full or stands, or more came than the rate permits.

        One idle worker is woken for all that come together: it takes them one after the other, and as soon as it waits
        for something the others are woken for what is left.  A frame of sixteen would else wake sixteen tasks, fifteen
        of which find nothing to do: 5 us for each request.  Where handlers are waiting already, the next ones will.
        """
        self.received += 1
        if self._rates is not None:
            if self._rates.delay(job.arrived):
                self._refused += 1
                return False
            self._rates.owe(1, wire.payload_size(job.payload))
        if len(self._idle) + self._woken > len(self._queue) + len(self._urgent):
            self._queue.append(job)
            if self._running or not self._woken:
                self._wake_idle(1)
        elif self._workers < self._concurrency:
            self._workers += 1
            self._queue.append(job)
            self._begin_worker()
        elif self._shedding.busy and self._shedding.refuses(
            job.priority, job.arrived, len(self._queue), len(self._running)
        ):
            if job.priority == Priority.LOW:
                self._refused += 1
                return False
            return self._enqueue(job, stands=True)
        else:
            return self._enqueue(job)
        return True

    def resize(self, concurrency: int, weight: int) -> None:
        """Let so many handlers run at the same time from now on, as those of so many members; what runs goes on."""
        weight = min(weight, kinds.MAX_WEIGHT)
        if weight != self.weight:
            self.weight = weight
            self._host.weight_changed(self.cluster, weight)
        self._concurrency = concurrency
        for _ in range(min(self.queued, concurrency - self._workers)):
            self._workers += 1
            self._begin_worker()

    def _begin_worker(self) -> None:
        if self._outside is None:
            self._nursery.start_soon(self._work)
        else:
            self._outside.begin(self._serve, self._context)

    def is_paused(self) -> bool:
        """Return whether the service is to refuse everything for now."""
        return self._flag is not None and self._flag.is_set()

    def refuse_paused(self) -> None:
        """Count a request that was refused because the service is paused."""
        self.received += 1
        self._refused += 1
        self.paused += 1

    def refuse_keyed(self) -> None:
        """Count a request that was refused because it has an idempotency key."""
        self._refused += 1

    def _enqueue(self, job: PendingRequest, *, stands: bool = False) -> bool:
        """Let a request wait, in place of another one if the queue is full, or ``stands``; return whether it may."""
        size = self._size(job)
        account, cost = account_of(job.peer.identity.caller), size + max(1, self._queue_bytes // self._queue_limit)
        while stands or self._is_full(size):
            if not self._give_way(account, cost) and not (job.priority == Priority.HIGH and self._make_room(job, size)):
                self._refused += 1
                return False
            stands = False
        job.size, job.account, job.cost = size, account, cost
        self._bytes += size
        self._waiting[account] += cost
        (self._queue if job.priority != Priority.HIGH else self._urgent).append(job)
        return True

    @staticmethod
    def _size(job: PendingRequest) -> int:
        size = wire.payload_size(job.payload)
        if job.headers:
            size += sum(len(name) + len(text) + _HEADER for name, text in job.headers.items())
        return size

    def _is_full(self, size: int) -> bool:
        """Return whether a request of ``size`` bytes finds no room in the queue."""
        # Counted together, because requests whose worker has not begun yet are still in the queue.
        if len(self._running) + self.queued >= self._concurrency + self._queue_limit:
            return True
        # What is above the limit by itself waits when nothing else does.
        return self._bytes > 0 and self._bytes + size > self._queue_bytes

    def _heaviest(self, account: str, cost: int) -> str | None:
        """Return the caller of whom most waits; None if ``account`` would have as much with ``cost`` more."""
        waiting = self._waiting
        found = max(waiting, key=waiting.__getitem__, default=None)
        return found if found is not None and waiting[found] > waiting[account] + cost else None

    def _give_way(self, account: str, cost: int) -> bool:
        """Refuse the newest request of the caller of whom most waits, if that is more than another one would have.

        So one caller may have the whole queue as long as nobody else asks, and each of several has its share.
        """
        heaviest = self._heaviest(account, cost)
        if heaviest is None:
            return False
        for queue in (self._queue, self._urgent):
            for index, other in enumerate(reversed(queue), 1):
                if other.account == heaviest:
                    del queue[-index]
                    self._leave(other)
                    self._refuse(other)
                    return True
        raise AssertionError("what waits is in a queue")

    def _leave(self, job: PendingRequest) -> None:
        """Free the share of a request that waits no more."""
        if job.account:
            self._bytes -= job.size
            self._waiting[job.account] -= job.cost
            if self._waiting[job.account] <= 0:
                del self._waiting[job.account]
            job.account = ""

    def _make_room(self, job: PendingRequest, size: int) -> bool:
        """Refuse the newest of those that are not urgent until an urgent one may wait; return whether it may.

        Those of other callers stay, unless more waits of them than of this one's.
        """
        account = account_of(job.peer.identity.caller)
        own = self._waiting[account]
        refused = [one for one in self._queue if one.account in (account, "") or self._waiting[one.account] > own]
        if not refused or self._bytes + size - sum(other.size for other in refused) > self._queue_bytes:
            return False
        while refused:
            newest = refused.pop()
            self._queue.remove(newest)
            self._leave(newest)
            self._refuse(newest)
            if self._bytes + size <= self._queue_bytes:
                break
        return True

    def retry_after(self) -> float:
        """Return when a refused caller may try again, in seconds from now."""
        wait = self._shedding.wait(trio.current_time(), len(self._queue)) if self._shedding.busy else 0.0
        paced = 0.0 if self._rates is None else self._rates.delay(trio.current_time()) + 0.001  # in whole ms
        return max(0.1, self._waits.lately, wait, paced)

    @property
    def overload(self) -> str:
        """Text of what a caller is refused for."""
        if self._rates is not None and self._rates.delay(trio.current_time()):
            return "more came than its rate permits"
        return f"{self.queued} requests wait"

    def _refuse(self, job: PendingRequest) -> None:
        """Refuse a request that was accepted, but has not begun."""
        self._refused += 1
        text = f"{self.queued} requests wait"
        failure = kinds.Failure(job.identifier, OVERLOADED, text, int(self.retry_after() * 1000))
        self._host.answer(job, failure, len(text))
        self._host.forget(job)

    @property
    def queue_delay(self) -> float:
        """Time that requests wait for a handler here, in seconds; see ``QueueDelay``."""
        oldest = [queue[0].arrived for queue in (self._queue, self._urgent) if queue]
        return self._waits.delay(min(oldest, default=None), trio.current_time())

    @property
    def queued(self) -> int:
        """Requests that wait for a handler."""
        return len(self._queue) + len(self._urgent)

    async def _work(self) -> None:
        """Be one worker: begun by ``accept`` when there are fewer than may run, and woken by it from then on."""
        follower = InboxWaiter(self._host.reading)

        def pause() -> None:
            follower.pause()
            if self._idle and not follower.waits:
                self._wake_idle(self.queued - self._woken)

        await in_fresh_contexts(self._context, self._run_jobs(follower), pause)

    def _wake_idle(self, wanted: int) -> None:
        """Wake so many idle workers, or all if there are fewer."""
        for _ in range(min(wanted, len(self._idle))):
            self._woken += 1
            self._idle.popitem()[0].wake()

    async def _run_jobs(self, follower: InboxWaiter) -> None:
        """Run one request after the other.  As long as none has to wait for anything, this task also reads them.

        Their cancel scope is one, until it is cancelled, be it while this worker is idle: with a new deadline, which
        costs 1.7 us where a scope for each request costs 5.3, only where it is another one.  Those that came in one
        frame with the same timeout have the same.
        """
        queue, urgent = self._queue, self._urgent
        while self._workers <= self._concurrency:
            job: PendingRequest | None = None
            until, now = math.inf, -math.inf
            try:
                with trio.CancelScope() as scope:
                    while self._workers <= self._concurrency:
                        while not queue and not urgent:
                            await self._wait_idle(follower)
                            now = -math.inf
                        if now == -math.inf:
                            now = trio.current_time()
                        if now >= until:  # it is cancelled, or about to be
                            break
                        job = self._pop()
                        follower.keen = True
                        await fresh_context()
                        if self._begins(job, now):
                            job.scope = scope
                            if job.deadline != until:
                                scope.deadline = until = job.deadline
                            reply, size = await (self._call(job) if job.key is None else self._call_once(job, job.key))
                            until = job.deadline  # a caller that has asked again may have moved it
                            now = trio.current_time()
                            self._finish(job, now, reply, size)
                        self._end(job)
                        cancelled, job = job.cancelled, None
                        if cancelled:
                            break
                if job is not None:
                    self._cut_off(job)
            except BaseException:  # the membership ends while the handler runs, or by it: a nursery takes no more tasks
                self.draining = True
                self._cancelled += job is not None and not job.counted
                raise
            finally:
                if job is not None:
                    self._end(job)
        self._workers -= 1

    async def _wait_idle(self, follower: InboxWaiter) -> None:
        self._idle[follower] = None
        try:
            await follower.wait()
        finally:
            if follower in self._idle:  # cancelled, or woken at the very moment at which it was cancelled the last time
                del self._idle[follower]
            else:
                self._woken -= 1

    async def _serve(self, task: OutsideTask) -> None:
        """Be a worker for one request, in a task of another event loop; the next one has a task of its own."""
        assert self._outside is not None
        if self.queued:
            job = self._pop()
            handler: Any = job.handler  # one of ``OutsideHandler``, or Iris's own
            job.handler = partial(task.call, getattr(handler, "outside", handler))
            try:
                if self._begins(job, trio.current_time()):
                    job.scope = task
                    task.deadline = job.deadline
                    reply, size = await (self._call(job) if job.key is None else self._call_once(job, job.key))
                    self._finish(job, trio.current_time(), reply, size)
            except CutOff:
                if job not in self._running:  # the loop was closed: ``_keep`` has counted it
                    return
                if self._is_over:
                    self._cancelled += not job.counted
                else:
                    self._cut_off(job)
            except BaseException as error:  # noqa: BLE001 -- raised in the task of ``_keep``, which ends this membership
                self._cancelled += not job.counted
                self._outside.fail(error)
            self._end(job)
        if self.queued and self._workers <= self._concurrency and not self._is_over:
            self._outside.begin(self._serve, self._context)
        else:
            self._workers -= 1

    async def _keep(self, outside: OutsideTasks) -> None:
        """End the tasks outside with this membership, and the membership with an error in one of them."""
        try:
            await outside.wait_failed()
        finally:
            self.draining = self._is_over = True
            with trio.CancelScope(shield=True):
                await outside.end()
            for job in list(self._running):  # a loop that was closed ends none
                self._cancelled += not job.counted
                self._end(job)

    def _pop(self) -> PendingRequest:
        """Take the request that is next from those that wait."""
        if self._urgent and self._hurries(self._urgent[0]):
            job = self._urgent.popleft()
        else:
            job = self._queue.popleft()
            if self._hurried:
                self._hurried.clear()
        if job.account:
            self._leave(job)
        self._running.add(job)
        return job

    def _hurries(self, job: PendingRequest) -> bool:
        """Return whether an important request goes before the others, and count it.

        Of one caller it is each second request that begins, as long as others wait: else its flood would be all that
        is served.  What only that caller has waiting does not hold it up.
        """
        if self._queue and len(self._waiting) > 1 and job.account in self._hurried:
            return False
        self._hurried.add(job.account)
        return True

    def _end(self, job: PendingRequest) -> None:
        job.scope = None
        self._running.discard(job)
        self._host.forget(job)
        if self.draining:
            self._drained.set()

    def _begins(self, job: PendingRequest, now: float) -> bool:
        """Return whether the handler of a request is called now; if not, say why to the caller."""
        if job.cancelled:
            self._cancelled += 1
            return False
        self._waits.begun(job.arrived, now)
        if now >= job.deadline:
            self._expire(job)
            return False
        shedding = self._shedding
        if shedding.busy or self._queue:
            waiting = len(self._queue)
            waited = now - job.arrived
            if (
                waited > shedding.patience  # hardly ever
                and job.priority != _HIGH
                # Of a caller with less than its share nothing is given up: it waits because of others.
                and (len(self._waiting) < 2 or self._heaviest(account_of(job.peer.identity.caller), job.cost) is None)
                and shedding.gives_up(waited, now, waiting, len(self._running))
            ):
                self._refuse(job)
                return False
            shedding.begun(now, waiting)
        # From here on the handler may have effects: if the member is lost now, the caller cannot know whether it ran.
        job.begun = now
        if job.priority != _NORMAL:
            served_priority.set(job.priority)
        return True

    def _finish(self, job: PendingRequest, now: float, reply: Outcome, size: int) -> None:
        """Answer a request whose handler has ended by itself."""
        self._latency.series(self.cluster, job.operation).record(now - job.arrived)
        if self._adaptive is not None:
            self._adapt(job, self._adaptive)
        self._host.answer(job, reply, size)

    def _cut_off(self, job: PendingRequest) -> None:
        """Count a job that its scope has ended: its caller has no more time for it, or has cancelled it."""
        if self._adaptive is not None:
            self._adapt(job, self._adaptive)
        if job.cancelled:
            self._cancelled += not job.counted
        else:
            self._expire(job)

    def _adapt(self, job: PendingRequest, adaptive: AdaptiveConcurrency) -> None:
        self._concurrency = adaptive.ended(trio.current_time() - job.begun, len(self._running))

    def _expire(self, job: PendingRequest) -> None:
        self._expired += not job.counted
        self._host.answer(job, kinds.Failure(job.identifier, EXPIRED, ""), 0)

    async def _call_once(self, job: PendingRequest, key: str) -> tuple[Outcome, int]:
        """Call the handler of a request with an idempotency key, unless what it came to is known."""
        assert self.kept is not None

        job.undoes = undone_step(key, job.headers)

        async def run(attempt: int, outbox: Outbox) -> tuple[Outcome, int]:
            job.refused, job.unserved = False, None
            self.received += job.counted  # once more, because another member has taken over, and was lost
            job.counted = False
            outcome = await self._call(job, attempt, outbox)
            job.counted = True
            return outcome

        outcome, size = await self.kept.serve(job, job.peer.identity.caller, key, run)
        if not job.counted:
            if isinstance(outcome, kinds.Reply) or outcome.retry_after == OF_HANDLER:
                self._served += 1
            else:
                self._refused += 1
        return outcome, size

    @interruptible  # also what it calls, conversion and handler: either may never end
    async def _call(self, job: PendingRequest, attempt: int = 1, outbox: Outbox | None = None) -> tuple[Outcome, int]:
        handler = job.handler
        in_process = isinstance(handler, InProcess)
        identity = job.peer.identity
        if identity is not self._identity:
            self._identity, self._sender = identity, Sender(identity.caller, job.peer.node)
        try:
            request = Request(
                payload=None if in_process else wire.decode_payload_untrusted(job.payload),
                sender=self._sender,
                headers=job.headers,
                deadline=job.deadline,
                cluster=self.cluster,
                operation=job.operation,
                idempotency_key=job.key,
                attempt=attempt,
                undoes=None if job.undoes is None else job.undoes.key,
                outbox=outbox,
                _node=self._node,
            )
        except RemoteProtocolError as error:
            return self.malformed(job.peer, job.identifier, error)
        if job.flags & EACH:
            structs.force_setattr(request, "_part", partial(self._answer_part, job, request))
        observer = self._host.observer
        seen: Observed | None = None
        if observer is not None and job.headers:
            seen = observer.begin_handling("request", self.cluster, job.operation, request)
        try:
            if isinstance(handler, InProcess):
                assert self._processes is not None
                payload = await self._processes.call(handler, request, job.payload)
            else:
                result: object = handler(request)
                if inspect.isawaitable(result):
                    result = await result
                most = self._host.config.max_payload
                payload = result if type(result) is bytes and len(result) <= most else encoded(result, most)
            if seen is not None:
                seen.end()
        except Exception as error:  # noqa: BLE001 -- whatever a handler raises is the caller's answer
            if seen is not None:
                seen.end(error)
            if in_process and isinstance(error, RemoteProtocolError):
                return self.malformed(job.peer, job.identifier, error)
            return self._fail(job, error, request)
        except BaseException as error:
            if seen is not None:
                seen.end(error)
            failure = failure_in(error)
            if failure is None:
                raise
            return self._fail(job, failure, request)
        self._served += 1
        size = len(payload) if type(payload) is bytes else wire.payload_size(payload)
        return kinds.Reply(job.identifier, payload), size

    def _answer_part(self, job: PendingRequest, request: Request, members: int, answer: object) -> None:
        """Send what one of those for whom the handler stands has answered to a survey: a value, or its error."""
        self.received += 1
        try:
            if isinstance(answer, Exception):
                raise answer
            payload = encoded(answer, self._host.config.max_payload)
        except Exception as error:  # noqa: BLE001 -- as in ``_call``
            outcome, size = self._fail(job, error, request)
        else:
            self._served += 1
            outcome, size = kinds.Reply(job.identifier, payload), wire.payload_size(payload)
        if not job.cancelled:
            self._host.answer_part(job, kinds.Part(members, outcome), size)

    def _fail(self, job: PendingRequest, error: BaseException, request: Request) -> tuple[Outcome, int]:
        if isinstance(error, Unserved):
            job.unserved = error.code == MEMBER_LEFT
            if error.code == MEMBER_LEFT:
                self._cancelled += 1
            else:
                self._refused += 1
            after = int(error.retry_after * 1000)
            return kinds.Failure(job.identifier, error.code, error.text, after), len(error.text)
        self._failed += 1
        # That another service has refused says nothing of what this handler has done before it asked that.
        job.refused = isinstance(error, RemoteError) and not error.received
        self._latency.failed(self.cluster, job.operation, error_name(error))
        mend = noted_mend(error)
        self.failures.failed("request", error, job.operation, request.sender, job.identifier)
        code, text = described(error, tracebacks=self.service.tracebacks)
        if mend is not None:
            text = f"{text}; {mend}"
        return kinds.Failure(job.identifier, code, text, OF_HANDLER), len(text)

    def malformed(self, peer: Peer, identifier: int, error: RemoteProtocolError) -> tuple[Outcome, int]:
        """Count a request of which the headers or the payload cannot be read; return the answer and its size.

        That is no failure of the handler.
        """
        self._failed += 1
        self._host.arriving.malformed("request", error, peer.node, peer.identity.caller, self.cluster)
        code, text = described(RemoteError(BAD_REQUEST, str(error)), tracebacks=self.service.tracebacks)
        return kinds.Failure(identifier, code, text, OF_HANDLER), len(text)

    def _observed(self, pattern: Pattern, operation: str | None, given: object) -> AbstractContextManager[object]:
        """Return the block in which the observer, if there is one, sees a handler at work."""
        observer = self._host.observer
        seen = None if observer is None else observer.begin_handling(pattern, self.cluster, operation, given)
        return nullcontext() if seen is None else seen

    # -- broadcasts -----------------------------------------------------------------------------------------

    async def handle_broadcasts(self) -> None:
        """Call the broadcast handlers, one message after the other: round robin over the senders, in order for each."""
        await in_fresh_contexts(self._context, self._run_broadcasts())

    async def _run_broadcasts(self) -> None:
        try:
            while True:
                if not self.broadcasts:
                    self._drained.set()
                message = self._decoded(await self.broadcasts.wait())
                if message is None:
                    self.broadcasts.refuse_malformed()
                    await trio.lowlevel.checkpoint()
                    continue
                received = [await self._hears(handler, message) for handler in self.service.broadcasts]
                self.broadcasts.finish()
                self._broadcasts_done += all(received)
                self._broadcasts_failed += not all(received)
                await trio.lowlevel.checkpoint_if_cancelled()  # a handler may have failed at that
        finally:
            self.draining = True
            self.broadcasts.cancel()

    def _decoded(self, message: Message) -> Message | None:
        """Return a broadcast with the value that was sent; None, and count it, if that cannot be read."""
        if type(message.payload) is bytes:
            return message
        try:
            value = wire.decode_payload_untrusted(message.payload)
        except RemoteProtocolError as error:
            self._host.arriving.malformed("broadcast", error, message.sender.node, message.sender.cluster, self.cluster)
            return None
        return Message(payload=value, sender=message.sender, headers=message.headers, cluster=self.cluster)

    @interruptible
    async def _hears(self, handler: BroadcastHandler, message: Message) -> bool:
        """Call one handler; one that fails must not end the others."""
        try:
            await fresh_context()
            with self._observed("broadcast", None, message):
                result = handler(message)
                if inspect.isawaitable(result):
                    await result
        except BaseException as error:
            failure = error if isinstance(error, Exception) else failure_in(error)
            if failure is None:
                raise
            noted_mend(failure)
            self.failures.failed("broadcast", failure, None, message.sender)
            return False
        return True

    # -- tunnels --------------------------------------------------------------------------------------------

    def accept_tunnel(self, handler: TunnelHandler, tunnel: Tunnel) -> None:
        """Run the handler of a tunnel that was opened to this member; the tunnel closes when it ends."""
        self._tunnels_running += 1
        self._context.run(self._nursery.start_soon, self._serve_tunnel, handler, tunnel)

    async def _serve_tunnel(self, handler: TunnelHandler, tunnel: Tunnel) -> None:
        broken = True  # whatever closing it raises is its end
        try:
            async with tunnel:
                try:
                    with self._observed("tunnel", tunnel.operation, tunnel):
                        await _talk(handler, tunnel)
                except BaseException:
                    broken = tunnel.is_broken
                    raise
        except BaseException as error:  # the tunnel reports it to the opener; one bad handler must not end the others
            failure = error if isinstance(error, Exception) else failure_in(error)
            if failure is None:
                self.draining = True
                self._tunnels_cancelled += 1
                raise
            self._tunnels_failed += 1
            if broken and is_only(failure, TunnelBroken):
                self.failures.ended("tunnel", "ended with TunnelBroken", tunnel.operation, tunnel.sender)
            else:
                noted_mend(failure)
                self.failures.failed("tunnel", failure, tunnel.operation, tunnel.sender)
        else:
            self._tunnels_served += 1
        finally:
            self._tunnels_running -= 1
            if self.draining:
                self._drained.set()

    # -- ending ---------------------------------------------------------------------------------------------

    async def wait_drained(self, timeout: float) -> None:
        """Accept nothing new, and wait until nothing runs or waits any more, for at most ``timeout`` seconds."""
        self.draining = True
        with trio.move_on_after(timeout):
            while self._running or self.queued or self.broadcasts or self._tunnels_running:
                self._drained = trio.Event()
                await self._drained.wait()

    def abandon(self) -> None:
        """Answer the callers: what still waits did not run, and what runs is being cut off."""
        for job in (*self._urgent, *self._queue):
            # Never begun: its caller may ask another member, whether it is idempotent or not.
            self._host.answer(job, kinds.Failure(job.identifier, DRAINING, ""), 0)
            self._host.forget(job)
        self._cancelled += self.queued
        self._bytes = 0
        self._waiting.clear()
        self._urgent.clear()
        self._queue.clear()
        for job in self._running:
            # Begun and cut off: only a caller with idempotent=True may ask again.
            self._host.answer(job, kinds.Failure(job.identifier, MEMBER_LEFT, ""), 0)
        self.failures.write_off()


@interruptible  # and nothing else of what serves a tunnel: it must count and close it
async def _talk(handler: TunnelHandler, tunnel: Tunnel) -> None:
    talking = handler(tunnel)
    if talking is not None:
        await talking
