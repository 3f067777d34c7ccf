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
member silent, its process lives        another one, once          wait; ``Unknown`` if it is gone
member blocked by this very request     wait; ``MemberLost``       wait; ``Unknown`` if it is gone
frames may be lost                      sent once more             ``Unknown`` if it is not there
member given up                         another member             ``Unknown``
deadline                                ``RequestTimeout``         ``RequestTimeout``
no other member, or four were asked     a pause, then all again    what the last one came to
all members have fallen silent          a pause, then all again    the same, as long as it was sent to none
======================================  =========================  ================================

Where load was the only reason, an idempotent request ends as well: it raises ``Overloaded`` with ``retry_after``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, final

import trio

from iris.cluster.balancing import AtSite
from iris.cluster.mesh import InboxWaiter, Mesh, Peer, PeerObserver
from iris.cluster.sites import Reach, reach_one
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import (
    DeliveryError,
    IrisError,
    MemberLost,
    NotAllowed,
    NotSent,
    Overloaded,
    PayloadTooLarge,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
    Unknown,
    keep_in_realm,
)
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId, check_address, cluster_of
from iris.kernel.tasks import effective_deadline
from iris.kernel.transport import is_acknowledged
from iris.kernel.wire import kinds
from iris.patterns.books import BookRow, LedgerRow, SendLedger, Tally
from iris.patterns.latency import OTHERS, LatencySeries, LatencyTable
from iris.patterns.observer import Pattern
from iris.patterns.payloads import encoded
from iris.patterns.picker import MemberDirectory, nobody_serves
from iris.patterns.priority import Priority, served_priority
from iris.patterns.receive_limits import Arriving
from iris.patterns.request.attempt import Attempt
from iris.patterns.request.blocked import BlockedMembers, check_blocked, described, log_blocked, place_in
from iris.patterns.request.call import IDEMPOTENCY_KEY, IDEMPOTENT, KEYED, PRIORITY_SHIFT, TIMED, Call
from iris.patterns.request.deadlines import Deadlines
from iris.patterns.request.hedging import Hedging

OVERLOADED: Final = "overloaded"
DRAINING: Final = "draining"
NOT_A_MEMBER: Final = "not_a_member"
NOT_ALLOWED: Final = "not_allowed"
PAUSED: Final = "paused"
"""Code of the refusal while a flag has the members refuse everything; see ``Service``."""
EXPIRED: Final = "expired"
MEMBER_LEFT: Final = "member_left"
NOT_HERE: Final = "not_here"
IN_DOUBT: Final = "in_doubt"
"""A member was lost in the middle of a request with an idempotency key, and it is not run again."""
NO_SUCH_OPERATION: Final = "no_such_operation"
TOO_LARGE: Final = "too_large"
"""Code of the refusal of a request or tunnel that is larger than the member's ``Config`` allows."""

REPLY_TOO_LARGE: Final = "reply_too_large"
REPLY_MALFORMED: Final = "reply_malformed"
"""Codes of the error when a handler has replied, and the asking node cannot accept the reply."""

OF_HANDLER: Final = -1
"""``retry_after`` of a failure that a handler raised: it ran, and the code is its own."""

ELSEWHERE: Final = frozenset({OVERLOADED, DRAINING, NOT_A_MEMBER})
"""Refusals of a request or tunnel after which the handler did not run, so that another member may be asked."""

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
"""Reasons under which requests count as lost whose reply came, and cannot be given to the caller."""

_MOST_STUCK: Final = 1
"""Members from which an idempotent request is taken away that live and fall silent while they have it, or die after it
has blocked them.  One may be an accident.  When the next one does the same, it may be the request."""

_SPEAKS: Final = 0.5
"""Seconds that requests stay at a member which lives and is silent, from when that is noticed.  If it is blocked it has
said by then which request blocks it."""

_BROKEN: Final = "the connection broke"
_SILENT: Final = "answers nothing, though its process lives and its system takes what is sent: it is stopped or blocked"
_OWN: Final = ", at work on this request"
_NOT_CARRIED: Final = "so no further member was asked, which it might block as well"
_CLOSED: Final = "this node was closed"
_REPEATED: Final = "; use options=iris.RequestOptions(idempotent=True) to have such requests repeated"
_GONE: Final = "the member is gone"


_ACCOUNTS: Final = 4096


@final
class _Account(NamedTuple):
    """The row in the books and the latencies of one cluster, operation and member, found in one look."""

    row: LedgerRow
    series: LatencySeries


@final
class Requests(PeerObserver):
    """All outstanding requests of this node.

    Args:
        reach: links members before they are asked once more.  None if all are linked.
    """

    def __init__(
        self,
        mesh: Mesh,
        directory: MemberDirectory,
        config: Config,
        ledger: SendLedger,
        reach: Reach | None = None,
    ) -> None:
        self.tally: Final = Tally()
        self.latency: Final = LatencyTable()
        """Seconds from asking to the reply, or to the error of the handler, at whichever attempt that was."""
        self.repeated = 0
        """Requests made once more, at another member."""
        self.moved = 0
        """Repeated requests that the member before may have run: it was lost, silent, or left while it had them."""
        self.not_repeated = 0
        """Requests not made once more, because too many were; their callers got ``Overloaded``."""
        self.fallbacks: Final[Counter[str]] = Counter()
        """Requests whose callers got a value in the place of an error, by the error."""
        self._mesh = mesh
        self._directory = directory
        self._config = config
        self._ledger = ledger
        self._reach = reach
        self._begun: dict[Call, int] = {}
        """Requests without an outcome, and at how many members; without those whose first attempt waits."""
        self._arriving = Arriving(mesh.refusals, mesh.node, config)
        self._ids = itertools.count(1)
        self._waiting: dict[int, Attempt] = {}
        self._follower: Final = InboxWaiter(mesh.reading, hasty=True)
        """Reader of the inbox for the only outstanding request."""
        self._ended = -math.inf
        self._is_closed = False
        self._accounts: dict[tuple[Pattern, str, str | None, NodeId], _Account] = {}
        """Counters of requests that have a reply, by pattern, cluster, operation and member."""
        self._deadlines = Deadlines(self._waiting, self._expire)
        self._hedges: dict[str, Hedging] = {}
        self._left: dict[int, set[NodeId]] = {}
        """Members that have not answered a request, by its number: they may be asked again, until it ends."""
        self._blocked: Final = BlockedMembers()
        self._silent: dict[NodeId, int] = {}
        """Members that live and say nothing, with the number of frames that had come from each."""
        self._doubted = Deadlines(self._waiting, self._leave)
        self.gathering: Final[dict[int, Callable[[NodeId, kinds.Reply | kinds.Failure | kinds.Part | None], None]]] = {}
        """Receivers of the outcomes of requests that went to many, by number; None: this member is gone."""
        mesh.register(kinds.Reply, self._receive_reply)
        mesh.register(kinds.Failure, self._receive_failure)
        mesh.register(kinds.Running, self._receive_running)
        mesh.register(kinds.Timed, self._receive_timed)
        mesh.register(kinds.Part, self._receive_part)
        mesh.register(kinds.Blocked, self._receive_blocked)

    async def run(self) -> None:
        """Watch over the deadlines; to be run for as long as anything is asked."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._doubted.run)
            await self._deadlines.run()

    def close(self) -> None:
        """End all attempts: no outcome will come any more, and nobody is asked again."""
        self._is_closed = True
        for attempt in list(self._waiting.values()):
            if attempt.outcome is None:
                attempt.end(_CLOSED)

    # -- asking ---------------------------------------------------------------------------------------------

    def call(
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
        until: float | None = None,
        timed: bool = False,
        idempotency_key: str | None = None,
    ) -> Call:
        """Encode a request; see ``Node.request``.

        Args:
            member: the only member to ask.
            until: deadline of the caller, in trio's time; None for the deadline of the task's scope.
            timed: have the member report how long it takes: ``Attempt.times``.
            idempotency_key: key under which the outcome is kept.

        Raises:
            PayloadTooLarge, LocalProtocolError: the payload or the headers cannot be sent.
        """
        most = self._config.max_payload
        body = payload if type(payload) is bytes and len(payload) <= most else encoded(payload, most)
        if idempotency_key is not None:
            headers = {**(headers or {}), IDEMPOTENCY_KEY: idempotency_key}
        flat, size = None, len(body) if type(body) is bytes else wire.payload_size(body)
        if headers:
            flat = wire.encode_headers(headers, self._config.max_headers)
            size += wire.headers_size(flat)
        flags = (served_priority.get() if priority is None else priority) << PRIORITY_SHIFT
        if idempotent:
            flags |= IDEMPOTENT
        if timed:
            flags |= TIMED
        if idempotency_key is not None:
            flags |= IDEMPOTENT | KEYED
        # What the caller's own scope leaves is all that the handler may use: nested requests inherit it.
        now = trio.current_time()
        deadline = min(now + timeout, effective_deadline() if until is None else until)
        label = cluster.partition("@")[0] if "@" in cluster else cluster
        return Call(
            cluster, cluster_of(label), label, body, flat, size, operation, key, prefer, member, flags, timeout, now,
            deadline, self._directory.picker(cluster), set(),
        )  # fmt: skip

    async def request(self, call: Call, hedge: float | None = None) -> Any:
        """Make a request and return the reply; see ``Node.request``."""
        if (
            call.picker is None
            and call.only is None
            and not (call.idempotent and self._directory.had_members(call.cluster))
            and not self._directory.awaits_successor(call.cluster)
        ):
            check_address(call.cluster)
            nobody = nobody_serves(call.cluster, self._mesh, self._directory)
            self.latency.failed(call.label, call.operation, type(nobody).__name__)
            raise nobody
        self.tally.sent += 1
        first: Attempt | None = None
        try:
            if hedge is None:
                # What nearly every request comes to: one member, which replies.
                refused: NotSent | None = None
                try:
                    first = self._first(call)
                except NotSent as error:
                    refused = error
                if first is not None:
                    try:
                        if not first.is_over:  # as of a node that asks itself
                            await self._wait(first)
                    finally:
                        self._unwatch(first)
                    outcome = first.outcome
                    if isinstance(outcome, kinds.Reply):
                        reply = outcome.payload
                        if type(reply) is not bytes:
                            reply = self.decode_reply_untrusted(reply, call.cluster, first.member)
                        self._answered(call)
                        return reply
                self._begun[call] = 1
                reply = await self._ask(call, first=first, refused=refused)
            else:
                self._begun[call] = 1
                hedging = self._hedges.setdefault(call.cluster, Hedging())
                reply = await hedging.ask(lambda: self._ask(call), hedge, lambda: self._may_hedge(call))
        except BaseException as error:
            if first is not None:
                self._cancel_left(first.identifier)
            self._failed(call, error)
            raise
        self._answered(call)
        return reply

    def begin(self, call: Call, woken: Callable[[], None]) -> Begun | None:
        """Send the first attempt of a request at once, for a caller that is no task of trio.

        Args:
            call: the request.
            woken: called when the outcome of the attempt is known.

        Returns:
            None if there is nobody to ask at once: then nothing was begun.
        """
        try:
            attempt = self._first(call, woken)
        except NotSent:
            return None
        if attempt is None:
            return None
        self.tally.sent += 1
        return Begun(self, attempt)

    def _first(self, call: Call, woken: Callable[[], None] | None = None) -> Attempt | None:
        """Send a request that was made just now to a first member; None if there is none to ask at once.

        Raises:
            NotSent: the link to the member refuses it.
        """
        now, picker = call.started, call.picker
        if picker is None or call.only is not None or call.deadline <= now or self._is_closed:
            return None
        member = picker.pick(key=call.key, prefer=call.prefer, now=now)
        if member is None:
            return None
        return self._send(call, next(self._ids), member, now, woken)

    def _wait(self, attempt: Attempt) -> Awaitable[object]:
        """Return the wait for the outcome of an attempt, to be awaited at once."""
        alone = len(self._waiting) == 1
        self._follower.keen = alone and attempt.started - self._ended < _AT_ONCE
        return attempt.wait(self._follower if alone else None)

    def decode_reply_untrusted(self, payload: wire.Payload, cluster: str, member: NodeId) -> Any:
        """Return the reply of a member; raise RemoteError, and count that, if it cannot be read."""
        try:
            return wire.decode_payload_untrusted(payload)
        except RemoteProtocolError as error:
            self._arriving.malformed("reply", error, member, cluster, None)
            text = f"node {member} of cluster {cluster!r} has replied what cannot be read: {error}"
            raise RemoteError(REPLY_MALFORMED, text) from None

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their outcomes, and of surveys that gather replies."""
        return len(self._waiting) + len(self.gathering)

    def number(self) -> int:
        """Return the number for a request of another module."""
        return next(self._ids)

    def opened(self, call: Call, members: int = 1) -> None:
        """Count a request to so many members, each of which is to be counted by its outcome as well."""
        self.tally.sent += members
        self._begun[call] = members

    def answered(self, call: Call, member: NodeId) -> None:
        """Count a request whose caller got the reply of a member."""
        self.tally.answered += 1
        self._closed(call, member).received += 1

    def failed(self, call: Call, member: NodeId, error: BaseException) -> None:
        """Count a request by the error that its caller got."""
        if isinstance(error, RequestTimeout | trio.Cancelled | trio.ClosedResourceError):
            self.expire(call, member)
            return
        tally, row = self.tally, self._closed(call, member)
        reason: str | None = None
        match error:
            case RemoteError(code=str() as code) if code in _LOST_REPLIES:
                reason = _LOST_REPLIES[code]
            case RemoteError():
                tally.answered += 1  # the handler ran
                row.received += 1
            case Unknown() | MemberLost():
                reason = type(error).__name__
            case DeliveryError() | PayloadTooLarge():
                tally.refused += 1
                row.refused += 1
            case _:
                reason = "unexpected error"
        if reason is None:
            return
        tally.lost[reason] += 1
        if isinstance(error, MemberLost | Unknown) and member and self._mesh.peer(member) is None:
            row.in_doubt += 1  # it is gone, and may have had the request in hand
        else:
            row.lose(reason)

    def expire(self, call: Call, member: NodeId) -> None:
        """Count a request that nobody waits for any more."""
        self.tally.expired += 1
        self._closed(call, member).expired += 1

    def _closed(self, call: Call, member: NodeId) -> LedgerRow:
        """Close a request to a member that has its outcome; return the row in the books that it counts in."""
        begun = self._begun.pop(call, 1)
        if begun > 1:
            self._begun[call] = begun - 1
        return self._ledger.row(call.pattern, call.name, member)

    def in_progress(self) -> list[BookRow]:
        """Return what has no outcome yet, for the books: the receiver of a request is known when it has its reply."""
        waiting: Counter[tuple[Pattern, str]] = Counter()
        for call, count in self._begun.items():
            waiting[call.pattern, call.name] += count
        for call in {attempt.call for attempt in self._waiting.values()} - self._begun.keys():
            waiting[call.pattern, call.name] += 1
        return [
            BookRow(
                pattern=pattern, name=name, receiver=None, sent=count, received=0, expired=0, refused=0, lost={},
                in_doubt=0, waiting=count,
            )
            for (pattern, name), count in waiting.items()
        ]  # fmt: skip

    def _answered(self, call: Call) -> None:
        """Count a request that has its reply, and how long that took: the answered attempt has read the clock."""
        self.tally.answered += 1
        if self._begun:
            self._begun.pop(call, None)
        key = call.pattern, call.name, call.operation, call.asked
        account = self._accounts.get(key)
        if account is None or account.row.is_former:
            if len(self._accounts) >= _ACCOUNTS:
                self._accounts.clear()
            row = self._ledger.row(call.pattern, call.name, call.asked)
            series = self.latency.series(call.label, call.operation)
            account = self._accounts[key] = _Account(row, series)
        account.row.received += 1
        account.series.record(self._ended - call.started)

    def _failed(self, call: Call, error: BaseException) -> None:
        """Count a request by its error; if that is its handler's, also how long that took."""
        operation = call.operation
        self.failed(call, call.asked, error)
        if isinstance(error, RemoteError) and error.code == NO_SUCH_OPERATION:
            operation = OTHERS  # a name that nobody serves is anybody's to invent, and would displace another
        self.latency.failed(call.label, operation, type(error).__name__)
        if isinstance(error, RemoteError):
            error.received = True
            self.latency.series(call.label, operation).record(self._ended - call.started)

    @property
    def hedged(self) -> int:
        """Requests that a second member was asked as well."""
        return sum(hedging.second for hedging in self._hedges.values())

    async def _ask(self, call: Call, first: Attempt | None = None, refused: NotSent | None = None) -> Any:
        """Ask one member after the other until one has the reply.

        Args:
            call: the request.
            first: attempt that was made already, and has its outcome.
            refused: why the link to the first member did not take it, if there was one.
        """
        cluster, tried = call.cluster, call.tried
        identifier = next(self._ids) if first is None else first.identifier
        failure: IrisError | None = refused
        lost: MemberLost | None = None
        """Loss of the last member that may have run it."""
        rounds, now = 0, call.started
        """Pauses so far, and when this was last looked at."""
        mine: set[NodeId] = set() if refused is None else set(tried)
        """Members of ``tried`` asked here since the last pause: a hedged request is asked from two tasks."""
        try:
            while True:
                if first is not None:
                    attempt, first = first, None
                    member = attempt.member
                    mine.add(member)
                elif self._is_closed:  # no member is linked any more, and none will be
                    raise _closed()
                else:
                    now = trio.current_time()
                    if now >= call.deadline:
                        break
                    choice: NodeId | None = None  # nobody is left, or enough were asked
                    if call.only is not None:
                        choice = None if tried else call.only
                    elif call.picker is not None and len(tried) < _MAX_ATTEMPTS:
                        choice = call.picker.pick(exclude=tried, key=call.key, prefer=call.prefer, now=now)
                        if choice is None and tried and await self._has_linked_another(call):
                            continue
                    if choice is not None and failure is not None and call.picker is not None:
                        # What did not run because of the load is repeated only as far as the load allows; what was lost
                        # always, at first.
                        if call.picker.may_repeat(now, forced=not (rounds or isinstance(failure, Overloaded))):
                            self.repeated += 1
                            self.moved += isinstance(failure, MemberLost)
                        elif rounds or lost is not None:
                            choice = None
                        else:
                            self.not_repeated += 1
                            break
                    if choice is None:
                        if not self._waits_for_member(call, failure, lost):
                            break
                        pause = min(_PAUSE * 2 ** min(rounds, 8), _LONGEST_PAUSE) * (0.5 + identifier * _SPREAD % 1)
                        rounds += 1
                        await self._pause(call, min(call.deadline, now + pause))
                        tried.difference_update(mine)
                        mine.clear()
                        continue
                    member = choice
                    mine.add(member)
                    try:
                        attempt = self._send(call, identifier, member, now)
                        # From here on the request may have been run. Unless this member refuses it, only a request
                        # with idempotent=True is sent again.
                        try:
                            if not attempt.is_over:
                                await self._wait(attempt)
                        finally:
                            # However it ends, nothing stays registered.  The member gets its CANCEL when the request
                            # ends, not here: asked once more, it has the request running or its outcome.
                            self._unwatch(attempt)
                    except NotSent as error:
                        # The link did not accept the request, so it did not run: any request may go to another member.
                        failure = error
                        continue
                outcome = attempt.outcome
                if outcome is None:
                    trouble = self._trouble(attempt, silent=self._is_silent(member))
                    raise await self._timed_out(call, lost or failure, trouble, attempt.place)
                if isinstance(outcome, kinds.Reply):
                    return self.decode_reply_untrusted(outcome.payload, cluster, member)
                if isinstance(outcome, kinds.Failure):
                    failure = failure_of(cluster, member, outcome)
                    # The handler ran, and this is its own error: another member would only run it a second time.
                    if outcome.retry_after < 0:
                        raise failure
                    if outcome.code == MEMBER_LEFT and call.idempotent:
                        failure = lost = MemberLost(f"node {member} left the cluster {cluster!r} while the request ran")
                    elif outcome.code not in ELSEWHERE:
                        raise failure
                elif outcome is _CLOSED:
                    raise _unknown(call, member, outcome)
                else:
                    # The member had the request when it was lost: nobody can say how far it ran.
                    failure = lost = MemberLost(f"node {member}, a member of {cluster!r}, was lost: {outcome}")
                    if not call.idempotent:
                        raise _unknown(call, member, outcome, attempt.trouble, attempt.place)
                    if attempt.kept is not None:
                        failure = MemberLost(f"node {member}, a member of {cluster!r}, was given up: {attempt.kept}")
                        keep_in_realm(failure, attempt.place)
                        raise failure
        finally:
            if self._left:
                self._cancel_left(identifier)
        if failure is None and (rounds or now < call.deadline):
            await trio.lowlevel.checkpoint()  # it may be the end of the caller's own scope
            raise nobody_serves(cluster, self._mesh, self._directory)
        if now >= call.deadline:
            raise await self._timed_out(call, lost or failure)
        assert failure is not None
        if lost is not None and failure is not lost:  # that the last one refused does not mean that it did not run
            raise lost from failure
        raise failure

    async def _timed_out(
        self, call: Call, failure: IrisError | None, trouble: str = "", place: str = ""
    ) -> RequestTimeout:
        """Return the error of a request whose time is over.

        It may be the end of the caller's own scope: then that ends the caller, and not an error.
        """
        await trio.lowlevel.checkpoint()
        error = RequestTimeout(
            f"no reply from cluster {call.cluster!r} within {call.timeout:g} s"
            + "".join(f"; {one}" for one in (trouble, failure) if one)
        )
        error.__cause__ = failure
        keep_in_realm(error, place)
        return error

    def _trouble(self, attempt: Attempt, *, silent: bool) -> str:
        """Return what is known of a member that has not answered, for an error's text; empty if that is nothing."""
        said = attempt.blocks or self._blocked.of(attempt.member)
        if said is not None:
            attempt.place = place_in(said)
            return f"node {attempt.member} {described(said)}{_OWN if attempt.blocks is not None else ''}"
        return f"node {attempt.member} {_SILENT}" if silent else ""

    async def _has_linked_another(self, call: Call) -> bool:
        """Link to a member beside those that were asked in vain; return whether there is one to ask."""
        if self._reach is None:
            return False
        left = max(call.deadline - trio.current_time(), _PAUSE)
        await self._reach.reach(call.cluster, left, everybody=False, tried=call.tried)
        call.picker = self._directory.picker(call.cluster)
        return call.picker is not None and call.picker.has_other(call.tried)

    def _waits_for_member(self, call: Call, failure: IrisError | None, lost: MemberLost | None) -> bool:
        """Return whether a request that nobody can be asked now waits for a member that comes, or comes back.

        An idempotent one does, unless load was the only reason.  Another one that ran nowhere waits for who comes in
        the place of who has left, and if it was sent to none for a member that lives and is too slow to say so.

        Args:
            call: the request.
            failure: what the last member came to that was asked, if there was one.
            lost: loss of the last member that may have run it.
        """
        directory, cluster = self._directory, call.cluster
        if call.only is not None:
            return False
        if failure is None:
            return directory.had_members(cluster) and (
                call.idempotent
                or (not call.tried and directory.is_silent(cluster))
                or directory.awaits_successor(cluster)
            )
        if call.idempotent:
            return lost is not None or not isinstance(failure, Overloaded)
        return isinstance(failure, NotSent) and directory.awaits_successor(cluster)

    async def _pause(self, call: Call, until: float) -> None:
        """Wait for a member that was not asked yet, until a time, and get the cluster's picker anew."""
        directory, cluster = self._directory, call.cluster
        with trio.move_on_at(until):
            while True:
                await directory.wait_news()
                if self._is_closed:
                    return
                picker = directory.picker(cluster)
                if picker is not None and picker.has_other(call.tried):
                    break
                if picker is None and self._reach is not None and self._reach.matters(cluster):
                    break  # a member has appeared that is not linked
        if self._reach is not None:
            await reach_one(self._reach, cluster, None, max(until - trio.current_time(), _PAUSE))
        call.picker = directory.picker(cluster)

    def _send(
        self, call: Call, identifier: int, member: NodeId, now: float, woken: Callable[[], None] | None = None
    ) -> Attempt:
        """Send an attempt, which waits until ``_unwatch``; raise NotSent if the link refuses it: it does not run."""
        call.tried.add(member)
        call.asked = member
        attempt = Attempt(call, identifier, member, now, woken, call.picker)
        self._mesh.post(member, call.message(identifier, now), call.size, flush=True)
        self._waiting[identifier] = attempt
        self._deadlines.add(call.deadline, identifier)  # each attempt's own: between two of them nothing waits
        if attempt.picker is not None:
            attempt.picker.started(member)
        return attempt

    def _unwatch(self, attempt: Attempt) -> None:
        del self._waiting[attempt.identifier]
        outcome = attempt.outcome
        replied, picker = type(outcome) is kinds.Reply, attempt.picker
        if replied or isinstance(outcome, kinds.Failure):
            now = self._ended = attempt.ended
            if picker is not None:
                picker.finished(attempt.member, now - attempt.started, ok=replied, now=now)
            return
        # The caller of a closed node may be a coroutine that is dropped after the run has ended: there is no time then.
        now = self._ended = self._ended if self._is_closed else trio.current_time()
        if picker is not None:
            answered = False if outcome is None and now >= attempt.call.deadline else None
            picker.finished(attempt.member, now - attempt.started, ok=False, answered=answered, now=now)
        self._left.setdefault(attempt.identifier, set()).add(attempt.member)

    def _cancel_left(self, identifier: int) -> None:
        for left in self._left.pop(identifier, ()):
            self._cancel(identifier, left)

    def _expire(self, identifier: int) -> None:
        waiter = self._waiting[identifier]
        if not waiter.is_over:
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

    def _receive_part(self, peer: Peer, part: kinds.Part) -> None:
        number = part.outcome.id
        attempt = self._waiting.get(number)
        if attempt is None:
            if number in self.gathering:
                self.gathering[number](peer.node, part)
        elif attempt.member == peer.node and attempt.outcome is None and attempt.call.part is not None:
            attempt.call.part(peer.node, part)

    def decode_part_untrusted(self, part: kinds.Part, cluster: str, member: NodeId) -> Any:
        """Return what one for whom a member stands has replied; raise IrisError if it has failed, or is too large."""
        outcome = part.outcome
        if isinstance(outcome, kinds.Failure):
            raise failure_of(cluster, member, outcome)
        size = wire.payload_size(outcome.payload)
        if size > self._arriving.max_payload:
            excess = self._arriving.payload_excess(size)
            self._arriving.refused("reply", excess, member, cluster, None)
            raise RemoteError(REPLY_TOO_LARGE, excess.text)
        return self.decode_reply_untrusted(outcome.payload, cluster, member)

    def _may_hedge(self, call: Call) -> bool:
        """Return whether a second member may be asked: there is one, and the first is not blocked by the request."""
        return _has_other(call) and not any(
            one.call is call and one.blocks is not None for one in self._waiting.values()
        )

    def _receive_blocked(self, peer: Peer, message: kinds.Blocked) -> None:
        check_blocked(message)
        node, attempt = peer.node, self._waiting.get(message.id)
        if self._blocked.receive(node, message, trio.current_time()):
            log_blocked(peer, message, waits=any(one.member == node for one in self._waiting.values()))
        if node in self._silent:
            self._silent[node] = _frames_from(peer)
        if attempt is not None and attempt.member == node and message.id:
            # From here on no other member gets this request as long as this one lives: it would be blocked as well.
            attempt.blocks = None if message.over else message
            attempt.kept = None

    def _end(self, peer: Peer, outcome: kinds.Reply | kinds.Failure) -> None:
        if self._blocked.now:
            self._blocked.now.pop(peer.node, None)
        waiter = self._waiting.get(outcome.id)
        # A reply that comes late, twice, or from a member that was not asked last has nobody to wake.
        if waiter is not None:
            if waiter.member == peer.node and waiter.outcome is None:
                waiter.ended = self._mesh.frame_time()
                waiter.end(outcome)
        elif outcome.id in self.gathering:
            self.gathering[outcome.id](peer.node, outcome)

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def holds(self, node: NodeId) -> bool:
        """Return whether a reply of a member is waited for."""
        return bool(self.gathering) or any(attempt.member == node for attempt in self._waiting.values())

    def frames_lost(self, peer: Peer) -> None:
        """Send idempotent requests again, as frames may be lost; the member knows those it has.

        It is asked whether it has the others: a reply that was lost would be waited for until the deadline, and without
        a deadline for ever.
        """
        now = trio.current_time()
        for identifier, waiter in list(self._waiting.items()):
            if waiter.member != peer.node or waiter.outcome is not None or waiter.call.deadline <= now:
                continue
            try:
                call = waiter.call
                if call.idempotent:
                    peer.link.post(call.message(identifier, now), call.size)
                else:
                    peer.link.post(kinds.Awaited(identifier), 0, CONTROL_RESERVE)
            except NotSent:
                waiter.end(_BROKEN)
        for identifier in self.gathering:  # who was not asked, or has answered, is not listened to
            with suppress(NotSent):
                peer.link.post(kinds.Awaited(identifier), 0, CONTROL_RESERVE)

    def peer_unreachable(self, node: NodeId) -> None:
        """Ask idempotent requests elsewhere at once if possible; the others wait for what becomes of the member.

        So do all, if the member is at another site and there is another route: it knows the requests that it has.
        """
        peer = self._mesh.peer(node)
        if peer is not None and peer.returning:
            return
        lives = peer is not None and is_acknowledged(peer.link.outgoing)
        waits = lives and self._blocked.of(node) is None
        if peer is not None and lives:
            self._silent[node] = _frames_from(peer)
        else:  # the connection broke: the process may be gone
            self._silent.pop(node, None)
            self._blocked.forget(node)
        for waiter in list(self._waiting.values()):
            if waiter.member == node and waiter.can_retry_elsewhere():
                if waits:
                    self._doubted.add(trio.current_time() + _SPEAKS, waiter.identifier)
                elif self._may_move(waiter, lives=lives):
                    waiter.end(f"it {_SILENT}" if lives else _BROKEN)

    def _leave(self, identifier: int) -> None:
        """Ask a request elsewhere whose member lives and is silent, unless that has said something meanwhile."""
        attempt = self._waiting[identifier]
        if self._is_silent(attempt.member) and attempt.can_retry_elsewhere() and self._may_move(attempt, lives=True):
            attempt.end(f"it {_SILENT}")

    def _is_silent(self, node: NodeId) -> bool:
        """Return whether a member that was found living and silent has said nothing since."""
        peer = self._mesh.peer(node)
        return peer is not None and self._silent.get(node) == _frames_from(peer)

    def _may_move(self, attempt: Attempt, *, lives: bool) -> bool:
        """Return whether an idempotent request may go to another member; if not, have the attempt say why.

        A member that lives and says nothing may be held up by one of its requests, which would hold up the next member
        as well.  If it has said which one that is, the others are free; else each may move once.  So may one of which a
        member has died that it had blocked.

        Args:
            attempt: the attempt at the member that is silent, or gone.
            lives: True if the member is known to live, or was when it was given up.
        """
        call = attempt.call
        if lives and attempt.blocks is not None:
            attempt.place = place_in(attempt.blocks)
            attempt.kept = f"it {described(attempt.blocks)}, at work on this request, {_NOT_CARRIED}"
            return False
        if attempt.blocks is not None or (lives and self._blocked.of(attempt.member) is None):
            if call.stuck >= _MOST_STUCK:
                attempt.kept = f"it is the second member that stood still while it had this request, {_NOT_CARRIED}"
                return False
            call.stuck += 1
        return True

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """End the attempts at this member: no outcome will come from it any more."""
        node = peer.node
        for waiter in list(self._waiting.values()):
            if waiter.member == node and waiter.outcome is None:
                lived = node in self._silent
                if lived:
                    waiter.trouble = self._trouble(waiter, silent=True)
                if waiter.call.idempotent and waiter.kept is None:
                    self._may_move(waiter, lives=lived)
                waiter.end(_GONE)
        self._blocked.forget(node)
        self._silent.pop(node, None)
        for gather in list(self.gathering.values()):
            gather(peer.node, None)


@final
class Begun:
    """A request whose first attempt is on its way, for callers outside of trio's tasks.  Made by ``Requests.begin``.

    Once ``woken`` was called ``reply`` ends it, or if there is none ``go_on``; and ``abandon`` at any time.
    """

    __slots__ = ("_is_counted", "_is_settled", "_requests", "attempt")

    def __init__(self, requests: Requests, attempt: Attempt) -> None:
        self._requests = requests
        self._is_settled = self._is_counted = False
        self.attempt = attempt

    def _settle(self) -> None:
        if not self._is_settled:
            self._is_settled = True
            self._requests._unwatch(self.attempt)

    def abandon(self) -> None:
        """Give up: the caller was cancelled, or cannot go on.  A request that has ended has nothing left to abandon."""
        self._settle()
        requests, call = self._requests, self.attempt.call
        requests._cancel_left(self.attempt.identifier)
        if not self._is_counted:
            self._is_counted = True
            requests.expire(call, call.asked)
            requests.latency.failed(call.label, call.operation, "Cancelled")

    def reply(self) -> tuple[Any] | None:
        """Return the reply; None if there is none, and ``go_on`` says what becomes of the request.

        Raises:
            RemoteError: it cannot be read.
            Unknown, trio.ClosedResourceError: the node was closed.
        """
        self._settle()
        attempt, requests = self.attempt, self._requests
        outcome = attempt.outcome
        if outcome is _CLOSED:  # who is no task of trio may find no run any more to go on in
            error = _unknown(attempt.call, attempt.member, outcome)
            self._is_counted = True
            requests._cancel_left(attempt.identifier)
            requests._failed(attempt.call, error)
            raise error
        if not isinstance(outcome, kinds.Reply):
            return None
        self._is_counted = True
        try:
            reply = requests.decode_reply_untrusted(outcome.payload, attempt.call.cluster, attempt.member)
        except RemoteError as error:
            requests._failed(attempt.call, error)
            raise
        requests._answered(attempt.call)
        return (reply,)

    async def go_on(self) -> Any:
        """Do what follows the first attempt: try another member, or raise; see ``Requests.request``."""
        self._is_counted = True
        requests, call = self._requests, self.attempt.call
        requests._begun[call] = 1
        try:
            reply = await requests._ask(call, first=self.attempt)
        except BaseException as error:
            requests._failed(call, error)
            raise
        requests._answered(call)
        return reply


def _unknown(
    call: Call, member: NodeId, outcome: str, trouble: str = "", place: str = ""
) -> Unknown | trio.ClosedResourceError:
    """Return the error of a request that a member had in hand, and that nobody else is asked."""
    if outcome is not _CLOSED:
        if trouble:
            error = Unknown(
                f"node {member} of cluster {call.cluster!r} was given up while it had the request: it ran never or "
                f"once; {trouble}; a repeat may block another member as well"
            )
            keep_in_realm(error, place)
            return error
        return Unknown(
            f"node {member} of cluster {call.cluster!r} was lost while it had the request: it ran never or "
            f"once{_REPEATED}"
        )
    if call.idempotent:
        return _closed()
    return Unknown(
        f"this node was closed while node {member} of cluster {call.cluster!r} had the request: it ran never or once"
    )


def _frames_from(peer: Peer) -> int:
    """Return how many frames have come from a peer in its present session."""
    return 0 if peer.session is None else peer.session.statistics().received_frames


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("this node was closed while the request waited for a reply")


def _has_other(call: Call) -> bool:
    return call.picker is not None and len(call.tried) < _MAX_ATTEMPTS and call.picker.has_other(call.tried)


def failure_of(cluster: str, member: NodeId, failure: kinds.Failure) -> IrisError:
    """Return the error that a member's answer stands for."""
    if failure.retry_after < 0:
        return RemoteError(failure.code, failure.text)
    match failure.code:
        case "member_left":
            return Unknown(
                f"node {member} left the cluster {cluster!r} while the request ran: it ran in part or not at "
                f"all{_REPEATED}"
            )
        case "in_doubt":
            return Unknown(
                f"a member of cluster {cluster!r} was lost in the middle of a request with an idempotency key: it ran "
                f"in part, to its end, or not at all, and is not run again ({failure.text})"
            )
        case "not_here":
            return Unknown(
                f"node {member} of cluster {cluster!r} does not have the request (any more), and no reply has come: it "
                f"ran never or once{_REPEATED}"
            )
        case code:
            return refusal_of(cluster, member, code, failure.text, failure.retry_after / 1000)


def refusal_of(cluster: str, member: NodeId, code: str, text: str, retry_after: float) -> IrisError:
    """Return the error of a request or tunnel that a member refuses; ``retry_after`` is in seconds."""
    match code:
        case "overloaded":
            return Overloaded(f"cluster {cluster!r} is overloaded (node {member}: {text})", retry_after=retry_after)
        case "draining" | "not_a_member":
            return NotSent(f"node {member} no longer serves the cluster {cluster!r}")
        case "not_allowed":
            return NotAllowed(text)
        case "too_large":
            return PayloadTooLarge(f"cluster {cluster!r} refuses {text}; send larger things through a tunnel")
        case _:
            return RemoteError(code, text)
