"""Saga: steps at several clusters, which are undone if a later one fails (Garcia-Molina and Salem, 1987).

Step ``n`` of the saga ``NAME`` has the idempotency key ``NAME/n``, its compensation ``NAME/n/undo``.  So a node that
runs the saga again after a crash gets the recorded outcomes of what was done, and goes on behind it.

The key ``NAME``, of the cluster that runs it, is claimed while the saga runs: it runs at one node at a time.  Before a
step is asked for, how to undo it is noted under that key.  So a node that takes over can undo what the one before has
begun, also if it does not come that far itself; and one that was taken over begins nothing more.  When the block fails
that list is recorded as the saga's end: from then on the saga can only be undone.

Every step of the list is undone, whatever has come of it.  The member that gets the compensation has the bridge close
the step's key before: what has not begun never does, and the compensation is called unless the bridge knows that the
step has had no effect.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, final

import msgspec
import trio
from msgspec import Struct

from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import (
    DeliveryError,
    IrisError,
    LeaseLost,
    NoSuchCluster,
    NotAllowed,
    PayloadTooLarge,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
    SagaUndone,
    Unknown,
    summary_of,
)
from iris.kernel.names import check_address, check_name
from iris.kernel.numerals import as_float
from iris.kernel.tasks import checkpointed, protected_context
from iris.patterns.bridge_protocol import MAX_OUTCOME, ClaimKey, KeyAnswer
from iris.patterns.payloads import encoded
from iris.patterns.request import UNDO, UNDOES, RequestOptions
from iris.patterns.service import KeyClaims

_log: Final = logging.getLogger("iris")

MAX_STEPS: Final = 1000
MAX_BYTES: Final = 128 * KIB
"""Size limit of the payloads of all steps that can be undone, in bytes."""

OPERATION: Final = "iris.saga"
_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
_AGAIN: Final = frozenset({"no_bridge", "no_shard_0", "not_stored", "too_many_keys", "paused"})
"""Codes of Iris's own, after which a compensation is tried again."""
_MAX_NOTES: Final = MAX_OUTCOME - 8 * KIB
"""Size limit of the list, in bytes, which leaves room for the error."""
_MAX_ERROR: Final = 1024
_ROOM: Final = bytes(_MAX_ERROR + 256)
"""Padding of the list, as long as the end is more: a bridge that accepts the list then accepts the end."""

AskMember = Callable[..., Awaitable[Any]]
"""``Node.request``."""

LeaveNotes = Callable[[bytes], Awaitable[None]]
"""Function that notes the list of what is to be undone, or raises and has noted nothing."""


class Undo(Struct, array_like=True):
    """Compensation of a step: the operation that undoes it, and its payload."""

    step: int
    cluster: str
    done: str | None
    """Operation of the step.  None if it named none."""
    operation: str
    data: bytes
    packed: bool
    timeout: float
    ran: bool = False
    """True once the step has had a reply."""

    def what(self) -> tuple[object, ...]:
        """Return what is the same when the block is run again."""
        return self.cluster, self.done, self.operation, self.data, self.packed


class _End(Struct, array_like=True):
    """End of a saga: the compensations to call, latest first; None if nothing is undone."""

    undo: list[Undo] | None
    error: str = ""
    steps: int = MAX_STEPS
    """Steps that it has made, if nothing is undone: there are no more when it is run again."""


_LIST: Final = msgspec.msgpack.Decoder(list[Undo])
_END: Final = msgspec.msgpack.Decoder(_End)


@final
class Saga:
    """A saga that runs.  Made by ``Bridge.saga``; one task at a time makes its steps."""

    def __init__(
        self, name: str, attempt: int, request: AskMember, noted: list[Undo], note: LeaveNotes | None, most: int
    ) -> None:
        self.name: Final = name
        self.attempt: Final = attempt
        """Number of the run.  Above 1: another node, or this one, has run it before, and was lost."""
        self._request = request
        self._note = note
        self._most = most
        self._steps = 0
        self._bytes = 0
        self._is_busy = self._is_over = False
        self._undo = {undo.step: undo for undo in noted}

    def __repr__(self) -> str:
        return f"<Saga {self.name!r}, {self._steps} steps>"

    @checkpointed
    async def request(
        self,
        cluster: str,
        payload: object = b"",
        *,
        operation: str | None = None,
        undo: str | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """Make the next step: ask a member of a cluster, once, and return its reply.

        When the saga runs again after a crash, a step that has an outcome gets that, and its handler is not called.  So
        the block must make the same steps in the same order, with the same payloads.

        Args:
            cluster: its service keeps outcomes (``iris.Outcomes``), for longer than the saga may take.
            payload: as for ``Node.request``.
            operation: as for ``Node.request``.
            undo: operation of the same cluster that undoes this step; it gets the same payload, and the key of the step
                as ``Request.undoes``.  It is called if the step had its effect, or may have had, and then does nothing
                if there is none: not if the step never began, or its handler raised ``RemoteError``.  None: there is
                nothing to undo, whatever the step has done.
            timeout: seconds for this step, and for each attempt to undo it.

        Raises:
            PayloadTooLarge: there are 1,000 steps, or 128 KiB of payloads of steps that can be undone, 248 KiB with
                their names.
            LeaseLost: another node has taken the saga over.  The step was not asked for.
            trio.BusyResourceError: another task makes a step.
            trio.ClosedResourceError: the block has ended.
            Others: as ``Node.request`` with an idempotency key.  ``RemoteError`` with ``key_reused``: the block made
                another step here before, or none.

        Cancelling it is cancelling the request; the step may have run.
        """
        check_address(cluster)
        for named in (operation, undo):
            if named is not None:
                check_name(named, "operation")
        data, packed = wire.split_payload(encoded(payload, MAX_BYTES))
        if self._is_over:
            raise trio.ClosedResourceError(f"the block of saga {self.name!r} has ended")
        if self._is_busy:
            raise trio.BusyResourceError(f"another task makes a step of saga {self.name!r}")
        step = self._steps
        if step >= MAX_STEPS or self._bytes + len(data) > MAX_BYTES:
            raise PayloadTooLarge(f"a saga has {MAX_STEPS} steps, and {MAX_BYTES} bytes of payloads, at most")
        if step >= self._most:
            raise RemoteError("key_reused", f"saga {self.name!r} has ended before, and had {step} steps")
        self._is_busy = True
        try:
            if undo is not None:
                self._bytes += len(data)
                await self._noted(Undo(step, cluster, operation, undo, data, packed, as_float(timeout)))
            self._steps += 1
            given = _payload(data, packed=packed)  # what was noted, and not what the caller has made of it meanwhile
            key = f"{self.name}/{step}"
            reply = await self._request(
                cluster, given, operation=operation, timeout=timeout, options=RequestOptions(idempotency_key=key)
            )
        finally:
            self._is_busy = False
        if undo is not None and step in self._undo:
            self._undo[step].ran = True
        return reply

    async def _noted(self, undo: Undo) -> None:
        """Note how a step is undone before it is asked for: whatever comes of that, it may have run."""
        before = self._undo.get(undo.step)
        if before is not None and before.what() != undo.what():
            raise RemoteError("key_reused", f"step {undo.step} of saga {self.name!r} was another one before")
        if before is None and self._note is not None:
            notes = msgspec.msgpack.encode([*self._undo.values(), undo])
            if len(notes) > _MAX_NOTES:
                raise PayloadTooLarge(f"a saga has {_MAX_NOTES} bytes of steps that can be undone at most")
            await self._note(notes)
            self._undo[undo.step] = undo

    def _check_made(self) -> None:
        """Raise RemoteError unless the block has made each step that was begun in a former run."""
        if self._note is not None and any(step >= self._steps for step in self._undo):
            raise RemoteError("key_reused", f"saga {self.name!r} has {self._steps} steps, and had more before")


@protected_context
async def open_saga(
    request: AskMember, claims: KeyClaims, cluster: str, name: str, timeout: float, keep: float, holder: bytes
) -> AsyncIterator[Saga]:
    """Run a saga; see ``Bridge.saga``.

    Args:
        request: ``Node.request``.
        claims: claims of keys at the bridge.
        cluster: cluster that this node speaks for.
        name: name of the saga.
        timeout: seconds that the block may take.
        keep: seconds for which its key is remembered.
        holder: 16 random bytes.
    """
    claim = ClaimKey(
        cluster=cluster,
        caller=cluster,
        on=OPERATION,
        key=name,
        holder=holder,
        fingerprint=bytes(16),
        keep=keep,
        rerun=True,
    )
    deadline = trio.current_time() + timeout
    answer = await _claimed(claims, claim, timeout, deadline)
    try:
        end = None if answer.outcome is None else _END.decode(answer.outcome)
        noted = _LIST.decode(answer.notes) if answer.notes else []
    except (msgspec.MsgspecError, TypeError) as error:
        raise RemoteProtocolError(f"what is kept of saga {name!r} is of another version of Iris: {error}") from None
    if end is not None and end.undo is not None:
        failed = await _compensate(request, name, end.undo)
        raise SagaUndone(f"saga {name!r} was undone: {end.error}", failed=failed)

    async def note(notes: bytes) -> None:
        if not await claims.write(claim.note(notes, _ROOM)):
            raise LeaseLost(f"saga {name!r} was taken over by another node")

    most = MAX_STEPS if end is None else end.steps
    saga = Saga(name, answer.attempt or 1, request, noted, note if end is None else None, most)
    scope = trio.CancelScope(deadline=deadline)
    try:
        with scope:
            try:
                yield saga
            finally:
                saga._is_over = True
            saga._check_made()
    except Exception as error:
        if end is not None:
            raise
        why = summary_of(error).encode()[:_MAX_ERROR].decode(errors="ignore")
        undo = [saga._undo[step] for step in sorted(saga._undo, reverse=True)]
        await _record(claims, claim, saga.attempt, _End(undo, why))
        failed = await _compensate(request, name, undo)
        raise SagaUndone(f"saga {name!r} was undone: {why}", failed=failed) from error
    except BaseException:
        await claims.release(claim.release(begun=True))
        raise
    if scope.cancelled_caught:
        await claims.release(claim.release(begun=True))
        raise RequestTimeout(f"saga {name!r} has not ended within {timeout:g} s: it goes on when it is run again")
    if end is None:
        await _record(claims, claim, saga.attempt, _End(None, steps=saga._steps))


async def _claimed(claims: KeyClaims, claim: ClaimKey, timeout: float, deadline: float) -> KeyAnswer:
    with trio.move_on_at(deadline):
        try:
            return await claims.claim(claim, deadline)
        except NoSuchCluster:
            raise NoSuchCluster(
                f"a saga needs a bridge, which keeps how far it is, and no node serves {claims.bridge!r}: start one "
                "('iris bridge'), or name another: node.bridge(NAME)"
            ) from None
        except BaseException:
            await claims.release(claim.release(begun=False))
            raise
    raise RequestTimeout(f"saga {claim.key!r} is run by another node, and has not ended within {timeout:g} s")


async def _record(claims: KeyClaims, claim: ClaimKey, attempt: int, end: _End) -> None:
    """Record how a saga ends; raise LeaseLost if another node has taken over."""
    if not await claims.write(claim.record(attempt, msgspec.msgpack.encode(end))):
        raise LeaseLost(f"saga {claim.key!r} was taken over by another node while it ended here")


async def _compensate(request: AskMember, name: str, undo: list[Undo]) -> list[str]:
    """Call the compensations, each until it has an outcome; return those that may not have been done."""
    failed: list[str] = []
    for step in undo:
        cluster, operation, key = step.cluster, step.operation, f"{name}/{step.step}{UNDO}"
        payload = _payload(step.data, packed=step.packed)
        headers = {UNDOES: f"{'ran' if step.ran else 'asked'} {step.done or ''}"}
        options, pause = RequestOptions(idempotency_key=key), _PAUSE
        while True:
            try:
                await request(
                    cluster, payload, operation=operation, timeout=step.timeout, headers=headers, options=options
                )
                break
            except IrisError as error:
                again = isinstance(error, DeliveryError) and not isinstance(error, Unknown | NotAllowed)
                if isinstance(error, RemoteError):
                    again = error.code in _AGAIN
                what = "has no outcome yet" if again else "was not done, as far as is known, and is not called again"
                _log.log(
                    logging.WARNING if again else logging.ERROR,
                    "saga %s: the compensation %s of cluster %s %s: %s",
                    name, operation, cluster, what, error,
                    extra={"cluster": cluster, "operation": operation, "reason": str(error)},
                )  # fmt: skip
                if not again:
                    failed.append(f"{cluster}.{operation} ({key}): {error}")
                    break
            await trio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
    return failed


def _payload(data: bytes, *, packed: bool) -> Any:
    return wire.decode_payload_untrusted(wire.join_payload(data, packed=packed))


__all__ = ("Saga", "open_saga")
