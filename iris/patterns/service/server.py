"""Server: the answering side of all clusters that a node has joined.  Checks permissions and limits, dispatches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, final

import trio

from iris.cluster.mesh import InboxReader, Mesh, Peer, PeerObserver
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import open_background
from iris.kernel.wire import kinds
from iris.patterns.books import BROADCAST, Bookkeeper
from iris.patterns.bridge_protocol import Bridges
from iris.patterns.messages import Message, Sender
from iris.patterns.multicast import Relays, cost
from iris.patterns.observer import Observer
from iris.patterns.receive_limits import Arriving
from iris.patterns.request import (
    DRAINING,
    EXPIRED,
    IDEMPOTENT,
    MEMBER_LEFT,
    NO_SUCH_OPERATION,
    NOT_A_MEMBER,
    NOT_ALLOWED,
    NOT_HERE,
    OF_HANDLER,
    OVERLOADED,
    PAUSED,
    TIMED,
    TOO_LARGE,
)
from iris.patterns.service.outcomes import not_kept
from iris.patterns.service.reply_cache import Outcome, ReplyCache
from iris.patterns.service.service import DESCRIBE, EVERY, Service
from iris.patterns.service.worker_pool import PendingRequest, Role, WorkerPool, WorkerPools, pending

_DID_NOT_RUN: Final = frozenset({OVERLOADED, DRAINING, EXPIRED, MEMBER_LEFT})
"""Failures that are no outcome of a handler."""

_ORPHANED: Final = 60.0
"""Seconds for which an idempotent request runs on when its caller is presumed dead: if it lives, it asks again."""

NO_ROOM: Final = "reply_dropped"
"""Code of the error when a handler's reply found no room on the link to its caller."""


def refusal_text(cluster: str, peer: Peer) -> str:
    """Return the text of a refusal: the cluster that refused, and the one that was refused."""
    realm = f" of realm {peer.identity.other_realm_id}" if peer.other_realm else ""
    return f"cluster {cluster!r} does not serve cluster {peer.identity.cluster!r}{realm} (node {peer.node})"


def paused_text(service: Service) -> str:
    """Return the text of a refusal by a service that is paused."""
    return f"cluster {service.name!r} is paused: {service.paused_by} is set"


@final
class Server(PeerObserver):
    """The answering side of one node: its memberships, and the requests in them.

    Args:
        memberships: the memberships; this object alone changes them.
        bridges: see ``PoolHost.bridges``.
        observer: see ``PoolHost.observer``.
    """

    def __init__(
        self,
        mesh: Mesh,
        relays: Relays,
        books: Bookkeeper,
        memberships: WorkerPools,
        *,
        bridges: Bridges | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.memberships: Final = memberships
        self.config: Final[Config] = mesh.config
        self.reading: Final[InboxReader] = mesh.reading
        self.arriving: Final = Arriving(mesh.refusals, mesh.node, mesh.config)
        self.bridges: Final = bridges
        self.observer: Final = observer
        self._mesh = mesh
        self._account = books.account
        self._jobs: dict[tuple[NodeId, int], PendingRequest] = {}
        self._remembered = ReplyCache()
        mesh.register(kinds.Request, self._receive_request)
        mesh.register(kinds.Cancel, self._receive_cancel)
        mesh.register(kinds.Awaited, self._receive_awaited)
        mesh.register(kinds.Broadcast, self._receive_broadcast)
        mesh.register(kinds.BroadcastCreditWanted, self._receive_credit_wanted)
        # A broadcast to many, and a survey of many.
        relays.register(kinds.Broadcast, partial(self._receive_broadcast, relayed=True))
        relays.register(kinds.Request, self._receive_request)
        relays.register(kinds.Cancel, self._receive_cancel)

    @asynccontextmanager
    async def serve(self, cluster: str, role: Role) -> AsyncIterator[WorkerPool]:
        """Accept requests and broadcasts for a cluster until the block ends.

        Raises:
            ConfigError: this node serves the cluster already, or a process of the handlers cannot be started.
        """
        self._check_free(cluster)
        async with open_background() as nursery:
            self._check_free(cluster)  # another task may have joined it meanwhile
            membership = WorkerPool(cluster, role, nursery, self)
            await membership.open()
            self._check_free(cluster)
            nursery.start_soon(membership.handle_broadcasts)
            nursery.start_soon(membership.broadcasts.run)
            self.memberships[cluster] = membership
            try:
                yield membership
            finally:
                del self.memberships[cluster]
                if membership.weight > 1:  # who joins again begins with 1
                    self.weight_changed(cluster, 1)
                membership.abandon()

    @property
    def in_progress(self) -> Collection[PendingRequest]:
        """Requests that have no outcome yet."""
        return self._jobs.values()

    def _check_free(self, cluster: str) -> None:
        if cluster in self.memberships:
            raise ConfigError(f"this node is a member of the cluster {cluster!r} already")

    # -- what arrives ---------------------------------------------------------------------------------------

    def _receive_request(self, peer: Peer, request: kinds.Request) -> None:
        """Check who asks and what; hand the request to the pool, whose worker has ``answer`` called in the end."""
        identifier, cluster, operation = request.id, request.cluster, request.operation
        headers, payload = request.headers, request.payload
        membership = self.memberships.get(cluster)
        if request.flags & IDEMPOTENT and self._answer_again(peer, identifier, membership, request.budget / 1000):
            return  # also while draining: told that it did not run here, the caller would have it run elsewhere, too
        # First: whether a cluster that is not exported is served here does not show in the answer.
        if not peer.may_ask(cluster):
            self._fail(peer, identifier, NOT_ALLOWED, refusal_text(cluster, peer))
            return
        if membership is None or membership.draining:
            self._fail(peer, identifier, NOT_A_MEMBER if membership is None else DRAINING, "")
            return
        if not membership.service.allows(peer.identity):
            self._fail(peer, identifier, NOT_ALLOWED, refusal_text(cluster, peer))
            return
        if membership.is_paused():
            membership.refuse_paused()
            self._fail(peer, identifier, PAUSED, paused_text(membership.service))
            return
        excess = self.arriving.excess_of(payload, headers)
        if excess is not None:
            self.arriving.refused("request", excess, peer.node, peer.identity.caller, cluster)
            self._fail(peer, identifier, TOO_LARGE, excess.text)
            return
        handler = membership.service.requests.get(operation)
        if operation == DESCRIBE:
            handler = membership.service._describe_to
        if handler is None:
            handler = membership.service.requests.get(EVERY)
        if handler is None:
            wanted = "requests without an operation" if operation is None else f"the operation {operation!r:.130}"
            text = f"cluster {cluster!r} does not serve {wanted}, but: {membership.service._serves()}"
            self._fail(peer, identifier, NO_SUCH_OPERATION, text[:1024])
            return
        try:
            decoded = wire.decode_headers_untrusted(headers) if headers else {}
        except RemoteProtocolError as error:
            membership.received += 1
            self._post(peer, *membership.malformed(peer, identifier, error))
            return
        job = pending(peer, request, handler, decoded, self._mesh.frame_time())
        if job.key is not None and membership.kept is None:
            refusal = not_kept(cluster, identifier)
            membership.received += 1
            membership.refuse_keyed()
            self._post(peer, refusal, len(refusal.text))
            return
        if membership.accept(job):
            self._jobs[peer.node, identifier] = job
        else:
            retry_after = int(membership.retry_after() * 1000)
            self._fail(peer, identifier, OVERLOADED, membership.overload, retry_after_ms=retry_after)

    def _receive_cancel(self, peer: Peer, cancel: kinds.Cancel) -> None:
        job = self._jobs.get((peer.node, cancel.id))
        if job is not None:
            _cancel(job)

    def _receive_awaited(self, peer: Peer, awaited: kinds.Awaited) -> None:
        """Answer a caller that has lost frames: it waits for what runs or waits here, and for nothing else."""
        job = self._jobs.get((peer.node, awaited.id))
        if job is None or job.cancelled:
            self._fail(peer, awaited.id, NOT_HERE, "")
        else:
            job.peer = peer

    def _receive_broadcast(self, peer: Peer, message: kinds.Broadcast, *, relayed: bool = False) -> None:
        cluster, headers, payload, begin = message.cluster, message.headers, message.payload, message.position
        membership = self.memberships.get(cluster)
        decoded, price = wire.decode_headers_untrusted(headers), cost(payload, headers)
        account = self._account(peer.node, BROADCAST, cluster, relayed=relayed)
        account.arrived += 1
        if not peer.may_ask(cluster):  # the same whether it is served here or not, and no credit
            account.refused += 1
            self._mesh.refusals["broadcast not allowed"] += 1
            return
        if membership is None:  # its sender does not know yet that this node has left
            account.ended += 1
            self._mesh.refusals["broadcast for a cluster that is not served here"] += 1
            return
        if not membership.service.allows(peer.identity):
            self._mesh.refusals["broadcast not allowed"] += 1
            membership.broadcasts.refuse(peer.node, account, begin + price)
            return
        if membership.is_paused():
            membership.paused += 1
            membership.broadcasts.refuse(peer.node, account, begin + price)
            return
        sender = Sender(peer.identity.caller, peer.node)
        excess = self.arriving.excess_of(payload, headers)
        if excess is not None:
            self.arriving.refused("broadcast", excess, sender.node, sender.cluster, cluster)
            membership.broadcasts.refuse(peer.node, account, begin + price)
            return
        broadcast = Message(payload=payload, sender=sender, headers=decoded, cluster=cluster)
        membership.broadcasts.accept(broadcast, account, begin, price)

    def _receive_credit_wanted(self, peer: Peer, wanted: kinds.BroadcastCreditWanted) -> None:
        membership = self.memberships.get(wanted.cluster)
        if membership is not None and peer.may_ask(
            wanted.cluster
        ):  # else the sender learns soon that this node has left
            membership.broadcasts.ask(peer.node, wanted.end)

    # -- answering ------------------------------------------------------------------------------------------

    def _answer_again(self, peer: Peer, identifier: int, membership: WorkerPool | None, budget: float) -> bool:
        """Deal with a request that is known already: it runs, or its outcome is sent once more."""
        key = (peer.node, identifier)
        known = self._remembered.find(key)
        if known is not None:
            self._post(peer, known[0], known[1])
        elif (job := self._jobs.get(key)) is not None:
            job.peer = peer
            _end_at(job, trio.current_time() + budget)
        else:
            return False
        if membership is not None:
            membership.repeated += 1
        return True

    def answer(self, job: PendingRequest, reply: Outcome, size: int) -> None:
        """Send the outcome of a job, and remember it if its handler ran and the request may be repeated."""
        if job.flags & IDEMPOTENT and (
            isinstance(reply, kinds.Reply) or reply.retry_after == OF_HANDLER or reply.code not in _DID_NOT_RUN
        ):
            key = (job.peer.node, job.identifier)
            # Before the reply is posted: if the link loses it, the repeat finds it here and the handler does not run
            # again.
            self._remembered.add(key, reply, size, job.deadline, trio.current_time())
        if job.flags & TIMED:
            waited, taken = job.begun - job.arrived, trio.current_time() - job.begun
            with suppress(NotSent):  # it is a note beside the answer
                job.peer.link.post(kinds.Timed(job.identifier, int(waited * 1e6), int(taken * 1e6)), 0)
        self._post(job.peer, reply, size)

    def answer_part(self, job: PendingRequest, part: kinds.Part, size: int) -> None:
        """See ``PoolHost``."""
        try:
            job.peer.link.post(part, size, flush=True)
        except NotSent:  # the caller sees by the others that one is missing
            self._mesh.refusals["reply without room on the link"] += 1

    def _fail(self, peer: Peer, identifier: int, code: str, text: str, *, retry_after_ms: int = 0) -> None:
        self._post(peer, kinds.Failure(identifier, code, text, retry_after_ms), len(text))

    def _post(self, peer: Peer, outcome: Outcome, size: int) -> None:
        try:
            peer.link.post(outcome, size, flush=True)
        except NotSent:
            self._mesh.refusals["reply without room on the link"] += 1
            self._post_shortly(peer, outcome)

    def _post_shortly(self, peer: Peer, outcome: Outcome) -> None:
        """Report at least that there was an outcome: without a deadline its caller would wait for ever."""
        text = "the link to the caller is full: what the handler returned was dropped"
        failure = kinds.Failure(outcome.id, NO_ROOM, text)
        if isinstance(outcome, kinds.Failure):
            failure = kinds.Failure(outcome.id, outcome.code, "", outcome.retry_after)
        with suppress(NotSent):  # nor is there room for that, or the link has ended
            peer.link.post(failure, len(text), CONTROL_RESERVE, flush=True)

    def report_credit(self, node: NodeId, report: kinds.BroadcastCredit) -> bool:
        """See ``CreditReporter``."""
        try:
            self._mesh.post(node, report, len(report.cluster), CONTROL_RESERVE)
        except NotSent:
            return False
        return True

    def forget(self, job: PendingRequest) -> None:
        """See ``PoolHost``."""
        self._jobs.pop((job.peer.node, job.identifier), None)

    def weight_changed(self, cluster: str, weight: int) -> None:
        """See ``PoolHost``."""
        for peer in (self._mesh.own, *self._mesh.peers.values()):
            self._send_weight(peer, cluster, weight)

    def _send_weight(self, peer: Peer, cluster: str, weight: int) -> None:
        if not peer.other_realm and peer.may_ask(cluster):
            with suppress(NotSent):  # the peer is gone, or balances as if this were one member
                peer.link.post(kinds.Weight(cluster, weight), len(cluster), CONTROL_RESERVE)

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def holds(self, node: NodeId) -> bool:
        """Return whether a request of a caller is at work."""
        return any(caller == node for caller, _ in self._jobs)

    def peer_connected(self, peer: Peer) -> None:
        """Let the peer know for how many members this node stands."""
        for cluster, membership in self.memberships.items():
            if membership.weight > 1:
                self._send_weight(peer, cluster, membership.weight)

    def frames_lost(self, peer: Peer) -> None:
        """Send the caller a list of its requests, as frames may be lost: it cancels again what it has cancelled."""
        for (node, identifier), job in list(self._jobs.items()):
            if node == peer.node and not job.cancelled:
                with suppress(NotSent):  # it ends at its deadline
                    peer.link.post(kinds.Running(identifier), 0, CONTROL_RESERVE)
        for membership in self.memberships.values():
            membership.broadcasts.report_again(peer.node)
        self.peer_connected(peer)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """Cancel this caller's requests; those that it may repeat run on for a while, as it may live."""
        for (node, _), job in list(self._jobs.items()):
            if node == peer.node:
                if job.flags & IDEMPOTENT:
                    _end_at(job, min(job.deadline, trio.current_time() + _ORPHANED))
                else:
                    _cancel(job)
        for membership in self.memberships.values():
            membership.broadcasts.forget(peer.node)


def _cancel(job: PendingRequest) -> None:
    job.cancelled = True
    if job.scope is not None:
        job.scope.cancel()


def _end_at(job: PendingRequest, deadline: float) -> None:
    job.deadline = deadline
    if job.scope is not None:
        job.scope.deadline = deadline
