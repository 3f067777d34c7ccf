"""Keeper: answers the members that claim keys, record outcomes, and release what they cannot finish.

One member of a bridge keeps them, the one that has shard 0, as with leases (``iris.spark_bridge.server.leases``); the
others answer {elsewhere: cluster}.  A key is that of a cluster, a caller's cluster and an operation.  Only members of
the cluster may name it.

A claim is over when its time is, which its member measures too, or when the member is gone: this node has no link to it
any more.  A bridge that has just started has not met every node yet, so it calls none gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar, final

import msgspec
import trio
from msgspec import UNSET

from iris.kernel.errors import RemoteError
from iris.kernel.names import Entropy
from iris.kernel.wire import join_payload
from iris.patterns.bridge_protocol import (
    ClaimKey,
    KeyAnswer,
    KeyAsk,
    KeyCounts,
    KeyTerms,
    NoteKey,
    OutboxEvent,
    RecordKey,
    ReleaseKey,
    StepName,
)
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe import EventRun, single_run
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log import Store, Transaction
from iris.spark_bridge.outcomes.records import (
    Accepted,
    ClaimRefused,
    Doubtful,
    Granted,
    Held,
    KeyClaim,
    KeyNotes,
    KeyOutcome,
    KeyRelease,
    Known,
    Operation,
    OutcomeRecords,
    Verdict,
    count_keys,
)
from iris.spark_bridge.protocol import RequestHandlers

T = TypeVar("T")

_log: Final = logging.getLogger("iris")

_WAITING: Final = 64
"""Most members that wait here for another one's outcome: they use places that readers need."""
_LOOK: Final = 0.2
"""Seconds between two looks whether the member that has a claim is still there."""
_MEETING: Final = 5.0
"""Seconds after its start in which a bridge calls no member gone."""
_SWEEPING: Final = 30.0
_OPENING: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeStatistics:
    """Counters of the outcomes that one member of a bridge keeps."""

    keys: int
    """Keys that are remembered now."""
    claimed: int
    """Claims that were granted."""
    recorded: int
    replayed: int
    """Claims that were answered with an outcome."""
    doubtful: int
    """Claims that were refused because a member was lost in the middle of the request."""
    retaken: int
    """Claims that were granted although another member may have run the request: with ``rerun``."""
    reused: int
    """Claims that were refused because the key stands for another request."""


class OutcomeMember(Protocol):
    """Port of outcomes to the bridge's member."""

    @property
    def store(self) -> Store:
        """Log of the member."""
        ...

    @property
    def of(self) -> int | None:
        """Number of shards of the bridge. None if its members do not divide the events."""
        ...

    @property
    def known(self) -> Mapping[int, str]:
        """The shards of the bridge, with the cluster of the member that has each."""
        ...

    def now(self) -> int:
        """Return microseconds since 1970."""
        ...

    def is_clock_believed(self) -> bool:
        """Return whether anything may be forgotten for its age."""
        ...

    async def write(self, change: Callable[[Transaction, list[EventRun]], T]) -> T:
        """Change the index, together with events; return when enough copies have that on their disks."""
        ...


class OutcomePeers(Protocol):
    """Port of outcomes to the mesh: facts about other nodes."""

    def is_there(self, cluster: str, node: str) -> bool:
        """Return whether a node is known to be up, given a cluster that it is a member of."""
        ...

    def may_publish(self, sender: Sender, topic: str) -> bool:
        """Return whether a node may publish on a topic."""
        ...


@final
class OutcomeKeeper:
    """The outcomes that one member of a bridge keeps, or knows where to ask for.

    Args:
        member: has the log.
        peers: knowledge of other nodes.
        address: the cluster of this member alone.
        entropy: names this opening of the log.
    """

    def __init__(self, member: OutcomeMember, peers: OutcomePeers, *, address: str, entropy: Entropy) -> None:
        self._member = member
        self._peers = peers
        self._address = address
        self._started = trio.current_time()
        self._records = OutcomeRecords(self._started, entropy(_OPENING))
        self._waiting = 0
        self._news = trio.lowlevel.ParkingLot()
        self._claimed = self._recorded = self._replayed = self._doubtful = self._retaken = self._reused = 0

    def __repr__(self) -> str:
        return f"<OutcomeKeeper of {self._address}>"

    def requests(self) -> RequestHandlers:
        """Return what answers the members of a cluster, which is known to be theirs."""
        handlers: RequestHandlers = {
            ClaimKey: self._claim, NoteKey: self._note, RecordKey: self._record, ReleaseKey: self._release,
        }  # fmt: skip
        return {kind: partial(self._answer, handler) for kind, handler in handlers.items()}

    def report(self) -> OutcomeStatistics:
        """Return the counters."""
        with self._member.store.read_transaction() as index:
            keys = count_keys(index)
        return OutcomeStatistics(
            keys=keys,
            claimed=self._claimed,
            recorded=self._recorded,
            replayed=self._replayed,
            doubtful=self._doubtful,
            retaken=self._retaken,
            reused=self._reused,
        )

    # -- working --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Forget keys when their time is over, until cancelled."""

        def sweep(index: Transaction, _runs: list[EventRun]) -> int:
            return self._records.sweep(index, self._member.now())

        while True:
            await trio.sleep(_SWEEPING)
            with suppress(StoreFull):  # next time
                swept = 1
                while swept and self._member.is_clock_believed():
                    swept = await self._member.write(sweep)

    async def _apply(self, operation: Operation) -> Verdict:
        """Have an operation done, on the disk and on copies; raise RemoteError if there is no room."""
        apply = partial(
            self._records.apply,
            operation=operation,
            date=self._member.now(),
            now=trio.current_time(),
            may_forget=self._member.is_clock_believed(),
        )
        try:
            verdict = await self._member.write(apply)
        except StoreFull as error:
            raise RemoteError("not_stored", str(error)) from None
        if not isinstance(operation, KeyClaim):
            self._news.unpark_all()
        return verdict

    # -- operations -----------------------------------------------------------------------------------------

    async def _answer(
        self, handler: Callable[[Sender, Any], Awaitable[object]], sender: Sender, asked: KeyAsk[object]
    ) -> object:
        keeping = self._member.known.get(0, "")
        if keeping == self._address:
            return await handler(sender, asked)
        if keeping == "":
            text = "no member of this bridge is known to have shard 0: that one keeps outcomes"
            raise RemoteError("no_shard_0", text)
        await trio.lowlevel.checkpoint()
        return KeyAnswer(elsewhere=keeping)

    async def _claim(self, sender: Sender, asked: ClaimKey) -> KeyAnswer:
        claim = _claim_of(sender, asked)
        verdict = await self._apply(claim)
        if isinstance(verdict, Held) and asked.wait and self._waiting < _WAITING:
            self._waiting += 1
            try:
                verdict = await self._wait(claim, verdict, trio.current_time() + asked.wait)
            finally:
                self._waiting -= 1
        match verdict:
            case Granted(attempt, notes, undone):
                self._claimed += 1
                self._retaken += attempt > 1
                return KeyAnswer(attempt=attempt, notes=notes, undone=undone if claim.undoes else UNSET)
            case Known(outcome):
                self._replayed += 1
                return KeyAnswer(outcome=outcome)
            case Held(_, _, left):
                return KeyAnswer(busy=left)
            case Doubtful(node, attempt):
                self._doubtful += 1
                return KeyAnswer(doubt=node, attempt=attempt)
            case ClaimRefused("key_reused", _):
                self._reused += 1
                text = f"idempotency key {asked.key!r:.100} stands for another payload: take a new key"
                raise RemoteError("key_reused", text)
            case ClaimRefused(code, text):
                raise RemoteError(code, text)
            case _:
                raise AssertionError(verdict)

    async def _wait(self, claim: KeyClaim, held: Held, deadline: float) -> Verdict:
        """Wait until another member's claim has ended."""
        while (now := trio.current_time()) < deadline:
            if self._is_gone(claim.cluster, held):
                _log.warning(
                    "node %s of cluster %s is gone in the middle of a request with an idempotency key",
                    held.node,
                    claim.cluster,
                    extra={"cluster": claim.cluster, "peer": held.node},
                )
                claim = claim._replace(gone=held.holder)
            else:
                with trio.move_on_at(min(deadline, now + min(held.left, _LOOK))):
                    await self._news.park()
            verdict = await self._apply(claim)
            if not isinstance(verdict, Held):
                return verdict
            held = verdict
        return held

    def _is_gone(self, cluster: str, held: Held) -> bool:
        return trio.current_time() >= self._started + _MEETING and not self._peers.is_there(cluster, held.node)

    async def _note(self, _sender: Sender, asked: NoteKey) -> KeyCounts:
        verdict = await self._apply(KeyNotes(_key(asked), asked.holder, asked.notes))
        if isinstance(verdict, ClaimRefused):
            raise RemoteError(verdict.code, verdict.text)
        return KeyCounts(counts=verdict is True)

    async def _record(self, sender: Sender, asked: RecordKey) -> KeyCounts:
        events = self._read_events(sender, asked.events)
        verdict = await self._apply(KeyOutcome(_claim_of(sender, asked), asked.attempt, asked.outcome, events))
        if isinstance(verdict, ClaimRefused):
            raise RemoteError(verdict.code, verdict.text)
        counted = isinstance(verdict, Accepted)
        self._recorded += counted
        return KeyCounts(counts=counted)

    def _read_events(self, sender: Sender, events: Sequence[OutboxEvent]) -> list[EventRun]:
        for event in events:
            if not self._peers.may_publish(sender, event.topic):
                raise RemoteError(
                    "NotAllowed", f"nodes of cluster {sender.cluster!r} may not publish on {event.topic!r}"
                )
        if events and self._member.of is not None:
            text = "the members of this bridge divide its events, and an outbox needs a bridge of one member"
            raise RemoteError("no_outbox", text)
        return [_run(event, sender) for event in events]

    async def _release(self, _sender: Sender, asked: ReleaseKey) -> KeyCounts:
        return KeyCounts(counts=await self._apply(KeyRelease(_key(asked), asked.holder, asked.begun)) is True)


def _claim_of(sender: Sender, asked: KeyTerms[object]) -> KeyClaim:
    return KeyClaim(
        key=_key(asked),
        cluster=asked.cluster,
        owner=sender.cluster,
        fingerprint=asked.fingerprint,
        holder=asked.holder,
        node=sender.node,
        budget=asked.budget,
        keep=asked.keep,
        rerun=asked.rerun,
        undoes=b"" if asked.undoes is None else _key(asked, asked.undoes),
    )


def _run(event: OutboxEvent, sender: Sender) -> EventRun:
    payload = join_payload(event.data, packed=event.packed)
    return single_run(sender, event.topic, event.headers, event.key, payload)


def _key(asked: KeyAsk[object], step: StepName | None = None) -> bytes:
    """Return the key of a request, or of the step of the same cluster and caller that it undoes."""
    operation, key = (asked.on, asked.key) if step is None else (step.operation, step.key)
    named = [asked.cluster, asked.caller, operation, key]
    return hashlib.blake2b(msgspec.msgpack.encode(named), digest_size=32).digest()


__all__ = ("OutcomeKeeper", "OutcomeStatistics")
