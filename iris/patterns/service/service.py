"""Service: the declaration of the handlers and limits that every member of a cluster runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, final, overload

from iris.kernel.errors import ConfigError
from iris.kernel.frozen import dataclass
from iris.kernel.names import check_name
from iris.patterns.messages import Message
from iris.patterns.service.handlers import InThread, RequestHandler, prepared
from iris.security.identity import PeerIdentity

BroadcastHandler = Callable[[Message], Awaitable[None] | None]
TunnelHandler = Callable[[Any], Awaitable[None] | None]
"""It gets the ``Tunnel`` of what it is written for: ``iris``, ``iris.aio`` or ``iris.sync``."""

_R = TypeVar("_R", bound=Callable[..., Any])
_T = TypeVar("_T", bound=TunnelHandler)
_B = TypeVar("_B", bound=BroadcastHandler)
_H = TypeVar("_H")


def callers(allow: Iterable[str] | None) -> frozenset[str] | None:
    """Return the clusters that ``allow`` names; None stands for all.

    Raises:
        ConfigError: it is a single text or no list, or one of them is no name of a cluster, here or in another realm.
    """
    if isinstance(allow, str):
        raise ConfigError(f"allow is {allow!r}: use a list of clusters, [{allow!r}]")
    if allow is not None and not isinstance(allow, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"allow is {allow!r}: use a list of clusters, or None for all")
    return None if allow is None else frozenset(_check_caller(cluster) for cluster in allow)


def _check_caller(cluster: str) -> str:
    realm, _, name = cluster.rpartition("/") if isinstance(cluster, str) else ("", "", cluster)
    if realm:
        check_name(realm, "realm")
    check_name(name, "cluster")
    return cluster


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one member.  None means the node's ``Config``."""

    concurrency: int | None = None
    """Handlers running at the same time."""
    queue: int | None = None
    """Requests waiting for a handler; beyond it callers get ``Overloaded`` at once."""
    queue_bytes: int | None = None
    """Bytes of their payloads; the same."""
    adaptive: bool = False
    """Let fewer run at the same time, down to one, when that makes them faster; see ``AdaptiveConcurrency``."""

    def __post_init__(self) -> None:
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"limits: adaptive is {self.adaptive!r}: use True or False")
        for name in ("concurrency", "queue", "queue_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"limits: {name} is {value!r}: use a whole number above 0, or None")


@final
class Service:
    """The handlers of a cluster, collected by decorators.

    Example::

        databases = iris.Service("databases")

        @databases.request
        async def query(request: iris.Request) -> object:
            return request.payload

    Args:
        name: of the cluster that its members join by default.
        allow: the clusters whose nodes may use it, as their certificates name them, those of other realms as
            ``REALM/CLUSTER``; None: every node of the own realm, and those of other realms that its owner allows.
        tracebacks: tell callers where in the handler an error was raised.  For development: a traceback shows them
            the inside of this program.

    Raises:
        ConfigError: the name is not valid, or an operation gets a second handler.
    """

    def __init__(self, name: str, *, allow: Iterable[str] | None = None, tracebacks: bool = False) -> None:
        self.name = check_name(name, "cluster")
        self.allow = callers(allow)
        if not isinstance(tracebacks, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"tracebacks is {tracebacks!r}: use True or False")
        self.tracebacks = tracebacks
        self.requests: dict[str | None, RequestHandler] = {}
        self.tunnels: dict[str | None, TunnelHandler] = {}
        self.broadcasts: list[BroadcastHandler] = []

    def __repr__(self) -> str:
        return (
            f"<Service {self.name}: {len(self.requests)} request, {len(self.broadcasts)} broadcast, "
            f"{len(self.tunnels)} tunnel handlers>"
        )

    def allows(self, caller: PeerIdentity) -> bool:
        """Tell whether a node may use this service."""
        if self.allow is not None:
            return caller.caller in self.allow
        return caller.foreign is None or caller.foreign.may_call(caller.cluster)

    @overload
    def request(self, operation: str | None = None, *, thread: bool = False) -> Callable[[_R], _R]: ...
    @overload
    def request(self, operation: _R, *, thread: bool = False) -> _R: ...
    def request(self, operation: Any = None, *, thread: bool = False) -> Any:
        """Register the handler of an operation; what it returns is the reply.

        Used bare, the handler takes the requests that name no operation.  Surveys call it as well.

        The handler's parameter is the ``Request``, or the payload: if it is annotated with a dataclass, a model of
        msgspec or pydantic or another type made of such, the payload is converted, and a caller whose payload does
        not fit gets ``RemoteError`` with the code ``bad_request``.  A second parameter then gets the ``Request``.
        Replies may be dataclasses and models, too.

        A ``def`` handler is called in the node's own thread, where it must not block; with ``thread=True`` in a
        worker thread, of which each handler has 40.  At the deadline the caller has its error and the place is free,
        but the thread runs on to its end: nothing can stop it.

        Args:
            operation: name of the operation.
            thread: call the handler, a plain ``def``, in a worker thread.

        Raises:
            ConfigError: a second handler for the operation, a type that cannot be converted, or an ``async def`` with
                ``thread=True``.
        """
        if not isinstance(thread, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"thread is {thread!r}: use True or False")
        return _register(self.name, self.requests, operation, lambda handler: prepared(handler, thread=thread))

    @overload
    def tunnel(self, operation: str | None = None) -> Callable[[_T], _T]: ...
    @overload
    def tunnel(self, operation: _T) -> _T: ...
    def tunnel(self, operation: Any = None) -> Any:
        """Register the handler of tunnels that are opened to this cluster; the tunnel closes when it returns."""
        return _register(self.name, self.tunnels, operation)

    def broadcast(self, handler: _B) -> _B:
        """Register a handler of broadcasts, a ``def`` or an ``async def``; several are called one after the other.

        Raises:
            ConfigError: it cannot be called.
        """
        self.broadcasts.append(_callable(self.name, handler))
        return handler

    def _adapted(
        self,
        *,
        request: Callable[[RequestHandler], RequestHandler],
        broadcast: Callable[[BroadcastHandler], BroadcastHandler],
        tunnel: Callable[[TunnelHandler], TunnelHandler],
    ) -> Service:
        """Return a service like this one whose handlers are made of this one's, but for those that run in threads."""
        service = Service(self.name, allow=self.allow, tracebacks=self.tracebacks)
        for name, handler in self.requests.items():
            service.requests[name] = handler if isinstance(handler, InThread) else request(handler)
        service.tunnels = {name: tunnel(handler) for name, handler in self.tunnels.items()}
        service.broadcasts = list(map(broadcast, self.broadcasts))
        return service


def _callable(service: str, handler: _H) -> _H:
    if not callable(handler):
        raise ConfigError(f"service {service}: a handler is {handler!r}: use a function")
    return handler


def _register(
    service: str,
    table: dict[str | None, Any],
    operation: Any,
    prepare: Callable[[Any], Any] = lambda handler: handler,
) -> Any:
    def register(handler: Any, name: str | None = None) -> Any:
        _callable(service, handler)
        if name in table:
            what = "without an operation" if name is None else f"for operation {name!r}"
            raise ConfigError(f"service {service} has two handlers {what}")
        table[name] = prepare(handler)
        return handler

    if callable(operation):
        return register(operation)
    if operation is None:
        return register
    name = check_name(operation, "operation")

    def register_named(handler: Any) -> Any:
        return register(handler, name)

    return register_named
