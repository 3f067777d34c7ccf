"""Saga: steps at several clusters, which are undone if a later one fails (Garcia-Molina and Salem, 1987).

There is no journal of a saga beside the keys of its requests.  Step ``n`` of the saga ``NAME`` has the idempotency key
``NAME/n``, its compensation ``NAME/n/undo``.  So a node that runs the saga again after a crash gets the recorded
outcomes of what was done, and goes on behind it.  The key ``NAME``, of the cluster that runs it, is claimed while the
saga runs: it runs at one node at a time.  Before the first compensation the list of all of them is recorded under it.
From then on the saga can only be undone, also by a node that does not come to the same end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, cast, final

import trio

from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.errors import (
    DeliveryError,
    LeaseLost,
    NoSuchCluster,
    NotAllowed,
    PayloadTooLarge,
    RemoteError,
    RequestTimeout,
    SagaUndone,
    Unknown,
    summary_of,
)
from iris.kernel.names import check_name
from iris.kernel.tasks import protected_context
from iris.patterns.payloads import encoded
from iris.patterns.service import KeyClaims

_log: Final = logging.getLogger("iris")

MAX_STEPS: Final = 1000
MAX_BYTES: Final = 128 * KIB
"""Payloads of all steps that can be undone."""

OPERATION: Final = "iris.saga"
_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
_MAY_HAVE_RUN: Final = frozenset(
    {"no_outcomes", "no_bridge", "no_shard_0", "not_stored", "too_many_keys", "paused", "reply_too_large_to_keep"}
)
"""Codes of Iris's own, which say nothing of what an earlier attempt did."""

AskMember = Callable[..., Awaitable[Any]]
"""``Node.request``."""


@final
class Saga:
    """A saga that runs.  Made by ``Node.saga``; one task at a time makes its steps."""

    def __init__(self, name: str, attempt: int, request: AskMember) -> None:
        self.name: Final = name
        self.attempt: Final = attempt
        """Above 1: another node, or this one, has run it before, and was lost."""
        self._request = request
        self._steps = 0
        self._bytes = 0
        self._undo: list[list[Any]] = []

    def __repr__(self) -> str:
        return f"<Saga {self.name!r}, {self._steps} steps>"

    async def request(
        self,
        cluster: str,
        payload: Any = b"",
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
            undo: operation of the same cluster that undoes this step; it gets the same payload.  It is called if the
                step had its effect, or may have had, and then does nothing if there is none.  None: there is nothing to
                undo.
            timeout: seconds for this step, and for each attempt to undo it.

        Raises:
            PayloadTooLarge: there are 1,000 steps, or 128 KiB of payloads of steps that can be undone.
            Others: as ``Node.request`` with an idempotency key.  ``RemoteError`` with ``key_reused``: the block made
                another step here before.

        Cancelling it is cancelling the request.
        """
        if undo is not None:
            check_name(undo, "operation")
        data, packed = wire.split_payload(encoded(payload, MAX_BYTES))
        if self._steps >= MAX_STEPS or self._bytes + len(data) > MAX_BYTES:
            raise PayloadTooLarge(f"a saga has {MAX_STEPS} steps, and {MAX_BYTES} bytes of payloads, at most")
        key = f"{self.name}/{self._steps}"
        self._steps += 1
        if undo is not None:  # before it is asked: if no reply comes, it may have run all the same
            self._bytes += len(data)
            self._undo.append([cluster, undo, data, packed, f"{key}/undo", timeout])
        try:
            return await self._request(cluster, payload, operation=operation, timeout=timeout, idempotency_key=key)
        except RemoteError as error:
            if undo is not None and error.code not in _MAY_HAVE_RUN:
                self._undo.pop()  # its handler has said so itself
            raise


@protected_context
async def open_saga(
    request: AskMember, claims: KeyClaims, cluster: str, name: str, timeout: float, keep: float, holder: bytes
) -> AsyncIterator[Saga]:
    """Run a saga; see ``Node.saga``.

    Args:
        request: ``Node.request``.
        claims: of the bridge.
        cluster: that this node speaks for.
        name: of the saga.
        timeout: seconds.
        keep: seconds.
        holder: 16 random bytes.
    """
    named = {"cluster": cluster, "caller": cluster, "operation": OPERATION, "key": name, "holder": holder}
    terms = {**named, "fingerprint": bytes(16), "keep": keep, "rerun": True}
    deadline = trio.current_time() + timeout
    answer = await _claimed(claims, terms, name, timeout, deadline)
    verdict = _verdict(answer)
    if verdict is not None and verdict["undo"] is not None:
        failed = await _compensate(request, name, verdict["undo"])
        raise SagaUndone(f"saga {name!r} was undone: {verdict['error']}", failed=failed)
    saga = Saga(name, answer.get("attempt", 1), request)
    scope = trio.CancelScope(deadline=deadline)
    try:
        with scope:
            yield saga
    except Exception as error:
        why = summary_of(error)[:1024]
        undo = saga._undo[::-1]
        if verdict is None:
            await _record(claims, terms, name, saga.attempt, {"undo": undo, "error": why})
            failed = await _compensate(request, name, undo)
            raise SagaUndone(f"saga {name!r} was undone: {why}", failed=failed) from error
        raise
    except BaseException:
        await claims.release(named, begun=True)
        raise
    if scope.cancelled_caught:
        await claims.release(named, begun=True)
        raise RequestTimeout(f"saga {name!r} has not ended within {timeout:g} s: it goes on when it is run again")
    if verdict is None:
        await _record(claims, terms, name, saga.attempt, {"undo": None, "error": ""})


async def _claimed(
    claims: KeyClaims, terms: Mapping[str, Any], name: str, timeout: float, deadline: float
) -> dict[str, Any]:
    with trio.move_on_at(deadline):
        try:
            return await claims.claim(terms, deadline)
        except NoSuchCluster:
            raise NoSuchCluster(
                f"a saga needs a bridge, which keeps how far it is, and no node serves {claims.bridge!r}: start one "
                "('iris bridge'), or name another with bridge="
            ) from None
        except BaseException:
            await claims.release(terms, begun=False)
            raise
    raise RequestTimeout(f"saga {name!r} is run by another node, and has not ended within {timeout:g} s")


async def _record(
    claims: KeyClaims, terms: Mapping[str, Any], name: str, attempt: int, verdict: Mapping[str, Any]
) -> None:
    """Record how a saga ends.

    Raises:
        LeaseLost: another node has taken over.
    """
    data, _ = wire.split_payload(wire.encode_payload(dict(verdict), 2 * MAX_BYTES))
    if not await claims.record({**terms, "attempt": attempt, "outcome": data}):
        raise LeaseLost(f"saga {name!r} was taken over by another node while it ended here")


def _verdict(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    data = answer.get("outcome")
    if data is None:
        return None
    return cast("dict[str, Any]", wire.decode_payload_untrusted(wire.join_payload(data, packed=True)))


async def _compensate(request: AskMember, name: str, undo: list[list[Any]]) -> list[str]:
    """Call the compensations, each until it has an outcome; return those that raised."""
    failed: list[str] = []
    for cluster, operation, data, packed, key, timeout in undo:
        payload = wire.decode_payload_untrusted(wire.join_payload(data, packed=packed))
        pause = _PAUSE
        while True:
            try:
                await request(cluster, payload, operation=operation, timeout=timeout, idempotency_key=key)
            except RemoteError as error:
                if error.code not in _MAY_HAVE_RUN:
                    _log.error(
                        "saga %s: the compensation %s of cluster %s raised, and is not called again: %s",
                        name, operation, cluster, error,
                        extra={"cluster": cluster, "operation": operation, "reason": str(error)},
                    )  # fmt: skip
                    failed.append(f"{cluster}.{operation} ({key}): {error}")
                    break
            except (Unknown, NotAllowed) as error:
                _log.error(
                    "saga %s: nobody knows how far the compensation %s of cluster %s came: %s",
                    name, operation, cluster, error,
                    extra={"cluster": cluster, "operation": operation, "reason": str(error)},
                )  # fmt: skip
                failed.append(f"{cluster}.{operation} ({key}): {error}")
                break
            except DeliveryError as error:
                _log.warning(
                    "saga %s: the compensation %s of cluster %s has no outcome yet: %s",
                    name, operation, cluster, error,
                    extra={"cluster": cluster, "operation": operation, "reason": str(error)},
                )  # fmt: skip
            else:
                break
            await trio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
    return failed


__all__ = ("Saga", "open_saga")
