"""Request/reply, caller side: picks one member, sends the request, and retries at another member where that is safe.

A request has one id at every member.  With ``idempotent=True`` members keep the reply under (caller, id), so a repeat
that reaches the same member gets that reply and does not run again.

What ends an attempt, and what follows:

======================================  =========================  ================================
event                                   idempotent                 not idempotent
======================================  =========================  ================================
reply, or error raised by the handler   returned, raised           returned, raised
overloaded, draining, not a member      another member             another member (it did not run)
connection to the member broke          another member             wait; ``Unknown`` if it is gone
frames may be lost                      sent once more             ``Unknown`` if it is not there
member given up                         another member             ``Unknown``
deadline                                ``RequestTimeout``         ``RequestTimeout``
no other member, or four were asked     a pause, then all again    what the last one came to
======================================  =========================  ================================

Where load was the only reason, an idempotent request ends as well: it raises ``Overloaded`` with ``retry_after``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, final

import trio

from iris.cluster.balancing import AtSite
from iris.cluster.mesh import InboxWaiter, Mesh, Peer
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import (
    DeliveryError,
    MemberLost,
    NotAllowed,
    NotSent,
    Overloaded,
    PayloadTooLarge,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
    Unknown,
)
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId, check_address, cluster_of
from iris.kernel.wire import kinds
from iris.patterns.counters import Tally
from iris.patterns.latency import OTHERS, LatencyTable
from iris.patterns.payloads import encoded
from iris.patterns.picker import MemberDirectory, Picker, nobody_serves
from iris.patterns.priority import Priority, served_priority
from iris.patterns.receive_limits import Arriving
from iris.patterns.request.attempt import Attempt, Outcome, budget_of
from iris.patterns.request.deadlines import Deadlines
from iris.patterns.request.hedging import Hedging

IDEMPOTENT: Final = 1
"""Flag of a request: members remember its reply until its deadline."""

PRIORITY_SHIFT: Final = 1
"""The flags hold a ``Priority`` from this bit on."""

TIMED: Final = 8
"""Flag of a request: before its reply the member says how long it waited there and ran."""

OVERLOADED: Final = "overloaded"
DRAINING: Final = "draining"
NOT_A_MEMBER: Final = "not_a_member"
NOT_ALLOWED: Final = "not_allowed"
EXPIRED: Final = "expired"
MEMBER_LEFT: Final = "member_left"
NOT_HERE: Final = "not_here"
NO_SUCH_OPERATION: Final = "no_such_operation"
TOO_LARGE: Final = "too_large"
"""Of a request, or what opens a tunnel: the member's ``Config`` allows less."""

REPLY_TOO_LARGE: Final = "reply_too_large"
REPLY_MALFORMED: Final = "reply_malformed"
"""Codes of the error when a handler has replied, and the asking node cannot take the reply."""

OF_HANDLER: Final = -1
"""In a failure, where the time is after which to try again: the handler ran, and the code is its own."""

_ELSEWHERE: Final = frozenset({OVERLOADED, DRAINING, NOT_A_MEMBER})
"""Failures after which the handler certainly did not run, so that another member may be asked."""

_MAX_ATTEMPTS: Final = 4
"""Members that are asked without a pause."""

_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
"""Seconds until an idempotent request that found nobody is tried again, give or take a half: at first, doubling up to
this.  A member that appears ends the pause."""

_SPREAD: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it lie evenly between whole numbers: requests that were lost together do not come again together."""

_AT_ONCE: Final = 0.001
"""A caller that asks again so many seconds after the last reply, with nothing else outstanding, reads by itself."""


_LOST_REPLIES: Final = {REPLY_MALFORMED: "malformed reply", REPLY_TOO_LARGE: "reply above max_payload"}
"""What requests are counted as of which the reply came, and cannot be given to the caller."""

_BROKEN: Final = "the connection broke"
_GONE: Final = "the member is gone"


@final
class Requests:
    """All outstanding requests of this node."""

    def __init__(self, mesh: Mesh, directory: MemberDirectory, config: Config) -> None:
        self.tally: Final = Tally()
        self.latency: Final = LatencyTable()
        """From asking to the reply, or to the error of the handler, at whichever attempt that was."""
        self.repeated = 0
        """Requests made once more, at another member."""
        self.moved = 0
        """Those of them that the member before may have run: it was lost, silent, or left while it had the request."""
        self.not_repeated = 0
        """Requests not made once more, because too many were; their callers got ``Overloaded``."""
        self._mesh = mesh
        self._directory = directory
        self._config = config
        self._arriving = Arriving(mesh.refusals, mesh.node, config)
        self._ids = itertools.count(1)
        self._waiting: dict[int, Attempt] = {}
        self._follower: Final = InboxWaiter(mesh.reading, hasty=True)
        """Reads for the only outstanding request."""
        self._ended = -math.inf
        self._deadlines = Deadlines(self._waiting, self._expire)
        self._hedges: dict[str, Hedging] = {}
        self._left: dict[int, set[NodeId]] = {}
        """Members that have not answered a request, by its number: they may be asked again, until it ends."""
        self.reach: Callable[[str, float], Awaitable[object]] | None = None
        """Links to members of a cluster at other sites, within a time; set by a node that is at a site."""
        self.gathering: Final[dict[int, Callable[[NodeId, kinds.Reply | kinds.Failure | None], None]]] = {}
        """Who takes what comes of a request that went to many, by its number; None: this member is gone."""
        mesh.register(kinds.Reply, self._receive_reply)
        mesh.register(kinds.Failure, self._receive_failure)
        mesh.register(kinds.Running, self._receive_running)
        mesh.register(kinds.Timed, self._receive_timed)
        mesh.observe(self)

    async def run(self) -> None:
        """Watch over the deadlines; to be run for as long as anything is asked."""
        await self._deadlines.run()

    # -- asking ---------------------------------------------------------------------------------------------

    async def request(
        self,
        cluster: str,
        payload: object,
        *,
        timeout: float,
        idempotent: bool = False,
        operation: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        member: NodeId | None = None,
        prefer: NodeId | AtSite | None = None,
        priority: Priority | None = None,
        hedge: float | None = None,
    ) -> Any:
        """See ``Node.request``.  With ``member`` only that one is asked."""
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        picker = self._directory.picker(cluster)
        if picker is None and member is None and not (idempotent and self._directory.had_members(cluster)):
            check_address(cluster)
            nobody = nobody_serves(cluster, self._mesh, self._directory)
            self._failed(cluster, operation, type(nobody).__name__)
            raise nobody
        # What the caller's own scope leaves is all that the handler may use: nested requests inherit it.
        now = trio.current_time()
        deadline = min(now + timeout, trio.current_effective_deadline())
        flags = IDEMPOTENT if idempotent else 0
        flags |= (served_priority.get() if priority is None else priority) << PRIORITY_SHIFT
        self.tally.sent += 1
        try:
            if hedge is None:
                reply = await self._ask(
                    cluster, body, deadline, timeout, picker, member, flags, operation, key, prefer, flat, set(), now
                )
            else:

                async def ask(tried: set[NodeId]) -> Any:
                    return await self._ask(
                        cluster, body, deadline, timeout, picker, member, flags, operation, key, prefer, flat, tried
                    )

                def has_other(tried: set[NodeId]) -> bool:
                    return picker is not None and len(tried) < _MAX_ATTEMPTS and picker.has_other(tried)

                hedging = self._hedges.setdefault(cluster, Hedging())
                reply = await hedging.ask(ask, hedge, has_other)
        except BaseException as error:
            self.count(error)
            self._measure(cluster, operation, now, error)
            raise
        self.tally.answered += 1
        self._measure(cluster, operation, now)
        return reply

    def begin(
        self,
        cluster: str,
        payload: object,
        woken: Callable[[], None],
        *,
        timeout: float,
        idempotent: bool,
        operation: str | None,
        key: str | None,
        headers: Mapping[str, str] | None,
        prefer: NodeId | AtSite | None,
        priority: Priority | None,
        until: float,
        timed: bool = False,
    ) -> Begun | None:
        """As ``request``, for callers outside of trio's tasks: send the first attempt at once.

        Args:
            woken: called when its outcome is known.
            until: when the time of the caller is over, in trio's time.
            timed: the member is to say how long it takes: ``Attempt.times``.

        Returns:
            None if there is nobody to ask at once: then nothing was begun.

        Raises:
            PayloadTooLarge, LocalProtocolError: see ``request``.
        """
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        picker, now, tried = self._directory.picker(cluster), trio.current_time(), set[NodeId]()
        deadline = min(now + timeout, until)
        member = None if picker is None else picker.pick(exclude=tried, key=key, prefer=prefer, now=now)
        if picker is None or member is None or deadline <= now:
            return None
        flags = IDEMPOTENT if idempotent else 0
        flags |= TIMED if timed else 0
        flags |= (served_priority.get() if priority is None else priority) << PRIORITY_SHIFT
        identifier = next(self._ids)
        self._deadlines.add(deadline, identifier)
        tried.add(member)
        try:
            attempt = self._send(
                identifier, member, cluster_of(cluster), operation, deadline, now, flags, flat, body, picker, tried
            )
        except NotSent:
            return None
        self.tally.sent += 1
        attempt.woken = woken
        self._watch(identifier, attempt, picker)
        ask = partial(
            self._ask, cluster, body, deadline, timeout, picker, None, flags, operation, key, prefer, flat, tried
        )
        return Begun(self, identifier, attempt, picker, now, cluster, ask)

    def decode_reply_untrusted(self, payload: wire.Payload, cluster: str, member: NodeId) -> Any:
        """Return what a member has replied.

        Raises:
            RemoteError: it cannot be read; that is counted.
        """
        try:
            return wire.decode_payload_untrusted(payload)
        except RemoteProtocolError as error:
            self._arriving.malformed("reply", error, member, cluster, None)
            text = f"node {member} of cluster {cluster!r} has replied what cannot be read: {error}"
            raise RemoteError(REPLY_MALFORMED, text) from None

    def number(self) -> int:
        """Return the number for a request of another module."""
        return next(self._ids)

    def count(self, error: BaseException) -> None:
        """Count a request by what its caller got instead of a reply."""
        match error:
            case RequestTimeout() | trio.Cancelled():
                self.tally.expired += 1
            case RemoteError(code=str() as code) if code in _LOST_REPLIES:
                self.tally.lost[_LOST_REPLIES[code]] += 1
            case RemoteError():
                self.tally.answered += 1  # the handler ran
            case Unknown() | MemberLost():
                self.tally.lost[type(error).__name__] += 1
            case DeliveryError() | PayloadTooLarge():
                self.tally.refused += 1
            case _:
                self.tally.lost["unexpected error"] += 1

    def _measure(self, cluster: str, operation: str | None, asked: float, error: BaseException | None = None) -> None:
        if isinstance(error, RemoteError) and error.code == NO_SUCH_OPERATION:
            operation = OTHERS  # a name that nobody serves is anybody's to invent, and would take the place of another
        if error is None or isinstance(error, RemoteError):  # the attempt that was answered has looked at the clock
            self.latency.record(cluster.partition("@")[0], operation, self._ended - asked)
        if error is not None:
            self._failed(cluster, operation, type(error).__name__)

    def _failed(self, cluster: str, operation: str | None, reason: str) -> None:
        self.latency.failed(cluster.partition("@")[0], operation, reason)

    @property
    def hedged(self) -> int:
        """Requests that a second member was asked as well."""
        return sum(hedging.second for hedging in self._hedges.values())

    def check(self, payload: object, headers: Mapping[str, str] | None) -> None:
        """Raise what ``request`` would raise for a payload or headers that cannot be sent."""
        encoded(payload, self._config.max_payload)
        wire.encode_headers(headers, self._config.max_headers)

    async def _ask(
        self,
        cluster: str,
        payload: wire.Payload,
        deadline: float,
        timeout: float,
        picker: Picker | None,
        only: NodeId | None,
        flags: int,
        operation: str | None,
        key: str | None,
        prefer: NodeId | AtSite | None,
        headers: wire.Headers,
        tried: set[NodeId],
        now: float | None = None,
        first: Begun | None = None,
    ) -> Any:
        if first is None:
            identifier = next(self._ids)
            self._deadlines.add(deadline, identifier)
        else:  # its outcome is known
            identifier = first.identifier
        name = cluster_of(cluster)  # at which site is of no interest to the member
        idempotent = bool(flags & IDEMPOTENT)
        failure: DeliveryError | None = None
        lost: MemberLost | None = None
        """Of the last member that may have run it."""
        rounds = 0
        """Pauses so far."""
        mine: set[NodeId] = set()
        """Those of ``tried`` that were asked here since the last pause: a hedged request is asked from two tasks."""
        member: NodeId | None
        outcome: Outcome | None
        try:
            while True:
                if first is not None:
                    member = first.attempt.member
                    outcome, first = first.attempt.outcome, None
                    tried.add(member)
                    mine.add(member)
                else:
                    if now is None:  # a look takes 1 us
                        now = trio.current_time()
                    if now >= deadline:
                        break
                    member = None
                    if only is not None:
                        member = None if len(tried) else only
                    elif picker is not None and len(tried) < _MAX_ATTEMPTS:
                        member = picker.pick(exclude=tried, key=key, prefer=prefer, now=now)
                    if member is not None and failure is not None and picker is not None:
                        # What did not run because of the load is repeated only as far as the load allows; what was lost
                        # always, at first.
                        if picker.may_repeat(now, forced=not (rounds or isinstance(failure, Overloaded))):
                            self.repeated += 1
                            self.moved += isinstance(failure, MemberLost)
                        elif rounds or lost is not None:
                            member = None
                        else:
                            self.not_repeated += 1
                            break
                    if member is None:
                        if only is not None or not idempotent or (lost is None and isinstance(failure, Overloaded)):
                            break
                        if failure is None and not self._directory.had_members(cluster):
                            break
                        pause: float = min(_PAUSE * 2 ** min(rounds, 8), _LONGEST_PAUSE) * (
                            0.5 + identifier * _SPREAD % 1
                        )
                        rounds += 1
                        picker = await self._pause(cluster, tried, min(deadline, now + pause))
                        tried.difference_update(mine)
                        mine.clear()
                        now = None
                        continue
                    tried.add(member)
                    mine.add(member)
                    try:
                        waiter = self._send(
                            identifier, member, name, operation, deadline, now, flags, headers, payload, picker, tried
                        )
                    except NotSent as error:
                        # The link did not take the request, so it did not run: any request may go to another member.
                        failure, now = error, None
                        continue
                    # From here on the request may have been run. Unless this member refuses it, only idempotent=True
                    # sends it again.
                    outcome = await self._wait(identifier, waiter, now, deadline, picker)
                now = None
                if outcome is None:
                    raise await self._timed_out(cluster, timeout, lost or failure)
                if isinstance(outcome, kinds.Reply):
                    return self.decode_reply_untrusted(outcome.payload, cluster, member)
                if isinstance(outcome, kinds.Failure):
                    if outcome.code == TOO_LARGE and outcome.retry_after >= 0:
                        raise too_large(cluster, outcome.text)
                    failure = failure_of(cluster, member, outcome.code, outcome.text, outcome.retry_after)
                    # The handler ran, and this is its own error: another member would only run it a second time.
                    if outcome.retry_after < 0:
                        raise failure
                    if outcome.code == MEMBER_LEFT and idempotent:
                        failure = lost = MemberLost(f"node {member} left the cluster {cluster!r} while the request ran")
                    elif outcome.code not in _ELSEWHERE:
                        raise failure
                else:
                    # The member had the request when it was lost: nobody can say how far it ran.
                    failure = lost = MemberLost(f"node {member}, a member of {cluster!r}, was lost: {outcome}")
                    if not idempotent:
                        raise Unknown(
                            f"node {member} of cluster {cluster!r} was lost while it had the request: it ran never "
                            "or once; use idempotent=True to have such requests repeated"
                        )
        finally:
            self._cancel_left(identifier)
        if failure is None and (rounds or now < deadline):
            await trio.lowlevel.checkpoint()  # it may be the end of the caller's own scope
            raise nobody_serves(cluster, self._mesh, self._directory)
        if now >= deadline:
            raise await self._timed_out(cluster, timeout, lost or failure)
        assert failure is not None
        if lost is not None and failure is not lost:  # that the last one refused does not mean that it did not run
            raise lost from failure
        raise failure

    async def _timed_out(self, cluster: str, timeout: float, failure: DeliveryError | None) -> RequestTimeout:
        """Return the error of a request whose time is over.

        It may be the end of the caller's own scope: then that ends the caller, and not an error.
        """
        await trio.lowlevel.checkpoint()
        error = RequestTimeout(
            f"no reply from cluster {cluster!r} within {timeout:g} s" + ("" if failure is None else f"; {failure}")
        )
        error.__cause__ = failure
        return error

    async def _pause(self, cluster: str, tried: set[NodeId], until: float) -> Picker | None:
        """Wait for a member that was not asked yet, until a time, and return the picker then."""
        directory = self._directory
        with trio.move_on_at(until):
            while True:
                await directory.wait_news()
                picker = directory.picker(cluster)
                if picker is not None and picker.has_other(tried):
                    break
        if self.reach is not None:
            await self.reach(cluster, max(until - trio.current_time(), _PAUSE))
        return directory.picker(cluster)

    def _send(
        self,
        identifier: int,
        member: NodeId,
        cluster: str,
        operation: str | None,
        deadline: float,
        now: float,
        flags: int,
        headers: wire.Headers,
        payload: wire.Payload,
        picker: Picker | None,
        tried: set[NodeId],
    ) -> Attempt:
        """Send one attempt.

        Raises:
            NotSent: the link does not take it, so it does not run.
        """
        message = kinds.Request(identifier, cluster, operation, budget_of(deadline - now), flags, headers, payload)
        size = wire.payload_size(payload)
        if headers is not None:
            size += wire.headers_size(headers)
        idempotent = bool(flags & IDEMPOTENT)
        attempt = Attempt(member, message, size, deadline, idempotent=idempotent, picker=picker, tried=tried)
        self._mesh.post(member, message, size, flush=True)
        return attempt

    async def _wait(
        self, identifier: int, waiter: Attempt, started: float, deadline: float, picker: Picker | None
    ) -> Outcome | None:
        """Wait for the outcome of one attempt; None when the deadline passed.

        However it ends, the member gets a CANCEL when the request ends, unless it has answered, and nothing stays
        registered.  The CANCEL is not sent earlier: asked once more, the member has the request running or its outcome.
        """
        self._watch(identifier, waiter, picker)
        try:
            alone = len(self._waiting) == 1
            self._follower.keen = alone and started - self._ended < _AT_ONCE
            await waiter.wait(self._follower if alone else None)
        finally:
            self._unwatch(identifier, waiter, started, deadline, picker)
        return waiter.outcome

    def _watch(self, identifier: int, waiter: Attempt, picker: Picker | None) -> None:
        self._waiting[identifier] = waiter
        if picker is not None:
            picker.started(waiter.member)

    def _unwatch(
        self, identifier: int, waiter: Attempt, started: float, deadline: float, picker: Picker | None
    ) -> None:
        del self._waiting[identifier]
        outcome = waiter.outcome
        replied = isinstance(outcome, kinds.Reply)
        answered = replied or isinstance(outcome, kinds.Failure)
        now = self._ended = trio.current_time()
        if picker is not None:
            silent = outcome is None and now >= deadline
            picker.finished(
                waiter.member, now - started, ok=replied, answered=answered or (False if silent else None), now=now
            )
        if not answered:
            self._left.setdefault(identifier, set()).add(waiter.member)

    def _cancel_left(self, identifier: int) -> None:
        for left in self._left.pop(identifier, ()):
            self._cancel(identifier, left)

    def _expire(self, identifier: int) -> None:
        waiter = self._waiting[identifier]
        if waiter.outcome is None:
            waiter.end(None)

    def _cancel(self, identifier: int, member: NodeId) -> None:
        try:
            self._mesh.post(member, kinds.Cancel(identifier), 0, CONTROL_RESERVE)
        except NotSent:
            return  # a member without room on its link is being given up

    # -- what arrives ---------------------------------------------------------------------------------------

    def _receive_reply(self, peer: Peer, reply: kinds.Reply) -> None:
        payload = reply.payload
        size = len(payload) if type(payload) is bytes else wire.payload_size(payload)
        if size > self._arriving.max_payload:
            excess = self._arriving.payload_excess(size)
            self._arriving.refused("reply", excess, peer.node, peer.identity.caller, None)
            self._end(peer, kinds.Failure(reply.id, REPLY_TOO_LARGE, excess.text, OF_HANDLER))
        else:
            self._end(peer, reply)

    def _receive_failure(self, peer: Peer, failure: kinds.Failure) -> None:
        # That the time is over is seen here, by the caller's own clock.
        if failure.code != EXPIRED or failure.retry_after < 0:
            self._end(peer, failure)

    def _receive_running(self, peer: Peer, running: kinds.Running) -> None:
        identifier = running.id
        waiter = self._waiting.get(identifier)
        if waiter is not None and waiter.member == peer.node:
            return
        if identifier not in self.gathering and peer.node not in self._left.get(identifier, ()):
            self._cancel(identifier, peer.node)

    def _receive_timed(self, peer: Peer, message: kinds.Timed) -> None:
        attempt = self._waiting.get(message.id)
        if attempt is not None and attempt.member == peer.node:
            attempt.times = message.waited / 1e6, message.ran / 1e6

    def _end(self, peer: Peer, outcome: kinds.Reply | kinds.Failure) -> None:
        waiter = self._waiting.get(outcome.id)
        # A reply that comes late, twice, or from a member that was not asked last has nobody to wake.
        if waiter is not None:
            if waiter.member == peer.node and waiter.outcome is None:
                waiter.end(outcome)
        elif outcome.id in self.gathering:
            self.gathering[outcome.id](peer.node, outcome)

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """Nothing waits for a node to appear."""

    def frames_lost(self, peer: Peer) -> None:
        """Frames may be lost: idempotent requests go out again; the member knows those it has.

        Of the others it is asked whether they are there: a reply that was lost would be waited for until the deadline,
        and without a deadline for ever.
        """
        now = trio.current_time()
        for identifier, waiter in list(self._waiting.items()):
            if waiter.member != peer.node or waiter.outcome is not None or waiter.deadline <= now:
                continue
            try:
                if waiter.idempotent:
                    peer.link.post(waiter.retransmission(now), waiter.size)
                else:
                    peer.link.post(kinds.Awaited(identifier), 0, CONTROL_RESERVE)
            except NotSent:
                waiter.end(_BROKEN)
        for identifier in self.gathering:  # who was not asked, or has answered, is not listened to
            with suppress(NotSent):
                peer.link.post(kinds.Awaited(identifier), 0, CONTROL_RESERVE)

    def peer_unreachable(self, node: NodeId) -> None:
        """Idempotent requests are asked elsewhere at once if they can; the others wait for what becomes of the member.

        So do all, if the member is at another site and there is another route: it knows the requests that it has.
        """
        peer = self._mesh.peer(node)
        if peer is not None and peer.returning:
            return
        for waiter in list(self._waiting.values()):
            if waiter.member == node and waiter.can_retry_elsewhere():
                waiter.end(_BROKEN)

    def peer_removed(self, peer: Peer, reason: str) -> None:  # noqa: ARG002 -- the reason is in the link's own errors
        """No outcome will come from this member any more."""
        for waiter in list(self._waiting.values()):
            if waiter.member == peer.node and waiter.outcome is None:
                waiter.end(_GONE)
        for take in list(self.gathering.values()):
            take(peer.node, None)


@final
class Begun:
    """A request whose first attempt is on its way, for callers outside of trio's tasks.  Made by ``Requests.begin``.

    Once ``woken`` was called ``reply`` ends it, or if there is none ``go_on``; and ``abandon`` at any time.
    """

    __slots__ = (
        "_ask", "_cluster", "_is_counted", "_is_settled", "_picker", "_requests", "_started", "attempt", "identifier",
    )  # fmt: skip

    def __init__(
        self,
        requests: Requests,
        identifier: int,
        attempt: Attempt,
        picker: Picker,
        started: float,
        cluster: str,
        ask: Callable[[None, Begun], Awaitable[Any]],
    ) -> None:
        self._requests = requests
        self._picker = picker
        self._started = started
        self._cluster = cluster
        self._ask = ask
        self._is_settled = self._is_counted = False
        self.identifier = identifier
        self.attempt = attempt

    def _settle(self) -> None:
        if not self._is_settled:
            self._is_settled = True
            attempt = self.attempt
            self._requests._unwatch(self.identifier, attempt, self._started, attempt.deadline, self._picker)

    def abandon(self) -> None:
        """The caller was cancelled, or cannot go on.  Of a request that has ended nothing is left to abandon."""
        self._settle()
        self._requests._cancel_left(self.identifier)
        if not self._is_counted:
            self._is_counted = True
            self._requests.tally.expired += 1
            self._requests._failed(self._cluster, self.attempt.message.operation, "Cancelled")

    def reply(self) -> tuple[Any] | None:
        """Return the reply; None if there is none, and ``go_on`` says what becomes of the request.

        Raises:
            RemoteError: it cannot be read.
        """
        self._settle()
        outcome, requests = self.attempt.outcome, self._requests
        if not isinstance(outcome, kinds.Reply):
            return None
        self._is_counted = True
        operation = self.attempt.message.operation
        requests._measure(self._cluster, operation, self._started)
        try:
            reply = requests.decode_reply_untrusted(outcome.payload, self._cluster, self.attempt.member)
        except RemoteError as error:
            requests.count(error)
            requests._failed(self._cluster, operation, type(error).__name__)
            raise
        requests.tally.answered += 1
        return (reply,)

    async def go_on(self) -> Any:
        """Do what follows the first attempt: try another member, or raise; see ``Requests.request``."""
        self._is_counted = True
        requests, operation = self._requests, self.attempt.message.operation
        try:
            reply = await self._ask(None, self)
        except BaseException as error:
            requests.count(error)
            requests._measure(self._cluster, operation, self._started, error)
            raise
        requests.tally.answered += 1
        requests._measure(self._cluster, operation, self._started)
        return reply


def too_large(cluster: str, text: str) -> PayloadTooLarge:
    """Return the error of what is too large for the member that it was sent to, which has answered ``text``."""
    return PayloadTooLarge(f"cluster {cluster!r} refuses {text}; send larger things through a tunnel")


def failure_of(cluster: str, member: NodeId, code: str, text: str, retry_after_ms: int) -> DeliveryError:
    """Return the error that a member's answer stands for."""
    if retry_after_ms < 0:
        return RemoteError(code, text)
    match code:
        case "overloaded":
            return Overloaded(
                f"cluster {cluster!r} is overloaded (node {member}: {text})", retry_after=retry_after_ms / 1000
            )
        case "draining" | "not_a_member":
            return NotSent(f"node {member} no longer serves the cluster {cluster!r}")
        case "member_left":
            return Unknown(
                f"node {member} left the cluster {cluster!r} while the request ran: it ran in part or not at all; use "
                "idempotent=True to have such requests repeated"
            )
        case "not_here":
            return Unknown(
                f"node {member} of cluster {cluster!r} does not have the request (any more), and no reply has come: it "
                "ran never or once; use idempotent=True to have such requests repeated"
            )
        case "not_allowed":
            return NotAllowed(text)
        case _:
            return RemoteError(code, text)
