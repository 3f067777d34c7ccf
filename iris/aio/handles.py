"""Handles of a node, for asyncio: tunnels, subscriptions, answers, changes, confirmed events, a membership."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, final

import trio

from iris.aio.crossing import Handle, Source, awaited, direct
from iris.aio.guest import Guest, turn_after_error, turning
from iris.cluster.membership import Change
from iris.cluster.membership import Watch as TrioWatch
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId
from iris.node.join import ClusterMembership as TrioMembership
from iris.node.shown import Shown
from iris.patterns.books import Loss
from iris.patterns.books import LossWatch as TrioLossWatch
from iris.patterns.messages import Answer, Sender
from iris.patterns.multicast import Answers as TrioAnswers
from iris.patterns.multicast import StopReason
from iris.patterns.pubsub.publish import ConfirmedEvents as TrioConfirmed
from iris.patterns.pubsub.subscribe import Event, Overflow, batch_size
from iris.patterns.pubsub.subscribe import Subscription as TrioSubscription
from iris.patterns.state import Lease as TrioLease
from iris.patterns.state import Saga as TrioSaga
from iris.patterns.state import SharedState as TrioState
from iris.patterns.state import StateChange
from iris.patterns.state import StateWatch as TrioStateWatch
from iris.patterns.tunnel import Tunnel as TrioTunnel


@final
class Tunnel(Source[TrioTunnel, Any]):
    """See ``iris.Tunnel``: an ordered, throttled, two-way channel between two nodes."""

    __slots__ = ("_line", "_sending")

    def __init__(self, inner: TrioTunnel, guest: Guest) -> None:
        super().__init__(inner, guest)
        self._sending = 0
        """Number of messages that could not be sent at once.  Those that come meanwhile stand in line behind them."""
        self._line: Final = asyncio.Lock()

    sender = Shown[Sender]()
    cluster = Shown[str]()
    operation = Shown[str | None]()
    headers = Shown[Mapping[str, str]]()
    max_message = Shown[int]()
    is_closed = Shown[bool]()
    is_broken = Shown[bool]()
    was_finished_by_peer = Shown[bool]()
    send_eof = awaited(TrioTunnel.send_eof)
    send_file = awaited(TrioTunnel.send_file)
    receive_file = awaited(TrioTunnel.receive_file)
    aclose = awaited(TrioTunnel.aclose)
    abort = direct(TrioTunnel.abort)
    statistics = direct(TrioTunnel.statistics)

    async def send(self, payload: object) -> None:
        """See ``iris.Tunnel.send``."""
        try:
            inner, guest = self._inner, self._guest
            if not guest.runs_here():
                return await guest.call(partial(inner.send, payload))  # which says so
            if self._sending or not inner._send_at_once(payload):
                self._sending += 1
                try:
                    # Trio begins calls in an order of its own; so the one before is over first.
                    async with self._line:
                        if not inner._send_at_once(payload):
                            await guest.call(partial(inner.send, payload))
                finally:
                    self._sending -= 1
            return None
        except Exception:
            await turn_after_error()
            raise

    async def __anext__(self) -> Any:
        try:
            if not self._arrived and self._guest.runs_here():
                message = self._inner._receive_at_once()
                if message is None:
                    await self._guest.wait_woken(self._inner._watch_readable)
                    message = self._inner._receive_at_once()
                if message is not None:
                    return message[0]
            return await super().__anext__()
        except Exception:
            await turn_after_error()
            raise

    async def receive(self) -> Any:
        """See ``iris.Tunnel.receive``."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    async def __aenter__(self) -> Self:
        """Return the tunnel."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the tunnel; after an error in the block, abort it."""
        if kind is None:
            await self.aclose()
        else:
            self._inner._abort_for(error)


@final
class Subscription(Source[TrioSubscription, Event]):
    """See ``iris.Subscription``: the events that match a pattern, in the order of each publisher."""

    __slots__ = ()

    pattern = Shown[str]()
    group = Shown[str | None]()
    durable = Shown[bool]()
    overflow = Shown[Overflow]()
    confirm = awaited(TrioSubscription.confirm)
    statistics = direct(TrioSubscription.statistics)

    @turning
    async def receive_batch(self, max_events: int = 1024) -> list[Event]:
        """See ``iris.Subscription.receive_batch``."""
        most = batch_size(max_events)
        try:
            batch = [await anext(self)]
        except StopAsyncIteration:
            raise trio.EndOfChannel from None
        batch += (self._arrived.popleft() for _ in range(min(most - 1, len(self._arrived))))
        return self._inner._filled(batch, most) if self._guest.runs_here() else batch

    async def __anext__(self) -> Event:
        inner, guest = self._inner, self._guest
        event = None if self._arrived else inner._pop_nowait()
        while event is None and not self._arrived and guest.runs_here():
            event = inner._pop_at_once()
            if event is None and inner._is_turn_over():
                await asyncio.sleep(0)
                inner._begin_turn()
            elif event is None:
                if not await guest.wait_woken(inner._watch):
                    break
                if guest.runs_here():
                    inner._begin_turn()
        return await super().__anext__() if event is None else event


@final
class Answers(Source[TrioAnswers, Answer]):
    """See ``iris.Answers``: the answers to one survey, in the order of their arrival."""

    __slots__ = ()

    asked = Shown[tuple[NodeId, ...]]()
    errors = Shown[dict[NodeId, IrisError]]()
    ended_by = Shown[StopReason | None]()
    expected = Shown[int]()
    missing = Shown[tuple[NodeId, ...]]()


@final
class Watch(Source[TrioWatch, Change]):
    """See ``iris.Watch``: the changes of one cluster."""

    __slots__ = ()

    cluster = Shown[str]()
    missed = Shown[int]()


@final
class StateWatch(Source[TrioStateWatch, StateChange]):
    """See ``iris.StateWatch``: the changes of what a pattern matches in a document."""

    __slots__ = ()

    pattern = Shown[str]()


@final
class LossWatch(Source[TrioLossWatch, Loss]):
    """See ``iris.LossWatch``: the losses of a node, as they are found."""

    __slots__ = ()


@final
class SharedState(Handle[TrioState], MutableMapping[str, Any]):
    """See ``iris.SharedState``: a document that every member of a cluster has a copy of."""

    __slots__ = ()

    name = Shown[str]()
    counter = direct(TrioState.counter)
    set = direct(TrioState.set)
    map = direct(TrioState.map)
    settled = awaited(TrioState.settled)
    statistics = direct(TrioState.statistics)
    update = direct(TrioState.update)  # type: ignore[arg-type, assignment]
    pop: Any = direct(TrioState.pop)  # overloaded
    clear = direct(TrioState.clear)  # pyright: ignore[reportAssignmentType]
    __getitem__ = direct(TrioState.__getitem__)
    __setitem__ = direct(TrioState.__setitem__)
    __delitem__ = direct(TrioState.__delitem__)
    __contains__ = direct(TrioState.__contains__)
    __iter__ = direct(TrioState.__iter__)  # pyright: ignore[reportAssignmentType]
    __len__ = direct(TrioState.__len__)  # pyright: ignore[reportAssignmentType]

    def watch(self, pattern: str = ">") -> StateWatch:
        """See ``iris.SharedState.watch``."""
        return StateWatch(self._inner.watch(pattern), self._guest)


@final
class Lease(Handle[TrioLease]):
    """See ``iris.Lease``: the right to do something alone."""

    __slots__ = ()

    name = Shown[str]()
    token = Shown[int]()
    left = Shown[float]()


@final
class ConfirmedEvents(Handle[TrioConfirmed]):
    """See ``iris.ConfirmedEvents``: publishes events that are all confirmed when the block ends."""

    __slots__ = ()

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """See ``iris.ConfirmedEvents.publish``."""
        try:
            inner = self._inner
            if not (self._guest.runs_here() and inner._publish_at_once(topic, payload, key, headers, expires)):
                publish = partial(inner.publish, topic, payload, key=key, headers=headers, expires=expires)
                await self._guest.call(publish, here=False)
        except Exception:
            await turn_after_error()
            raise

    wait_confirmed = awaited(TrioConfirmed.wait_confirmed)
    published = Shown[int]()
    confirmed = Shown[int]()


@final
class Saga(Handle[TrioSaga]):
    """See ``iris.Saga``."""

    __slots__ = ()

    request = awaited(TrioSaga.request)
    name = Shown[str]()
    attempt = Shown[int]()


@final
class ClusterMembership(Handle[TrioMembership]):
    """See ``iris.ClusterMembership``: this node as a member of a cluster."""

    __slots__ = ()

    cluster = Shown[str]()
    statistics = direct(TrioMembership.statistics)


__all__ = (
    "Answers", "ClusterMembership", "ConfirmedEvents", "Lease", "LossWatch", "Saga", "SharedState",
    "StateWatch", "Subscription", "Tunnel", "Watch",
)  # fmt: skip
