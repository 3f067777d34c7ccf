"""Keeper: answers the members that claim keys, record outcomes, and release what they cannot finish.

=========== =============================================== ==========================================================
operation   payload                                         reply
=========== =============================================== ==========================================================
key.claim   {cluster, caller, operation: text or None, key, {attempt: number, notes: bytes if there are any, undone:
            fingerprint: 16 bytes, holder: 16 bytes,        bytes, None if that never began}: the caller is to run it;
            budget: s, keep: s, rerun: flag, wait: s,       {outcome: bytes};
            undoes: {operation, key}, or None}              {busy: seconds, at most, until it is over};
                                                            {doubt: node that began it, attempt: number}
key.note    {cluster, caller, operation, key, holder,       whether it counts: no other member has taken over
            notes: bytes}
key.record  {... as of the claim, attempt, outcome: bytes,  whether it counts: no other member has taken over
            events: a list of {topic, key, headers, data,
            packed}, or None}
key.release {cluster, caller, operation, key, holder,       the same
            begun: flag}
=========== =============================================== ==========================================================

One member of a bridge keeps them, the one that has shard 0, as with leases (``iris.spark_bridge.server.leases``); the
others answer {elsewhere: cluster}.  A key is that of a cluster, a caller's cluster and an operation.  Only members of
the cluster may name it.

A claim is over when its time is, which its member measures too, or when the member is gone: this node has no link to it
any more.  A bridge that has just started has not met every node yet, so it calls none gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Protocol, TypeVar, cast, final

import msgspec
import trio

from iris.kernel.errors import RemoteError
from iris.kernel.names import Entropy
from iris.kernel.topic_syntax import is_own_topic
from iris.kernel.wire import join_payload
from iris.patterns.messages import Request, Sender
from iris.patterns.pubsub.subscribe import EventRun, single_run
from iris.patterns.service import MAX_EVENTS, MAX_KEEP, MAX_KEY, MAX_OUTCOME, MIN_KEEP
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log import IndexView, Store
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

T = TypeVar("T")

_log: Final = logging.getLogger("iris")

_WAITING: Final = 64
"""Most members that wait here for another one's outcome: they use places that readers need."""
_MAX_WAIT: Final = 5.0
_LOOK: Final = 0.2
"""Seconds between two looks whether the member that has a claim is still there."""
_MEETING: Final = 5.0
"""Seconds after its start in which a bridge calls no member gone."""
_SWEEPING: Final = 30.0
_OPENING: Final = 8
_FRAMING: Final = 16
"""Size of an outcome beside the reply, in bytes."""
_MAX_BUDGET: Final = 2.0**32 / 1000


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

    async def write(self, change: Callable[[IndexView, list[EventRun]], T]) -> T:
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
class SentEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event as a member sends it with an outcome."""

    topic: Annotated[str, msgspec.Meta(max_length=1024)]
    key: Annotated[str, msgspec.Meta(max_length=MAX_KEY)] | None
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=512)]
    data: bytes
    packed: bool


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

    def requests(self) -> Mapping[str, Callable[[Request], Awaitable[object]]]:
        """Return what answers the members of a cluster, which is known to be theirs."""
        handlers = {
            "key.claim": self._claim, "key.note": self._note, "key.record": self._record, "key.release": self._release,
        }  # fmt: skip
        return {operation: partial(self._answer, handler) for operation, handler in handlers.items()}

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

        def sweep(index: IndexView, _runs: list[EventRun]) -> int:
            return self._records.sweep(index, self._member.now())

        while True:
            await trio.sleep(_SWEEPING)
            with suppress(StoreFull):  # next time
                swept = 1
                while swept and self._member.is_clock_believed():
                    swept = await self._member.write(sweep)

    async def _apply(self, operation: Operation) -> Verdict:
        """Have an operation done, and wait for the disk, and for copies.

        Raises:
            RemoteError: there is no room for it.
        """
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

    async def _answer(self, handler: Callable[[Request], Awaitable[object]], request: Request) -> object:
        keeping = self._member.known.get(0, "")
        if keeping == self._address:
            return await handler(request)
        if keeping == "":
            text = "no member of this bridge is known to have shard 0: that one keeps outcomes"
            raise RemoteError("no_shard_0", text)
        await trio.lowlevel.checkpoint()
        return {"elsewhere": keeping}

    async def _claim(self, request: Request) -> dict[str, Any]:
        fields = _fields(request.payload)
        claim = self._read_claim(request, fields)
        wait = _seconds(fields, "wait", 0.0, _MAX_WAIT)
        verdict = await self._apply(claim)
        if isinstance(verdict, Held) and wait and self._waiting < _WAITING:
            self._waiting += 1
            try:
                verdict = await self._wait(claim, verdict, trio.current_time() + wait)
            finally:
                self._waiting -= 1
        match verdict:
            case Granted(attempt, notes, undone):
                self._claimed += 1
                self._retaken += attempt > 1
                beside: dict[str, Any] = {"notes": notes} if notes else {}
                return {"attempt": attempt, **beside, **({"undone": undone} if claim.undoes else {})}
            case Known(outcome):
                self._replayed += 1
                return {"outcome": outcome}
            case Held(_, _, left):
                return {"busy": left}
            case Doubtful(node, attempt):
                self._doubtful += 1
                return {"doubt": node, "attempt": attempt}
            case ClaimRefused("key_reused", _):
                self._reused += 1
                text = f"idempotency key {_text(fields, 'key')!r:.100} stands for another payload: take a new key"
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

    async def _note(self, request: Request) -> bool:
        fields = _fields(request.payload)
        verdict = await self._apply(KeyNotes(_key(fields), _bytes(fields, "holder"), _kept(fields, "notes")))
        if isinstance(verdict, ClaimRefused):
            raise RemoteError(verdict.code, verdict.text)
        return verdict is True

    async def _record(self, request: Request) -> bool:
        fields = _fields(request.payload)
        claim, outcome, attempt = self._read_claim(request, fields), _kept(fields, "outcome"), fields.get("attempt")
        if type(attempt) is not int or not 1 <= attempt < 2**31:
            raise RemoteError("bad_request", f"attempt is {attempt!r:.100}: use a whole number above 0")
        events = self._read_events(request.sender, fields.get("events"))
        verdict = await self._apply(KeyOutcome(claim, attempt, outcome, events))
        if isinstance(verdict, ClaimRefused):
            raise RemoteError(verdict.code, verdict.text)
        counted = isinstance(verdict, Accepted)
        self._recorded += counted
        return counted

    def _read_events(self, sender: Sender, value: object) -> list[EventRun]:
        if value is None:
            return []
        try:
            events = msgspec.convert(value, list[SentEvent])
        except msgspec.ValidationError as error:
            raise RemoteError("bad_request", f"events: {error}") from None
        if len(events) > MAX_EVENTS or sum(len(event.data) for event in events) > MAX_OUTCOME:
            raise RemoteError("bad_request", f"an outbox has {MAX_EVENTS} events of {MAX_OUTCOME} bytes at most")
        for event in events:
            if not is_own_topic(event.topic):
                raise RemoteError("bad_request", f"topic is {event.topic!r:.100}: use tokens joined by dots")
            if not self._peers.may_publish(sender, event.topic):
                raise RemoteError(
                    "NotAllowed", f"nodes of cluster {sender.cluster!r} may not publish on {event.topic!r}"
                )
        if events and self._member.of is not None:
            text = "the members of this bridge divide its events, and an outbox needs a bridge of one member"
            raise RemoteError("no_outbox", text)
        return [_run(event, sender) for event in events]

    async def _release(self, request: Request) -> bool:
        fields = _fields(request.payload)
        return await self._apply(KeyRelease(_key(fields), _bytes(fields, "holder"), _flag(fields, "begun"))) is True

    @staticmethod
    def _read_claim(request: Request, fields: Mapping[str, object]) -> KeyClaim:
        key, undoes = _key(fields), b""
        if fields.get("undoes") is not None:
            other = _fields(fields["undoes"])  # of the same cluster: it is that to which the sender has a right
            undoes = _key({**fields, "operation": other.get("operation"), "key": other.get("key")})
        if undoes == key:
            raise RemoteError("bad_request", "a request undoes another one, and not itself")
        return KeyClaim(
            key=key,
            cluster=_text(fields, "cluster"),
            owner=request.sender.cluster,
            fingerprint=_bytes(fields, "fingerprint"),
            holder=_bytes(fields, "holder"),
            node=request.sender.node,
            budget=_seconds(fields, "budget", 0.0, _MAX_BUDGET),
            keep=_seconds(fields, "keep", MIN_KEEP, MAX_KEEP),
            rerun=_flag(fields, "rerun"),
            undoes=undoes,
        )


def _run(event: SentEvent, sender: Sender) -> EventRun:
    payload = join_payload(event.data, packed=event.packed)
    return single_run(sender, event.topic, event.headers, event.key, payload)


# -- payloads of peers -----------------------------------------------------------------------------------------


def _fields(payload: object) -> Mapping[str, object]:
    if not isinstance(payload, dict):
        raise RemoteError("bad_request", f"the payload is a {type(payload).__name__}: use a dict")
    return cast("dict[str, object]", payload)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value.encode()) <= MAX_KEY:
        raise RemoteError("bad_request", f"{name} is {value!r:.100}: use 1 to {MAX_KEY} bytes of text")
    return value


def _bytes(fields: Mapping[str, object], name: str) -> bytes:
    value = fields.get(name)
    if not isinstance(value, bytes) or len(value) != 16:
        raise RemoteError("bad_request", f"{name} is {value!r:.100}: use 16 bytes")
    return value


def _kept(fields: Mapping[str, object], name: str) -> bytes:
    value = fields.get(name)
    if not isinstance(value, bytes) or len(value) > MAX_OUTCOME + _FRAMING:
        raise RemoteError("bad_request", f"{name} is none of {MAX_OUTCOME} bytes at most")
    return value


def _flag(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise RemoteError("bad_request", f"{name} is {value!r:.100}: use True or False")
    return value


def _seconds(fields: Mapping[str, object], name: str, least: float, most: float) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise RemoteError("bad_request", f"{name} is {value!r:.100}: use {least:g} to {most:g} seconds")
    return float(value)


def _key(fields: Mapping[str, object]) -> bytes:
    operation = fields.get("operation")
    if operation is not None:
        operation = _text(fields, "operation")
    named = [_text(fields, "cluster"), _text(fields, "caller"), operation, _text(fields, "key")]
    return hashlib.blake2b(msgspec.msgpack.encode(named), digest_size=32).digest()


__all__ = ("OutcomeKeeper", "OutcomeStatistics")
