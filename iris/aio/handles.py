"""What a node gives, for asyncio: tunnels, subscriptions, answers, changes, confirmed events, a membership."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, final

import trio

from iris.aio.crossing import Handle, Source, awaited, direct
from iris.aio.guest import Guest
from iris.cluster.membership import Change
from iris.cluster.membership import Watch as TrioWatch
from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId
from iris.node.join import ClusterMembership as TrioMembership
from iris.patterns.messages import Answer, Sender
from iris.patterns.multicast import Answers as TrioAnswers
from iris.patterns.multicast import StopReason
from iris.patterns.pubsub.publish import ConfirmedEvents as TrioConfirmed
from iris.patterns.pubsub.subscribe import Event
from iris.patterns.pubsub.subscribe import Subscription as TrioSubscription
from iris.patterns.tunnel import Tunnel as TrioTunnel


@final
class Tunnel(Source[TrioTunnel, Any]):
    """See ``iris.Tunnel``: an ordered, throttled, two-way channel between two nodes."""

    __slots__ = ("cluster", "headers", "operation", "sender")

    def __init__(self, inner: TrioTunnel, guest: Guest) -> None:
        super().__init__(inner, guest)
        self.sender: Final[Sender] = inner.sender
        self.cluster: Final[str] = inner.cluster
        self.operation: Final[str | None] = inner.operation
        self.headers: Final[Mapping[str, str]] = inner.headers

    send = awaited(TrioTunnel.send)
    send_eof = awaited(TrioTunnel.send_eof)
    send_file = awaited(TrioTunnel.send_file)
    receive_file = awaited(TrioTunnel.receive_file)
    aclose = awaited(TrioTunnel.aclose)
    abort = direct(TrioTunnel.abort)
    statistics = direct(TrioTunnel.statistics)

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

    @property
    def max_message(self) -> int:
        """Largest message that ``send`` takes, in bytes."""
        return self._inner.max_message

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed."""
        return self._inner.is_closed

    @property
    def is_broken(self) -> bool:
        """Whether it has ended, or was closed here."""
        return self._inner.is_broken

    @property
    def was_finished_by_peer(self) -> bool:
        """Whether the other end closed the tunnel on purpose and without an error."""
        return self._inner.was_finished_by_peer


@final
class Subscription(Source[TrioSubscription, Event]):
    """See ``iris.Subscription``: the events that match a pattern, in the order of each publisher."""

    __slots__ = ("durable", "group", "overflow", "pattern")

    def __init__(self, inner: TrioSubscription, guest: Guest) -> None:
        super().__init__(inner, guest)
        self.pattern: Final = inner.pattern
        self.group: Final = inner.group
        self.durable: Final = inner.durable
        self.overflow: Final = inner.overflow

    confirm = awaited(TrioSubscription.confirm)
    statistics = direct(TrioSubscription.statistics)

    async def receive_batch(self, max_events: int = 1024) -> list[Event]:
        """See ``iris.Subscription.receive_batch``."""

        async def fetch() -> None:
            self._arrived.extend(await self._inner.receive_batch(max_events))

        while not self._arrived:
            await self._guest.call(fetch)
        return [self._arrived.popleft() for _ in range(min(max_events, len(self._arrived)))]

    async def __anext__(self) -> Event:
        event = None if self._arrived else self._inner._take_at_once()
        return await super().__anext__() if event is None else event


@final
class Answers(Source[TrioAnswers, Answer]):
    """See ``iris.Answers``: the answers to one survey, in the order of their arrival."""

    __slots__ = ("asked",)

    def __init__(self, inner: TrioAnswers, guest: Guest) -> None:
        super().__init__(inner, guest)
        self.asked: Final = inner.asked

    @property
    def errors(self) -> dict[NodeId, IrisError]:
        """What went wrong, for each member that failed."""
        return self._inner.errors

    @property
    def ended_by(self) -> StopReason | None:
        """``all``, ``count``, ``quiet`` or ``deadline``; None while it goes on."""
        return self._inner.ended_by

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """The members that have not answered."""
        return self._inner.missing


@final
class Watch(Source[TrioWatch, Change]):
    """See ``iris.Watch``: the changes of one cluster."""

    __slots__ = ("cluster",)

    def __init__(self, inner: TrioWatch, guest: Guest) -> None:
        super().__init__(inner, guest)
        self.cluster: Final = inner.cluster

    @property
    def missed(self) -> int:
        """Changes that were lost, because 65,536 of them waited."""
        return self._inner.missed


@final
class ConfirmedEvents(Handle[TrioConfirmed]):
    """See ``iris.ConfirmedEvents``: publishes events that are all confirmed when the block ends."""

    __slots__ = ()

    publish = awaited(TrioConfirmed.publish)
    wait_confirmed = awaited(TrioConfirmed.wait_confirmed)

    @property
    def published(self) -> int:
        """Events given to ``publish``."""
        return self._inner.published

    @property
    def confirmed(self) -> int:
        """So many of the first events are on the disk of every durable subscriber."""
        return self._inner.confirmed


@final
class ClusterMembership(Handle[TrioMembership]):
    """See ``iris.ClusterMembership``: this node as a member of a cluster."""

    __slots__ = ("cluster",)

    def __init__(self, inner: TrioMembership, guest: Guest) -> None:
        super().__init__(inner, guest)
        self.cluster: Final = inner.cluster

    statistics = direct(TrioMembership.statistics)


__all__ = (
    "Answers", "ClusterMembership", "ConfirmedEvents", "Subscription", "Tunnel", "Watch",
)  # fmt: skip
