"""Node and open_node for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final

from iris.aio.crossing import Block, Handle, Opening, awaited, block, direct
from iris.aio.guest import Waiter, turn_after_error, turning
from iris.aio.handlers import served_by_asyncio
from iris.aio.handles import (
    Answers,
    ClusterMembership,
    ConfirmedEvents,
    LossWatch,
    SharedState,
    Subscription,
    Tunnel,
    Watch,
)
from iris.aio.queues import Bridge
from iris.kernel.names import NodeId
from iris.node.arguments import is_wait
from iris.node.node import Node as TrioNode
from iris.node.open import open_node as open_trio_node
from iris.node.shown import Shown
from iris.patterns.messages import OwnNode
from iris.patterns.payloads import converted_reply, reply_converter
from iris.patterns.request import RequestOptions
from iris.patterns.service import Limits, Service, provided
from iris.security.files import CredentialWatch
from iris.security.identity import Credential

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
else:
    R = TypeVar("R")
P = ParamSpec("P")
T = TypeVar("T")


@final
class Node(Handle[TrioNode], OwnNode):
    """See ``iris.Node``.  Made by ``iris.aio.open_node``; for use in its event loop."""

    __slots__ = ()

    _shown_as = "iris.aio.Node"

    id = Shown[NodeId]()
    name = Shown[str]()
    realm = Shown[str]()
    site = Shown[str]()
    addresses = Shown[tuple[str, ...]]()

    async def request(
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
        try:
            # Written out: of a type that is left out, type checkers lose the default on the way through ``awaited``.
            if type(wait) is float and wait == 0 and fallback is None:
                # Most requests are one message there and one back: those cross to trio and back only if they fail,
                # which takes a third of the time.
                self._guest.check()
                convert = None if reply is None else reply_converter(reply)
                waiter = Waiter(self._guest.loop)
                begun = self._inner._calls.begin(
                    waiter.notify,
                    self._guest.deadline,
                    cluster,
                    payload,
                    operation=operation,
                    key=key,
                    timeout=timeout,
                    headers=headers,
                    options=options,
                )
                if begun is not None:
                    try:
                        await waiter.wait()
                        replied = begun.reply()
                        came: Any = await self._guest.call(begun.go_on) if replied is None else replied[0]
                    except BaseException:  # also of a coroutine that is dropped
                        begun.abandon()
                        raise
                    value: R = came if convert is None else converted_reply(convert, came, cluster)
                    return value
            return await self._guest.call(
                partial(
                    self._inner.request,
                    cluster,
                    payload,
                    operation=operation,
                    key=key,
                    timeout=timeout,
                    headers=headers,
                    reply=reply,
                    wait=wait,
                    fallback=fallback,
                    options=options,
                )
            )
        except Exception:
            await turn_after_error()
            raise

    @turning
    async def broadcast(
        self, cluster: str, payload: object, *, headers: Mapping[str, str] | None = None, wait: float = 0.0
    ) -> None:
        """See ``iris.Node.broadcast``."""
        node, guest = self._inner, self._guest
        if is_wait(wait) or not guest.runs_here() or not node._broadcast_at_once(cluster, payload, headers):
            await guest.call(partial(node.broadcast, cluster, payload, headers=headers, wait=wait))

    survey = block(TrioNode.survey, Answers)

    async def publish(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """See ``iris.Node.publish``.  It lets other tasks run every 1,024 events or 256 KiB."""
        try:
            node, guest = self._inner, self._guest
            if guest.runs_here():
                if node._publish_at_once(topic, payload, key, headers, expires):
                    return
                if node._publishing.begin_turn():
                    await asyncio.sleep(0)
                    if guest.runs_here() and node._publish_at_once(topic, payload, key, headers, expires):
                        return
            await guest.call(
                partial(node.publish, topic, payload, key=key, headers=headers, expires=expires), here=False
            )
        except Exception:
            await turn_after_error()
            raise

    publish_confirmed = awaited(TrioNode.publish_confirmed)

    @turning
    async def retain(
        self,
        topic: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
    ) -> None:
        """See ``iris.Node.retain``."""
        node, guest = self._inner, self._guest
        if not (guest.runs_here() and node._publish_at_once(topic, payload, key, headers, expires, retain=True)):
            await guest.call(
                partial(node.retain, topic, payload, key=key, headers=headers, expires=expires), here=False
            )

    retain_confirmed = awaited(TrioNode.retain_confirmed)
    raise_for_losses = direct(TrioNode.raise_for_losses)
    forget_retained = direct(TrioNode.forget_retained)
    confirming = block(TrioNode.confirming, ConfirmedEvents)
    subscribe = block(TrioNode.subscribe, Subscription)
    subscribe_durable = block(TrioNode.subscribe_durable, Subscription)
    durable_subscribers = direct(TrioNode.durable_subscribers)
    forget_subscriber = awaited(TrioNode.forget_subscriber)
    open_tunnel = block(TrioNode.open_tunnel, Tunnel)
    state = block(TrioNode.state, SharedState)
    clusters = direct(TrioNode.clusters)
    members = direct(TrioNode.members)
    nodes = direct(TrioNode.nodes)
    wait_for = awaited(TrioNode.wait_for)
    watch = block(TrioNode.watch, Watch)
    revoke = awaited(TrioNode.revoke)
    books = awaited(TrioNode.books)
    statistics = direct(TrioNode.statistics)

    def bridge(self, name: str = "bridge") -> Bridge:
        """See ``iris.Node.bridge``."""
        return Bridge(self._inner.bridge(name), self._guest)

    def watch_losses(self, pattern: str = ">", *, every: float = 1.0) -> LossWatch:
        """See ``iris.Node.watch_losses``."""
        return LossWatch(self._inner.watch_losses(pattern, every=every), self._guest)

    @staticmethod
    def _opened_by(opening: Callable[[], AbstractAsyncContextManager[TrioNode]]) -> AbstractAsyncContextManager[Node]:
        """Return a block of a node in the running event loop that ``opening`` opens with trio."""
        return Opening(opening, Node, "open_node")

    def _enter(self, opening: Callable[[TrioNode], AbstractAsyncContextManager[T]]) -> AbstractAsyncContextManager[T]:
        """Return a block that enters what ``opening`` makes of the node, and gives what that gives."""
        return Block(self._guest, partial(opening, self._inner), lambda opened, _: opened)

    def join(
        self,
        cluster: str,
        service: Service,
        *,
        limits: Limits | None = None,
        credential: Credential | CredentialWatch | Path | str | None = None,
    ) -> AbstractAsyncContextManager[ClusterMembership]:
        """See ``iris.Node.join``.  An ``async def`` handler runs in this event loop, in a task of its own."""

        def joined(served: Service) -> AbstractAsyncContextManager[ClusterMembership]:
            entered = partial(self._inner.join, cluster, served, limits=limits, credential=credential)
            return Block(self._guest, entered, ClusterMembership, "join")

        @asynccontextmanager
        async def joined_with_needs() -> AsyncIterator[ClusterMembership]:
            async with (
                provided(service, self, self._inner, lambda opening: self._enter(lambda _: opening)) as served,
                joined(served_by_asyncio(served, self._guest, self)) as membership,
            ):
                yield membership

        if not isinstance(service, Service):
            return joined(service)  # which says what is wrong with it
        service._check_front("asyncio")
        return joined(served_by_asyncio(service, self._guest, self)) if service._needs_nothing else joined_with_needs()


def _opening(
    function: Callable[P, AbstractAsyncContextManager[TrioNode]],
) -> Callable[P, AbstractAsyncContextManager[Node]]:
    @wraps(function)
    def open_node(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[Node]:
        return Opening(partial(function, *args, **kwargs), Node, "open_node")

    return open_node


open_node = _opening(open_trio_node)


def _serving(
    opening: Callable[P, AbstractAsyncContextManager[Node]],
) -> Callable[P, Callable[[object], AbstractAsyncContextManager[dict[str, Node]]]]:
    def lifespan(*args: P.args, **kwargs: P.kwargs) -> Callable[[object], AbstractAsyncContextManager[dict[str, Node]]]:
        """Return the ``lifespan`` of a Starlette or FastAPI application that has a node while it runs.

        The arguments are those of ``open_node``.  Its requests have the node in ``request.state.node``.
        """

        @asynccontextmanager
        async def live(_: object) -> AsyncIterator[dict[str, Node]]:
            async with opening(*args, **kwargs) as node:
                yield {"node": node}

        return live

    return lifespan


lifespan = _serving(open_node)
