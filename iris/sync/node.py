"""Node and open_node for threads."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial, wraps
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, final

from iris.kernel.errors import RequestTimeout
from iris.kernel.names import NodeId
from iris.kernel.numerals import as_float
from iris.kernel.tasks import MustEnter
from iris.node.arguments import is_wait
from iris.node.node import Node as TrioNode
from iris.node.open import open_node as open_trio_node
from iris.node.shown import Shown
from iris.patterns.messages import OwnNode
from iris.patterns.payloads import converted_reply, reply_converter
from iris.patterns.request import RequestOptions
from iris.patterns.service import Limits, Service, provided_to_threads
from iris.security.files import CredentialWatch
from iris.security.identity import Credential
from iris.sync.crossing import Block, Handle, awaited, block, direct, shared
from iris.sync.handlers import served_by_threads
from iris.sync.handles import (
    Answers,
    ClusterMembership,
    ConfirmedEvents,
    LossWatch,
    SharedState,
    Subscription,
    Tunnel,
    Watch,
)
from iris.sync.portal import OwnRun, SharedRun
from iris.sync.queues import Bridge

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")

_log: Final = logging.getLogger("iris")


def _publish_at_once(
    node: TrioNode,
    topic: str,
    payload: object,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    expires: float | None = None,
) -> bool:
    """Publish an event of a thread if nothing has to be waited for; each crossing of threads is a turn of its own."""
    node._publishing.begin_turn()
    return node._publish_at_once(topic, payload, key, headers, expires)


@final
class _Event:
    """An event of a node; see ``PostedEvent``."""

    __slots__ = ("_node", "_payload", "_topic", "posted", "size", "thread")

    def __init__(self, node: TrioNode, topic: str, payload: bytes) -> None:
        self.thread = get_ident()
        self.size = len(payload)
        self.posted = node._publishing.posted
        self._node = node
        self._topic = topic
        self._payload = payload

    def at_once(self) -> bool:
        """See ``PostedEvent``."""
        return _publish_at_once(self._node, self._topic, self._payload)

    async def publish(self) -> None:
        """See ``PostedEvent``."""
        await self._node._publish_posted(self._topic, self._payload)

    async def wait_room(self) -> None:
        """See ``PostedEvent``."""
        await self._node._publishing.wait_crowded(self._topic)

    def lose(self) -> None:
        """See ``PostedEvent``."""
        self._node._publishing.lose_unsent(self._topic)


@final
class Node(Handle[TrioNode], OwnNode):
    """See ``iris.Node``.  Made by ``iris.sync.open_node``; for use by any thread.

    Handlers with ``thread=True`` have one as well, whatever the program is written with: as a parameter of this type,
    or as the node of an ``iris.sync.Request``.
    """

    __slots__ = ()

    _shown_as = "iris.sync.Node"

    id = Shown[NodeId]()
    name = Shown[str]()
    realm = Shown[str]()
    site = Shown[str]()
    addresses = Shown[tuple[str, ...]]()

    def request(
        self,
        cluster: str,
        payload: object = b"",
        *,
        operation: str | None = None,
        key: str | None = None,
        timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        reply: type[R] | None = None,
        wait: float = 0.0,
        fallback: R | None = None,
        options: RequestOptions | None = None,
    ) -> R:
        """See ``iris.Node.request``."""
        # Written out: of a type that is left out, type checkers lose the default on the way through ``awaited``.
        inner = self._inner
        given: dict[str, Any] = {
            "operation": operation, "key": key, "timeout": timeout, "headers": headers, "options": options,
        }  # fmt: skip
        ask = partial(inner.request, cluster, payload, **given)
        came: Any
        if fallback is not None or is_wait(wait):
            try:
                came = self._portal.call(
                    partial(ask, reply=reply, wait=wait, fallback=fallback), within=as_float(wait) + as_float(timeout)
                )
            except RequestTimeout:  # of its thread's events before it
                if fallback is None:
                    raise
                came = fallback
        else:
            convert = None if reply is None else reply_converter(reply)
            came = self._portal.call(
                ask,
                lambda woken, deadline: inner._calls.begin(woken, deadline, cluster, payload, **given),
                within=timeout,
            )
            if convert is not None:
                came = converted_reply(convert, came, cluster)
        value: R = came
        return value

    def broadcast(
        self, cluster: str, payload: object, *, headers: Mapping[str, str] | None = None, wait: float = 0.0
    ) -> None:
        """See ``iris.Node.broadcast``."""
        inner = self._inner
        self._portal.call(
            partial(inner.broadcast, cluster, payload, headers=headers, wait=wait),
            lambda _woken, _deadline: (
                (None,) if not is_wait(wait) and inner._broadcast_at_once(cluster, payload, headers) else None
            ),
        )

    survey = block(TrioNode.survey, Answers)

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """See ``iris.Node.publish``.  Bytes on a topic that this node has published on are sent soon afterwards."""
        inner, portal = self._inner, self._portal
        plain = type(payload) is bytes and key is None and not headers and expires is None
        if plain and portal.has_room(len(payload)) and inner._surely_publishes(topic, len(payload)):
            portal.post(_Event(inner, topic, payload))
        else:
            portal.call(
                partial(inner.publish, topic, payload, key=key, headers=headers, expires=expires),
                lambda _woken, _deadline: (
                    (None,) if _publish_at_once(inner, topic, payload, key, headers, expires) else None
                ),
                behind="all",
            )

    publish_confirmed = awaited(TrioNode.publish_confirmed, "all")

    def retain(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """See ``iris.Node.retain``."""
        inner = self._inner
        self._portal.call(
            partial(inner.retain, topic, payload, key=key, headers=headers, expires=expires),
            lambda _woken, _deadline: (
                (None,) if inner._publish_at_once(topic, payload, key, headers, expires, retain=True) else None
            ),
            "all",
        )

    retain_confirmed = awaited(TrioNode.retain_confirmed, "all")
    raise_for_losses = direct(TrioNode.raise_for_losses)
    forget_retained = direct(TrioNode.forget_retained)
    confirming = block(TrioNode.confirming, ConfirmedEvents, "all")  # of whatever threads
    subscribe = block(TrioNode.subscribe, Subscription)
    subscribe_durable = block(TrioNode.subscribe_durable, Subscription)
    durable_subscribers = direct(TrioNode.durable_subscribers, "none")
    forget_subscriber = awaited(TrioNode.forget_subscriber)
    bridge = shared(TrioNode.bridge, Bridge)
    open_tunnel = block(TrioNode.open_tunnel, Tunnel)
    state = block(TrioNode.state, SharedState)
    clusters = direct(TrioNode.clusters, "none")
    members = direct(TrioNode.members, "none")
    nodes = direct(TrioNode.nodes, "none")
    wait_for = awaited(TrioNode.wait_for, "none")
    watch = block(TrioNode.watch, Watch)
    revoke = awaited(TrioNode.revoke)
    books = awaited(TrioNode.books)
    watch_losses = shared(TrioNode.watch_losses, LossWatch)
    statistics = direct(TrioNode.statistics, "none")

    def _enter(self, opening: Callable[[TrioNode], AbstractAsyncContextManager[T]]) -> AbstractContextManager[T]:
        """Return a block that enters what ``opening`` makes of the node, and gives what that gives."""
        return Block(self._portal, partial(opening, self._inner), lambda opened, _: opened)

    def join(
        self,
        cluster: str,
        service: Service,
        *,
        limits: Limits | None = None,
        credential: Credential | CredentialWatch | Path | str | None = None,
    ) -> AbstractContextManager[ClusterMembership]:
        """See ``iris.Node.join``.  Its handlers are plain functions, and run in worker threads."""

        def joined(served: Service) -> AbstractContextManager[ClusterMembership]:
            entered = partial(self._inner.join, cluster, served, limits=limits, credential=credential)
            return Block(self._portal, entered, ClusterMembership, "join")

        @contextmanager
        def joined_with_needs() -> Iterator[ClusterMembership]:
            with (
                provided_to_threads(service, self) as served,
                joined(served_by_threads(served, self._portal, self)) as membership,
            ):
                yield membership

        if not isinstance(service, Service):
            return joined(service)  # which says what is wrong with it
        service._check_front("threads")
        return joined(served_by_threads(service, self._portal, self)) if service._needs_nothing else joined_with_needs()

    @classmethod
    def _for_threads(cls, _node: OwnNode) -> AbstractAsyncContextManager[Node]:
        """See ``OwnNode``."""
        assert isinstance(_node, TrioNode)
        return _in_shared_run(_node)


@asynccontextmanager
async def _in_shared_run(node: TrioNode) -> AsyncIterator[Node]:
    portal = SharedRun()
    async with portal.opened():
        yield Node(node, portal)


def _opening(
    function: Callable[P, AbstractAsyncContextManager[TrioNode]],
) -> Callable[P, AbstractContextManager[Node]]:
    @wraps(function)
    def open_node(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Node]:
        return _OpenNode(partial(function, *args, **kwargs))

    return open_node


@final
class _OpenNode(MustEnter, AbstractContextManager[Node]):
    """A node and the thread that it has, for one block."""

    __slots__ = ("_block", "_function", "_portal")

    def __init__(self, function: Callable[[], AbstractAsyncContextManager[TrioNode]]) -> None:
        super().__init__("open_node", "with")
        self._portal = OwnRun()
        self._function = function

    def __enter__(self) -> Node:
        self._enters()
        try:
            self._portal.open()
            self._block = Block(self._portal, self._opened, Node, "open_node")
            return self._block.__enter__()
        except BaseException:
            self._portal.close()
            raise

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[TrioNode]:
        async with self._function() as node, self._portal.events.published():
            yield node

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            suppressed = self._block.__exit__(kind, error, traceback)
        except KeyboardInterrupt:
            if self._portal.posted:
                _log.error(
                    "a node was left without a wait for %d events of its threads",
                    self._portal.posted,
                    extra={"reason": "KeyboardInterrupt"},
                )
            self._portal.close(wait=False)
            raise
        except BaseException:
            self._portal.close()
            raise
        self._portal.close()
        return suppressed


open_node = _opening(open_trio_node)
