"""Handles of a node, as plain calls: tunnels, subscriptions, answers, changes, confirmed events, a membership."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, MutableSet, ValuesView
from collections.abc import Set as AbstractSet
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

import trio

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
from iris.patterns.state import SharedCounter as TrioCounter
from iris.patterns.state import SharedMap as TrioMap
from iris.patterns.state import SharedSet as TrioSet
from iris.patterns.state import SharedState as TrioState
from iris.patterns.state import StateChange
from iris.patterns.state import StateWatch as TrioStateWatch
from iris.patterns.tunnel import Tunnel as TrioTunnel
from iris.sync.crossing import Handle, Source, awaited, direct, shared

_M = TypeVar("_M", bound=TrioMap)


def _published(events: TrioConfirmed) -> int:
    return events.published


_AT_A_TIME: Final = 256
"""Events that cross to the thread that takes them at a time."""


@final
class Tunnel(Source[TrioTunnel, Any]):
    """See ``iris.Tunnel``: an ordered, throttled, two-way channel between two nodes."""

    __slots__ = ()

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
    close = awaited(TrioTunnel.aclose)
    abort = direct(TrioTunnel.abort)
    statistics = direct(TrioTunnel.statistics)

    def send(self, payload: object) -> None:
        """See ``iris.Tunnel.send``."""
        inner = self._inner
        self._portal.call(
            partial(inner.send, payload), lambda _woken, _deadline: (None,) if inner._send_at_once(payload) else None
        )

    def _fetch_at_once(self) -> bool:
        message = self._inner._receive_at_once()
        if message is None:
            return False
        self._arrived.append(message[0])
        return True

    def receive(self) -> Any:
        """See ``iris.Tunnel.receive``."""
        try:
            return next(self)
        except StopIteration:
            raise trio.EndOfChannel from None

    def __enter__(self) -> Self:
        """Return the tunnel."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the tunnel; after an error in the block, abort it."""
        if kind is None:
            self.close()
        else:
            self._portal.call_plain(partial(self._inner._abort_for, error))


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

    def receive_batch(self, max_events: int = 1024) -> list[Event]:
        """See ``iris.Subscription.receive_batch``."""

        async def fetch() -> None:
            self._arrived.extend(await self._inner.receive_batch(max_events))

        while not self._arrived:
            self._portal.call_even_closed(
                fetch, lambda _woken, _deadline: (None,) if self._fill(batch_size(max_events)) else None, "none"
            )
        return [self._arrived.popleft() for _ in range(min(max_events, len(self._arrived)))]

    @property
    def _most(self) -> int:
        """Events to take at a time: what a member of a group has taken and not handled goes to another one."""
        return 1 if self.group is not None else _AT_A_TIME

    async def _fetch(self) -> None:
        self._arrived.extend(await self._inner.receive_batch(self._most))

    def _fetch_at_once(self) -> bool:
        return self._fill(self._most)

    def _fill(self, most: int) -> bool:
        """Take up to ``most`` events that are here already, in the trio run; return whether there was any."""
        self._inner._begin_turn()  # each crossing is one
        first = self._inner._pop_at_once()
        if first is not None:
            self._arrived.extend(self._inner._filled([first], most))
        return first is not None


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
class SharedCounter(Handle[TrioCounter]):
    """See ``iris.SharedCounter``: a number that members add to."""

    __slots__ = ()

    add = direct(TrioCounter.add)
    __int__ = direct(TrioCounter.__int__)

    @property
    def value(self) -> int:
        """The sum of what all members have added."""
        return int(self)


@final
class SharedSet(Handle[TrioSet], MutableSet[Any]):
    """See ``iris.SharedSet``: a set of values."""

    __slots__ = ()

    add = direct(TrioSet.add)
    discard = direct(TrioSet.discard)
    remove = direct(TrioSet.remove)
    clear = direct(TrioSet.clear)  # pyright: ignore[reportAssignmentType]
    __contains__ = direct(TrioSet.__contains__)
    __iter__ = direct(TrioSet.__iter__)  # pyright: ignore[reportAssignmentType]
    __len__ = direct(TrioSet.__len__)  # pyright: ignore[reportAssignmentType]

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> AbstractSet[Any]:
        """Return what an operator such as ``&`` makes: a plain set."""
        return set(it)


def _keys(values: TrioMap) -> Iterator[str]:
    return iter(list(values))


def _items(values: TrioMap) -> ItemsView[str, Any]:
    return dict(values).items()


def _values(values: TrioMap) -> ValuesView[Any]:
    return dict(values).values()


class _Values(Handle[_M], MutableMapping[str, Any]):
    """Values by their keys.  Each call is one step: of what goes through all of them others see no half."""

    __slots__ = ()

    update = direct(TrioMap.update)  # type: ignore[arg-type, assignment]
    pop: Any = direct(TrioMap.pop)  # overloaded
    popitem = direct(TrioMap.popitem)  # pyright: ignore[reportAssignmentType]
    setdefault: Any = direct(TrioMap.setdefault)
    clear = direct(TrioMap.clear)  # pyright: ignore[reportAssignmentType]
    items = direct(_items)  # pyright: ignore[reportAssignmentType]
    values = direct(_values)  # pyright: ignore[reportAssignmentType]
    __getitem__ = direct(TrioMap.__getitem__)
    __setitem__ = direct(TrioMap.__setitem__)
    __delitem__ = direct(TrioMap.__delitem__)
    __contains__ = direct(TrioMap.__contains__)
    __iter__ = direct(_keys)  # pyright: ignore[reportAssignmentType]
    __len__ = direct(TrioMap.__len__)  # pyright: ignore[reportAssignmentType]


@final
class SharedMap(_Values[TrioMap]):
    """See ``iris.SharedMap``: a map from text to values."""

    __slots__ = ()

    counter = shared(TrioMap.counter, SharedCounter)
    set = shared(TrioMap.set, SharedSet)


@final
class LossWatch(Source[TrioLossWatch, Loss]):
    """See ``iris.LossWatch``: the losses of a node, as they are found."""

    __slots__ = ()


@final
class SharedState(_Values[TrioState]):
    """See ``iris.SharedState``: a document that every member of a cluster has a copy of."""

    __slots__ = ()

    name = Shown[str]()
    counter = shared(TrioState.counter, SharedCounter)
    set = shared(TrioState.set, SharedSet)
    map = shared(TrioState.map, SharedMap)
    watch = shared(TrioState.watch, StateWatch)
    settled = awaited(TrioState.settled)
    statistics = direct(TrioState.statistics)


@final
class Lease(Handle[TrioLease]):
    """See ``iris.Lease``: the right to do something alone."""

    __slots__ = ()

    name = Shown[str]()
    token = Shown[int]()


@final
class _ConfirmedEvent:
    """An event to be confirmed; see ``PostedEvent``."""

    __slots__ = ("_events", "_payload", "_topic", "posted", "size", "thread")

    def __init__(self, events: TrioConfirmed, topic: str, payload: bytes) -> None:
        self.thread = get_ident()
        self.size = len(payload)
        self.posted = events._confirming.posted
        self._events = events
        self._topic = topic
        self._payload = payload

    def at_once(self) -> bool:
        """See ``PostedEvent``."""
        return self._events._publish_at_once(self._topic, self._payload, None, None, None)

    async def publish(self) -> None:
        """See ``PostedEvent``."""
        await self._events.publish(self._topic, self._payload)

    async def wait_room(self) -> None:
        """See ``PostedEvent``: who publishes next waits for it."""

    def lose(self) -> None:
        """See ``PostedEvent``."""
        self._events._lose(self._topic)


_count_published = direct(_published)


@final
class ConfirmedEvents(Handle[TrioConfirmed]):
    """See ``iris.ConfirmedEvents``: publishes events that are all confirmed when the block ends."""

    __slots__ = ()

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """See ``iris.ConfirmedEvents.publish``."""
        inner, portal = self._inner, self._portal
        plain = type(payload) is bytes and key is None and not headers and expires is None
        if plain and portal.has_room(len(payload)) and inner._surely_publishes(topic, len(payload)):
            portal.post(_ConfirmedEvent(inner, topic, payload))
        else:
            portal.call(
                partial(inner.publish, topic, payload, key=key, headers=headers, expires=expires),
                lambda _woken, _deadline: (
                    (None,) if inner._publish_at_once(topic, payload, key, headers, expires) else None
                ),
                "all",
            )

    wait_confirmed = awaited(TrioConfirmed.wait_confirmed, "all")

    @property
    def published(self) -> int:
        """See ``iris.ConfirmedEvents.published``."""
        return _count_published(self)

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
    "Answers", "ClusterMembership", "ConfirmedEvents", "Lease", "LossWatch", "Saga", "SharedCounter",
    "SharedMap", "SharedSet", "SharedState", "StateWatch", "Subscription", "Tunnel", "Watch",
)  # fmt: skip
