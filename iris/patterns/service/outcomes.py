"""Outcomes of requests with an idempotency key: a member claims the key at a bridge, runs, records, and then replies.

================================ =====================================================================================
a member or its bridge dies      what a repeat of the request gets
================================ =====================================================================================
before the claim                 it runs
after the claim, before the end  ``Unknown``; with ``rerun`` it runs again, as the next ``Request.attempt``
after the record                 the recorded outcome, reply or error, and the handler is not called
================================ =====================================================================================

A request that undoes another one closes the key of that one with its claim.  Its handler is not called if the other one
never began, or its handler raised ``RemoteError``.

The effect of a handler and the record are two writes, and no protocol makes one of them: that is what the middle row is
about.  A claim ends with the time of its request, in which the handler is cancelled, or when its member is gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar, final

import trio
from msgspec import UNSET, Struct, structs

from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    IrisError,
    NoSuchCluster,
    NotAllowed,
    PayloadTooLarge,
    RemoteError,
    RemoteProtocolError,
)
from iris.kernel.names import check_key, check_name
from iris.kernel.numerals import as_float, shown
from iris.kernel.topic_syntax import is_own_topic
from iris.kernel.wire import kinds
from iris.patterns.bridge_protocol import (
    MAX_BUDGET,
    MAX_EVENTS,
    MAX_KEEP,
    MAX_OUTCOME,
    MIN_KEEP,
    Bridges,
    ClaimKey,
    KeyAnswer,
    KeyAsk,
    KeyCounts,
    NoteKey,
    OutboxEvent,
    RecordKey,
    ReleaseKey,
    StepName,
)
from iris.patterns.messages import Outbox
from iris.patterns.payloads import encoded
from iris.patterns.request import IN_DOUBT, NO_SUCH_OPERATION, OF_HANDLER, UNDO, UNDOES
from iris.patterns.service.reply_cache import Outcome

A = TypeVar("A", KeyAnswer, KeyCounts)

_log: Final = logging.getLogger("iris")

MAX_HEADERS: Final = 8 * KIB

NOT_KEPT: Final = "no_outcomes"
"""Code of the error when a service is asked with a key, and keeps no outcomes."""
NO_BRIDGE: Final = "no_bridge"
"""Code of the error when there is no bridge to keep them."""
TOO_LARGE_TO_KEEP: Final = "reply_too_large_to_keep"

_WAIT: Final = 2.0
"""Seconds that a bridge may wait for another member's outcome before it answers."""
_PATIENCE: Final = 3.0
"""Seconds that it may take to answer, beside ``_WAIT``."""
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_GOODBYE: Final = 1.0
_PASSING: Final = frozenset({"not_stored", "no_shard_0"})
"""Codes of a bridge that may record the outcome later."""
_REFUSED: Final = b"f"
_FAILED: Final = b"e"
"""First byte of the record of an error: the handler says that it has had no effect, or it may have had one."""


@final
class Outcomes(Struct, frozen=True, kw_only=True):
    """Keeping of the outcomes of requests with an idempotency key, so that they outlive the members of a service.

    A member claims the key at the bridge, calls the handler, has the bridge record what it returned or raised, and then
    replies.  That is two writes to the bridge's disk for each request.

    Attributes:
        bridge: cluster of the bridge.
        keep: seconds for which a key and its outcome are remembered, 1 s to 366 days; after that it is a new one.
        rerun: rule for a request whose member was lost between claim and record: its handler ran in part, to its end,
            or not at all.  False: at most once, the caller gets ``Unknown``.  True: at least once, another member runs
            it, and ``Request.attempt`` says that it may have run before.

    Raises:
        ConfigError: a value is out of its range.
    """

    bridge: str = "bridge"
    keep: float = 24 * 3600.0
    rerun: bool = False

    def __post_init__(self) -> None:
        check_name(self.bridge, "cluster")
        keep = as_float(self.keep)
        if not MIN_KEEP <= keep <= MAX_KEEP:
            raise ConfigError(f"keep is {shown(self.keep)}: use {MIN_KEEP:g} to {MAX_KEEP:g} seconds")
        structs.force_setattr(self, "keep", keep)
        if not isinstance(self.rerun, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"rerun is {self.rerun!r}: use True or False")


class Keyed(Protocol):
    """A request with an idempotency key, as far as keeping its outcome needs it."""

    @property
    def identifier(self) -> int: ...
    @property
    def operation(self) -> str | None: ...
    @property
    def payload(self) -> wire.Payload: ...
    @property
    def deadline(self) -> float: ...
    @property
    def refused(self) -> bool: ...
    @property
    def unserved(self) -> bool | None: ...
    @property
    def undoes(self) -> UndoneStep | None: ...


class UndoneStep(NamedTuple):
    """A request with an idempotency key that another one undoes."""

    key: str
    operation: str | None
    ran: bool
    """True if it has had a reply."""

    def needs_no_undo(self, outcome: bytes | None) -> bool:
        """Return whether it has had no effect, given its outcome, or None if it never began."""
        return not self.ran and (outcome is None or outcome.startswith(_REFUSED))


def undone_step(key: str, headers: Mapping[str, str]) -> UndoneStep | None:
    """Return the step that a request with a key undoes; None if it undoes none.

    The key of the other one is a part of its own: a key that is made for its caller, as at a door, closes no other's.
    """
    ran, _, operation = headers.get(UNDOES, "").partition(" ")
    if not key.endswith(UNDO) or ran not in ("ran", "asked"):
        return None
    return UndoneStep(key.removesuffix(UNDO), operation or None, ran == "ran")


@final
class KeyClaims:
    """Claims of keys at a bridge, and what becomes of them; see ``iris.patterns.bridge_protocol``.

    Args:
        bridge: cluster of the bridge.
        bridges: asks it.
    """

    def __init__(self, bridge: str, bridges: Bridges) -> None:
        self.bridge: Final = bridge
        self._bridges = bridges
        self._at = bridge
        """Cluster that is asked: the bridge's own, until its member is known."""

    async def claim(self, claim: ClaimKey, deadline: float) -> KeyAnswer:
        """Claim a key until that is settled; the caller's scope ends it.

        Raises:
            RemoteError, NoSuchCluster, NotAllowed: the bridge refuses, or there is none, or what answers is none.
        """
        pause = _PAUSE
        while True:
            budget = min(MAX_BUDGET, max(0.0, deadline - trio.current_time()))
            asked = structs.replace(claim, budget=budget, wait=_WAIT)
            try:
                answer = await self._ask_member(asked, _WAIT + _PATIENCE)
            except (RemoteError, NotAllowed):
                raise
            except RemoteProtocolError:
                raise self._no_bridge() from None
            except NoSuchCluster:
                if self._at == self.bridge:
                    raise
                self._at = self.bridge
                continue
            except DeliveryError:
                self._at = self.bridge
            else:
                if answer.elsewhere is None and answer.busy is None:
                    return answer
                pause = pause if answer.busy is None else _PAUSE  # it has waited there
            await trio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    async def write(self, report: RecordKey | NoteKey) -> bool:
        """Record an outcome, or leave notes for the next one that claims the key, until the bridge has it.

        Returns:
            Whether it counts: nobody has taken over.

        Raises:
            RemoteError, NotAllowed: the bridge refuses, or what answers is none.
        """
        pause = _PAUSE
        while True:
            try:
                answer = await self._ask_member(report, _PATIENCE)
                if answer.elsewhere is None:
                    return answer.counts is True
            except NotAllowed:
                raise
            except RemoteError as error:
                if error.code not in _PASSING:
                    raise
            except RemoteProtocolError:
                raise self._no_bridge() from None
            except DeliveryError:
                self._at = self.bridge
            await trio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _no_bridge(self) -> RemoteError:
        return RemoteError(NO_BRIDGE, f"cluster {self.bridge!r} is no bridge")

    async def release(self, release: ReleaseKey) -> None:
        """Release a claim, if the bridge can be reached within a second."""
        with trio.move_on_after(_GOODBYE) as last, suppress(IrisError, trio.ClosedResourceError):
            last.shield = True
            await self._ask_member(release, _GOODBYE)

    async def _ask_member(self, request: KeyAsk[A], timeout: float) -> A:
        """Ask the member that keeps keys.  If the members do not agree on who that is, the answer says so."""
        answer = await self._bridges.ask(self._at, request, timeout)
        if answer.elsewhere is not None:
            self._at = answer.elsewhere
            answer = await self._bridges.ask(self._at, request, timeout)
            if answer.elsewhere is not None:
                self._at = self.bridge
        return answer


@final
class KeptOutcomes:
    """The outcomes of one membership of this node.

    Args:
        outcomes: rules by which they are kept.
        cluster: cluster that is served.
        bridges: the bridges, one of which keeps them.
        nursery: nursery of the tasks that record outcomes, also when the time of the request is over.
    """

    def __init__(self, outcomes: Outcomes, cluster: str, bridges: Bridges, nursery: trio.Nursery) -> None:
        self._outcomes, self._cluster, self._entropy = outcomes, cluster, bridges.entropy
        self._claims = KeyClaims(outcomes.bridge, bridges)
        self._nursery = nursery
        self.replayed = 0
        """Requests that were answered with a recorded outcome."""

    async def serve(
        self, request: Keyed, caller: str, key: str, run: Callable[[int, Outbox], Awaitable[tuple[Outcome, int]]]
    ) -> tuple[Outcome, int]:
        """Return what a request comes to, or came to before, and its size.

        Args:
            request: request with the key.
            caller: cluster that asks.
            key: idempotency key of the request.
            run: calls the handler, as an attempt of that number and with an outbox.

        Cancelled while the handler runs, the key is in doubt; before that, as if nothing had been asked.
        """
        step = request.undoes
        while True:
            claim = ClaimKey(
                cluster=self._cluster,
                caller=caller,
                on=request.operation,
                key=key,
                holder=self._entropy(16),
                fingerprint=_fingerprint(request.payload),
                keep=self._outcomes.keep,
                rerun=self._outcomes.rerun,
                undoes=None if step is None else StepName(operation=step.operation, key=step.key),
            )
            try:
                answer = await self._claims.claim(claim, request.deadline)
            except RemoteError as error:
                if error.code == NO_SUCH_OPERATION:
                    return _failure(request, NO_BRIDGE, f"cluster {self._outcomes.bridge!r} is no bridge")
                return _failure(request, error.code, error.message)
            except NoSuchCluster as error:
                text = (
                    f"an idempotency key needs a bridge, so the request did not run: {error}; start one ('iris bridge "
                    f"--name {self._outcomes.bridge}'), or name another in the Outcomes of the service"
                )
                return _failure(request, NO_BRIDGE, text)
            except NotAllowed as error:
                return _failure(request, "not_allowed", str(error))
            except BaseException:  # it may have been granted just now
                await self._claims.release(claim.release(begun=False))
                raise
            if answer.outcome is not None:
                self.replayed += 1
                return _decoded_untrusted(answer.outcome, request.identifier)
            attempt = answer.attempt or 1
            if answer.doubt is not None:
                text = f"node {answer.doubt:.64} had it, as attempt {attempt} of key {key!r:.100}"
                return kinds.Failure(request.identifier, IN_DOUBT, text), len(text)
            release = claim.release(begun=True)
            events: list[OutboxEvent] = []
            outcome: Outcome
            undone = b"" if answer.undone is UNSET else answer.undone
            if step is not None and step.needs_no_undo(undone):
                nothing = wire.encode_payload(None, MAX_OUTCOME)
                outcome, size = kinds.Reply(request.identifier, nothing), wire.payload_size(nothing)
            else:
                try:
                    outcome, size = await run(attempt, Outbox(partial(add_to_outbox, events)))
                except BaseException:
                    await self._claims.release(release)
                    raise
                if request.unserved is not None:  # no outcome: as if a member had refused it, or was lost with it
                    await self._claims.release(claim.release(begun=request.unserved))
                    return outcome, size
            outcome, size = _bounded(outcome, size)
            sent = tuple(events) if isinstance(outcome, kinds.Reply) else ()
            record = claim.record(attempt, _encoded(outcome, refused=request.refused), sent)
            counts = await self._recorded(record, request)
            if isinstance(counts, IrisError):
                await self._claims.release(release)
                code = counts.code if isinstance(counts, RemoteError) else type(counts).__name__
                text = f"the handler ran, and its outcome is not kept: {counts}"
                return kinds.Failure(request.identifier, code, text[:1024], OF_HANDLER), len(text)
            if counts:
                return outcome, size

    async def _recorded(self, record: RecordKey, request: Keyed) -> bool | IrisError:
        """Record an outcome, and wait for that; it goes on when this is cancelled.

        Returns:
            False if another member has taken over meanwhile, or why the bridge does not keep it.
        """
        counted: list[bool | IrisError] = []
        done = trio.Event()
        self._nursery.start_soon(self._record, record, request.operation, counted, done)
        await done.wait()
        return counted[0]

    async def _record(
        self, record: RecordKey, operation: str | None, counted: list[bool | IrisError], done: trio.Event
    ) -> None:
        try:
            counted.append(await self._claims.write(record))
        except trio.ClosedResourceError:  # the node ends
            return
        except IrisError as error:
            _log.error(
                "the outcome of a request with an idempotency key is not kept: %s",
                error,
                extra={"cluster": self._cluster, "operation": operation, "reason": str(error)},
            )
            counted.append(error)
        done.set()


def not_kept(cluster: str, identifier: int) -> kinds.Failure:
    """Return the refusal of a request with a key by a service that keeps no outcomes."""
    text = (
        f"cluster {cluster!r} keeps no outcomes, so the request did not run: make its Service with "
        "outcomes=iris.Outcomes(), or leave out idempotency_key"
    )
    return kinds.Failure(identifier, NOT_KEPT, text)


def _failure(request: Keyed, code: str, text: str) -> tuple[Outcome, int]:
    return kinds.Failure(request.identifier, code, text[:1024]), len(text)


def add_to_outbox(
    events: list[OutboxEvent], topic: str, payload: object, key: str | None, headers: Mapping[str, str] | None
) -> None:
    """Add an event to an outbox; see ``Outbox.publish`` for what it raises."""
    if not is_own_topic(topic):
        raise ConfigError(f"topic is {topic!r}: use tokens joined by dots, without '/', '+' or '#'")
    check_key(key)
    data, packed = wire.split_payload(encoded(payload, MAX_OUTCOME))
    wire.encode_headers(headers, MAX_HEADERS)
    if len(events) >= MAX_EVENTS or len(data) + sum(len(event.data) for event in events) > MAX_OUTCOME:
        raise PayloadTooLarge(f"an outbox has {MAX_EVENTS} events of {MAX_OUTCOME} bytes together at most")
    events.append(OutboxEvent(topic=topic, key=key, headers=dict(headers or {}), data=data, packed=packed))


def _fingerprint(payload: wire.Payload) -> bytes:
    data, packed = wire.split_payload(payload)
    return hashlib.blake2b(data, digest_size=16, person=b"packed" if packed else b"bytes").digest()


def _bounded(outcome: Outcome, size: int) -> tuple[Outcome, int]:
    """Return an outcome that can be kept: the same one each time, also for the caller that waits now."""
    if size <= MAX_OUTCOME:
        return outcome, size
    text = (
        f"the handler ran, and its reply of {size} bytes is above the {MAX_OUTCOME} that a bridge keeps for an "
        "idempotency key"
    )
    return kinds.Failure(outcome.id, TOO_LARGE_TO_KEEP, text, OF_HANDLER), len(text)


def _encoded(outcome: Outcome, *, refused: bool) -> bytes:
    """Return an outcome as the bridge keeps it, which does not look at it.

    Args:
        outcome: outcome of the handler; a failure as well, if it has returned what cannot be sent, or kept.
        refused: True if the handler says that it has had no effect.
    """
    if isinstance(outcome, kinds.Reply):
        data, packed = wire.split_payload(outcome.payload)
        return (b"p" if packed else b"b") + data
    return (_REFUSED if refused else _FAILED) + "\0".join((outcome.code.replace("\0", ""), outcome.text)).encode()


def _decoded_untrusted(data: bytes, identifier: int) -> tuple[Outcome, int]:
    kind, rest = data[:1], data[1:]
    if kind in (b"p", b"b"):
        return kinds.Reply(identifier, wire.join_payload(rest, packed=kind == b"p")), len(rest)
    code, _, text = rest.decode("utf-8", "replace").partition("\0")
    return kinds.Failure(identifier, code, text, OF_HANDLER), len(text)
