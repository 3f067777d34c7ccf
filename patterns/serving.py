"""The answering side: requests and broadcasts that arrive for the clusters this node has joined.

Each membership has its own workers and its own bounded queue.  A worker is a task that takes one request after the
other: a task for each request would cost as much as the rest of its way.  The time that the caller still has is the
cancel scope around the handler; a request whose time ran out in the queue is never run.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict, deque
from typing import Any, Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.cluster.peer import Peer
from iris.kernel import kinds, wire
from iris.kernel.config import Config
from iris.kernel.errors import IrisError, NotSent, RemoteError, RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.wakeup import Wakeup
from iris.patterns.requests import DRAINING, EXPIRED, IDEMPOTENT, NOT_A_MEMBER, OVERLOADED
from iris.patterns.service import RequestHandler, Service
from iris.patterns.values import Message, Request, Sender

_REMEMBERED: Final = 65536
"""Replies of idempotent requests that a member keeps; the oldest go first."""


@final
class _Job:
    """One request on its way through a member."""

    __slots__ = (
        "cancelled",
        "deadline",
        "handler",
        "headers",
        "idempotent",
        "identifier",
        "operation",
        "payload",
        "peer",
        "scope",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        identifier: int,
        operation: str | None,
        handler: RequestHandler,
        deadline: float,
        headers: object,
        payload: wire.Payload,
        *,
        idempotent: bool,
    ) -> None:
        self.peer = peer
        self.identifier = identifier
        self.operation = operation
        self.handler = handler
        self.deadline = deadline
        self.headers = headers
        self.payload = payload
        self.idempotent = idempotent
        self.scope: trio.CancelScope | None = None
        self.cancelled = False


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatistics:
    """Counters of one membership.  received = served + failed + expired + cancelled + refused + running + queued."""

    received: int
    served: int
    failed: int
    expired: int
    cancelled: int
    refused: int
    repeated: int
    """Idempotent requests that were known already; not counted in ``received``."""
    running: int
    queued: int
    broadcasts: int
    broadcasts_failed: int


@final
class Membership:
    """This node as a member of one cluster."""

    def __init__(
        self, cluster: str, service: Service, serving: Serving, nursery: trio.Nursery, concurrency: int, queue: int
    ) -> None:
        self.cluster: Final = cluster
        self.service: Final = service
        self.draining = False
        self.queue: deque[_Job] = deque()
        self.running = 0
        self.served = self.failed = self.expired = self.cancelled = self.refused = self.repeated = 0
        self.received = self.broadcasts = self.broadcasts_failed = 0
        self._serving = serving
        self._nursery = nursery
        self._concurrency = concurrency
        self._queue_limit = queue
        self._workers = 0
        self._idle: list[Wakeup] = []
        self._broadcasts: deque[Message] = deque()
        self._broadcast_news = Wakeup()
        self.drained = trio.Event()

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the counters."""
        return ServiceStatistics(
            received=self.received,
            served=self.served,
            failed=self.failed,
            expired=self.expired,
            cancelled=self.cancelled,
            refused=self.refused,
            repeated=self.repeated,
            running=self.running,
            queued=len(self.queue),
            broadcasts=self.broadcasts,
            broadcasts_failed=self.broadcasts_failed,
        )

    def accept(self, job: _Job) -> bool:
        """Take a request on, or tell that the queue is full."""
        self.received += 1
        if self._idle:
            self.queue.append(job)
            self._idle.pop().wake()
        elif self._workers < self._concurrency:
            self._workers += 1
            self.queue.append(job)
            self._nursery.start_soon(self._work)
        elif len(self.queue) < self._queue_limit:
            self.queue.append(job)
        else:
            self.refused += 1
            return False
        return True

    async def _work(self) -> None:
        wakeup = Wakeup()
        queue = self.queue
        while True:
            while not queue:
                self._idle.append(wakeup)
                await wakeup.wait()
            job = queue.popleft()
            self.running += 1
            try:
                await self._run(job)
            finally:
                self.running -= 1
                self._serving.forget(job)
                if self.draining and not queue and not self.running:
                    self.drained.set()

    async def _run(self, job: _Job) -> None:
        reply: wire.Message
        size = 0
        if job.cancelled:
            self.cancelled += 1
            return
        if trio.current_time() >= job.deadline:
            self.expired += 1
            reply = (kinds.FAILURE, job.identifier, EXPIRED, "", 0)
        else:
            with trio.CancelScope(deadline=job.deadline) as scope:
                job.scope = scope
                reply, size = await self._call(job)
            if scope.cancelled_caught:
                if job.cancelled:
                    self.cancelled += 1
                    return
                self.expired += 1
                reply, size = (kinds.FAILURE, job.identifier, EXPIRED, "", 0), 0
        self._serving.answer(job, reply, size)

    async def _call(self, job: _Job) -> tuple[wire.Message, int]:
        try:
            request = Request(
                payload=wire.decode_payload_untrusted(job.payload),
                sender=Sender(job.peer.identity.cluster, job.peer.node),
                headers=wire.decode_headers_untrusted(job.headers),
                deadline=job.deadline,
                cluster=self.cluster,
                operation=job.operation,
            )
            result: Any = job.handler(request)
            if inspect.isawaitable(result):
                result = await result
            payload = wire.encode_payload(result, self._serving.config.max_payload)
        except Exception as error:  # noqa: BLE001 -- whatever a handler raises is the caller's answer
            self.failed += 1
            code, text = _describe(error)
            return (kinds.FAILURE, job.identifier, code, text, 0), len(text)
        self.served += 1
        return (kinds.REPLY, job.identifier, payload), wire.payload_size(payload)

    def accept_broadcast(self, message: Message) -> bool:
        """Take a broadcast on, or tell that too many wait."""
        if len(self._broadcasts) >= self._queue_limit:
            self.broadcasts_failed += 1
            return False
        self._broadcasts.append(message)
        self._broadcast_news.wake()
        return True

    async def handle_broadcasts(self) -> None:
        """Call the broadcast handlers, one message after the other, in the order of arrival."""
        while True:
            while not self._broadcasts:
                await self._broadcast_news.wait()
            message = self._broadcasts.popleft()
            for handler in self.service.broadcasts:
                try:
                    await handler(message)
                except Exception:  # noqa: BLE001 -- one bad handler must not end the others; it is counted
                    self.broadcasts_failed += 1
            self.broadcasts += 1


def _describe(error: Exception) -> tuple[str, str]:
    """What a caller may know of an error: a stable word and a text, never a traceback."""
    if isinstance(error, RemoteError):
        return error.code[:64], error.message[:1024]
    if isinstance(error, IrisError):
        return type(error).__name__, str(error)[:1024]
    return "error", f"{type(error).__name__}: {error}"[:1024]


@final
class Serving:
    """All memberships of one node, and the dispatch of what arrives for them."""

    def __init__(self, mesh: Mesh, config: Config) -> None:
        self.config: Final = config
        self.memberships: dict[str, Membership] = {}
        self._mesh = mesh
        self._jobs: dict[tuple[NodeId, int], _Job] = {}
        self._replies: OrderedDict[tuple[NodeId, int], tuple[wire.Message, int, float]] = OrderedDict()
        mesh.on(kinds.REQUEST, 7, self._receive_request)
        mesh.on(kinds.CANCEL, 1, self._receive_cancel)
        mesh.on(kinds.BROADCAST, 3, self._receive_broadcast)

    def _receive_request(self, peer: Peer, message: wire.Message) -> None:
        _, identifier, cluster, operation, budget, flags, headers, payload = message
        if type(identifier) is not int or type(budget) is not int or budget < 0 or not wire.is_payload(payload):
            raise RemoteProtocolError("a request carries an id, a time and a payload")
        membership = self.memberships.get(cluster)
        if membership is None or membership.draining:
            self._fail(peer, identifier, NOT_A_MEMBER if membership is None else DRAINING, "")
            return
        idempotent = bool(flags & IDEMPOTENT) if type(flags) is int else False
        if idempotent and self._answer_again(peer, identifier, membership):
            return
        handler = membership.service.requests.get(operation)
        if handler is None:
            wanted = "requests without an operation" if operation is None else f"the operation {operation!r}"
            self._fail(peer, identifier, "no_such_operation", f"cluster {cluster!r} does not serve {wanted}")
            return
        deadline = trio.current_time() + budget / 1000
        job = _Job(peer, identifier, operation, handler, deadline, headers, payload, idempotent=idempotent)
        if membership.accept(job):
            self._jobs[peer.node, identifier] = job
        else:
            text = f"{len(membership.queue)} requests wait"
            self._fail(peer, identifier, OVERLOADED, text, retry_after_ms=100)

    def _answer_again(self, peer: Peer, identifier: int, membership: Membership) -> bool:
        key = (peer.node, identifier)
        if key in self._jobs:
            membership.repeated += 1
            return True
        known = self._replies.get(key)
        if known is None:
            return False
        membership.repeated += 1
        self._post(peer, known[0], known[1])
        return True

    def _fail(self, peer: Peer, identifier: int, code: str, text: str, *, retry_after_ms: int = 0) -> None:
        self._post(peer, (kinds.FAILURE, identifier, code, text, retry_after_ms), len(text))

    def _post(self, peer: Peer, message: wire.Message, size: int) -> None:
        try:
            peer.link.post(message, size)
        except NotSent:
            self._mesh.refusals["reply without room on the link"] += 1

    def answer(self, job: _Job, reply: wire.Message, size: int) -> None:
        """Send the outcome of a job, and remember it if the request may be repeated."""
        if job.idempotent:
            replies = self._replies
            now = trio.current_time()
            replies[job.peer.node, job.identifier] = (reply, size, job.deadline)
            while replies and (len(replies) > _REMEMBERED or next(iter(replies.values()))[2] < now):
                replies.popitem(last=False)
        self._post(job.peer, reply, size)

    def forget(self, job: _Job) -> None:
        """Drop a job that has ended."""
        self._jobs.pop((job.peer.node, job.identifier), None)

    def _receive_cancel(self, peer: Peer, message: wire.Message) -> None:
        job = self._jobs.get((peer.node, message[1]))
        if job is not None:
            job.cancelled = True
            if job.scope is not None:
                job.scope.cancel()

    def _receive_broadcast(self, peer: Peer, message: wire.Message) -> None:
        _, cluster, headers, payload = message
        membership = self.memberships.get(cluster)
        if membership is None or not wire.is_payload(payload):
            raise RemoteProtocolError("a broadcast for a cluster that this node is not a member of")
        membership.accept_broadcast(
            Message(
                payload=wire.decode_payload_untrusted(payload),
                sender=Sender(peer.identity.cluster, peer.node),
                headers=wire.decode_headers_untrusted(headers),
                cluster=cluster,
            )
        )
