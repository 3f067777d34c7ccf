"""Service: the declaration of the handlers and limits that every member of a cluster runs."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Final, Literal, NoReturn, Protocol, Self, TypeVar, cast, final, overload

from msgspec import Struct, structs

from iris.kernel.errors import ConfigError
from iris.kernel.names import OWN, check_name
from iris.kernel.numerals import as_whole, shown
from iris.kernel.rates import check_rate
from iris.patterns.messages import Message, OwnNode, Request
from iris.patterns.request import RequestOptions
from iris.patterns.service import asyncapi
from iris.patterns.service.dependencies import Lifespan, Provision
from iris.patterns.service.handlers import InProcess, InThread, prepared
from iris.patterns.service.outcomes import Outcomes
from iris.patterns.service.outside import OutsideTasks, RequestHandler
from iris.patterns.service.signatures import Signature, fields_of, handler_name, needs_of, signature_of
from iris.security.identity import PeerIdentity

BroadcastHandler = Callable[[Message], Awaitable[None] | None]
TunnelHandler = Callable[[Any], Awaitable[None] | None]
"""Function that is called with the ``Tunnel`` of its kind of program: ``iris``, ``iris.aio`` or ``iris.sync``."""

Front = Literal["trio", "asyncio", "threads"]
"""The kinds of programs that serve: ``iris``, ``iris.aio`` and ``iris.sync``."""

_R = TypeVar("_R", bound=Callable[..., object])
_Heard = Callable[..., Awaitable[None] | None]
_T = TypeVar("_T", bound=_Heard)
_B = TypeVar("_B", bound=_Heard)
_H = TypeVar("_H", bound=Callable[..., object])
_P = TypeVar("_P")


def callers(allow: Iterable[str] | None) -> frozenset[str] | None:
    """Return the clusters that ``allow`` names; None stands for all.

    Raises:
        ConfigError: it is a single text or no list, or one of them is no name of a cluster, here or in another realm.
    """
    if isinstance(allow, str):
        raise ConfigError(f"allow is {allow!r}: use a list of clusters, [{allow!r}]")
    if allow is not None and not isinstance(allow, Iterable):
        raise ConfigError(f"allow is {allow!r}: use a list of clusters, or None for all")
    return None if allow is None else frozenset(_check_caller(cluster) for cluster in allow)


def _check_caller(cluster: str) -> str:
    realm, _, name = cluster.rpartition("/") if isinstance(cluster, str) else ("", "", cluster)
    if realm:
        check_name(realm, "realm")
    check_name(name, "cluster")
    return cluster


@functools.cache
def _version() -> str:
    """Return the version of Iris that this process runs."""
    from importlib import metadata  # here: it costs 30 ms, and is for those who are asked

    try:
        return metadata.version("iris-mesh")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return ""


DESCRIBE: Final = "iris.describe"
"""Operation that every member serves; its reply is what ``Service.describe`` returns."""
EVERY: Final = "*"
"""Key of the handlers that serve whatever operation has none of its own; no operation has this name."""
_ATTRIBUTES: Final = (
    "allow", "broadcasts", "lifespan", "name", "outcomes", "paused_by", "requests", "tracebacks", "tunnels",
)  # fmt: skip


class Requester(Protocol):
    """An object with a node's method ``request``, whatever it returns that can be waited for."""

    @property
    def request(self) -> Callable[..., object]:
        """See ``iris.Node.request``."""
        ...


@final
class OperationOptions(Struct, frozen=True):
    """Options of a method that serves an operation: its name, None for the method's own, and where it is called."""

    name: str | None
    thread: bool
    process: bool


@overload
def operation(function: _R) -> _R: ...
@overload
def operation(*, name: str | None = None, thread: bool = False, process: bool = False) -> Callable[[_R], _R]: ...
def operation(
    function: _R | None = None, *, name: str | None = None, thread: bool = False, process: bool = False
) -> _R | Callable[[_R], _R]:
    """Make a method of a ``Service`` an operation of its cluster; see ``Service.request`` for what it may take.

    Args:
        function: the method; it stays as it is.
        name: name of the operation, if it is not the method's own.
        thread: True to call the method, a plain ``def``, in a worker thread.
        process: True to call it in a process, which has no object of the class: a ``@staticmethod`` or
            ``@classmethod``, below this decorator.
    """

    def mark(function: _R) -> _R:
        function.__iris_operation__ = OperationOptions(name, thread, process)  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


def operations_of(service: type[Service]) -> list[tuple[str, OperationOptions]]:
    """Return the methods of a class that are operations, with their options.

    A method that overrides one of a base class is the same operation.
    """
    found: dict[str, OperationOptions] = {}
    for base in reversed(service.__mro__):
        for name, member in vars(base).items():
            function = getattr(member, "__func__", None)  # of a static method or one of the class
            options = getattr(member, "__iris_operation__", getattr(function, "__iris_operation__", None))
            if isinstance(options, OperationOptions):
                found[name] = options
    return sorted(found.items())


@final
class ServiceClient:
    """The methods of a service, for a caller.  ``Service.client`` makes it, and calls it an instance of the class."""

    def __init__(self, service: type[Service], ask: Callable[..., object]) -> None:
        for attribute, options in operations_of(service):
            method = inspect.getattr_static(service, attribute).__get__(self, service)  # as a member's own is bound
            signature = signature_of(method, operation=True)
            setattr(self, attribute, partial(_ask, ask, options.name or attribute, signature))

    def __repr__(self) -> str:
        return f"<ServiceClient: {', '.join(vars(self))}>"

    def __getattr__(self, name: str) -> NoReturn:
        """Say which operations there are; only called for what is none."""
        close = difflib.get_close_matches(name, vars(self), n=1)
        hint = f"did you mean {close[0]!r}" if close else f"it has {', '.join(vars(self)) or 'none'}"
        raise AttributeError(f"the service has no operation {name!r}: {hint}", name=name, obj=self)


def _ask(ask: Callable[..., object], name: str, signature: Signature, /, *args: object, **kwargs: object) -> object:
    return ask(signature.payload(name, args, kwargs), operation=name, reply=signature.reply)


@final
class Limits(Struct, frozen=True, kw_only=True):
    """Limits of one member.  None means the node's ``Config``.

    Attributes:
        concurrency: handlers running at the same time.
        queue: requests waiting for a handler; beyond it callers get ``Overloaded`` at once.
        queue_bytes: bytes of the payloads of these requests; beyond it likewise.
        adaptive: True to let fewer run at the same time, down to one, when that makes them faster; see
            ``AdaptiveConcurrency``.
        rate: requests that this member takes each second, and a second's worth at once; beyond it callers get
            ``Overloaded`` with the time, and ask other members.
        rate_bytes: bytes of the payloads of these requests each second, likewise.
    """

    concurrency: int | None = None
    queue: int | None = None
    queue_bytes: int | None = None
    adaptive: bool = False
    rate: float | None = None
    rate_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "rate_bytes"):
            if getattr(self, name) is not None:
                structs.force_setattr(self, name, check_rate(getattr(self, name), f"limits: {name}"))
        if not isinstance(self.adaptive, bool):
            raise ConfigError(f"limits: adaptive is {self.adaptive!r}: use True or False")
        for name in ("concurrency", "queue", "queue_bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            whole = as_whole(value)
            if whole is None or whole < 1:
                raise ConfigError(f"limits: {name} is {shown(value)}: use a whole number above 0, or None")
            structs.force_setattr(self, name, whole)


class Service:
    """The handlers of a cluster, collected by decorators, or written as methods of a class of its own.

    Example::

        databases = iris.Service("databases")

        @databases.request
        async def query(request: iris.Request) -> object:
            return request.payload

    A class has operations, and gives callers the same methods, with their types::

        class Quotes(iris.Service, cluster="quotes"):
            @iris.operation
            async def look_up(self, query: Query) -> Offer: ...

        async with node.join("quotes", Quotes()): ...

        offer = await Quotes.client(node).look_up(Query("tea"))

    Args:
        name: name of the cluster that its members join by default; None for the one of the class.
        allow: the clusters whose nodes may use it, as their certificates name them, those of other realms as
            ``REALM/CLUSTER``; None: every node of the own realm, and those of other realms that its owner allows.
        tracebacks: tell callers where in the handler an error was raised.  For development: a traceback shows them
            the inside of this program.
        paused_by: ``DOCUMENT.KEY``: while that value of a document (``iris.Node.state``) is true, members that have
            the document open refuse requests, broadcasts and tunnels at once; callers get ``RemoteError`` with the code
            ``paused``.
        outcomes: rules by which outcomes of requests with an idempotency key are kept; None: such requests are refused.
        lifespan: function that is called with the member's node and returns a context manager, an asynchronous one but
            with ``iris.sync``.  It is entered before the service joins a cluster, and left after it has drained; a
            handler's parameter of type ``FromLifespan[T]`` gets what it gives.  What it raises ends ``join``.  None:
            the method ``lifespan`` of a class of its own, if there is one.

    Raises:
        ConfigError: the name is not valid, or an operation gets a second handler.
    """

    _cluster: ClassVar[str | None] = None
    _is_of_asyncio: ClassVar[bool] = False
    """True if its handlers are written with asyncio."""

    def __init_subclass__(cls, *, cluster: str | None = None) -> None:
        super().__init_subclass__()
        if cluster is not None:
            cls._cluster = check_name(cluster, "cluster")
        for name, _ in operations_of(cls):
            if hasattr(Service, name) or name in _ATTRIBUTES:
                raise ConfigError(f"{cls.__name__}.{name}: a Service has something of this name: use another one")

    def __init__(
        self,
        name: str | None = None,
        *,
        allow: Iterable[str] | None = None,
        tracebacks: bool = False,
        paused_by: str | None = None,
        outcomes: Outcomes | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        if name is None and self._cluster is None:
            raise ConfigError('a service needs a name: Service("quotes"), or class Quotes(Service, cluster="quotes")')
        self.name: str = check_name(self._cluster if name is None else name, "cluster")  # type: ignore[arg-type]
        self.allow = callers(allow)
        if not isinstance(tracebacks, bool):
            raise ConfigError(f"tracebacks is {tracebacks!r}: use True or False")
        self.tracebacks = tracebacks
        if paused_by is not None and "." not in check_name(paused_by, "flag"):
            raise ConfigError(f"paused_by is {paused_by!r}: use DOCUMENT.KEY, as in 'flags.checkout'")
        self.paused_by: str | None = paused_by
        if outcomes is not None and not isinstance(outcomes, Outcomes):
            raise ConfigError(f"outcomes is {outcomes!r}: use iris.Outcomes(...)")
        self.outcomes: Outcomes | None = outcomes
        lifespan = getattr(self, "lifespan", None) if lifespan is None else lifespan  # a method of a class of its own
        if lifespan is not None and not callable(lifespan):
            raise ConfigError(f"lifespan is {lifespan!r}: use a function that returns an asynchronous context manager")
        self._lifespan: Final[Lifespan | None] = lifespan
        self.requests: Final[dict[str | None, RequestHandler | InProcess]] = {}
        self.tunnels: Final[dict[str | None, TunnelHandler]] = {}
        self.broadcasts: Final[list[BroadcastHandler]] = []
        self._outside: OutsideTasks | None = None
        self._described: Final[dict[str, tuple[Signature, str]]] = {}
        """Signature and first paragraph of the docstring of each operation by name, "" for the one without a name."""
        self._provided: Final[dict[str | None, _Provided]] = {}
        """Handlers that get something besides what callers send, or say of which class their node is, by operation."""
        for attribute, options in operations_of(type(self)):
            name, method = check_name(options.name or attribute, "operation"), getattr(self, attribute)
            _register(self.name, self.requests, name, self._preparing(name, options, operation=True))(method)

    def __repr__(self) -> str:
        return (
            f"<Service {self.name}: {len(self.requests)} request, {len(self.broadcasts)} broadcast, "
            f"{len(self.tunnels)} tunnel handlers>"
        )

    def allows(self, caller: PeerIdentity) -> bool:
        """Return whether a node may use this service."""
        if self.allow is not None:
            return caller.caller in self.allow
        return caller.other_realm is None or caller.other_realm.may_call(caller.cluster)

    @classmethod
    def client(
        cls,
        node: Requester,
        cluster: str | None = None,
        *,
        timeout: float = 5.0,
        wait: float = 0.0,
        options: RequestOptions | None = None,
    ) -> Self:
        """Return an object with the methods of this class, each of which asks a member of the cluster.

        They take and return what they say, checked by type checkers and when the reply comes.  A method that is an
        ``async def`` here is for nodes of trio and asyncio, a ``def`` for those of ``iris.sync``.

        Args:
            node: an ``iris.Node``, or one of ``iris.aio`` or ``iris.sync``.
            cluster: address of the cluster; None for the one of the class.
            timeout, wait, options: those of each request, see ``iris.Node.request``.

        Raises:
            ConfigError: the class names no cluster, and none is given; or ``node`` is no node.
            Its methods raise TypeError for arguments that do not fit, and what ``iris.Node.request`` raises.
        """
        cluster = cluster or cls._cluster
        if cluster is None:
            raise ConfigError(f"{cls.__name__} names no cluster: give one to client")
        if not callable(getattr(node, "request", None)):
            raise ConfigError(f"{cls.__name__}.client got {node!r}: give it a node, as open_node returns it")
        ask = partial(node.request, cluster, timeout=timeout, wait=wait, options=options)
        return cast("Self", ServiceClient(cls, ask))

    def describe(self) -> dict[str, Any]:
        """Return what members of this service take: its operations and their types, as a map that can be sent."""
        types: dict[str, dict[str, str]] = {}
        for signature, _ in self._described.values():
            for annotation in (*(one.type for one in signature.arguments), signature.returns):
                fields_of(annotation, types)
        return {
            "service": self.name,
            "iris": _version(),
            "operations": {
                name: {"signature": str(signature), "payload": signature.payload_shape, "doc": doc}
                for name, (signature, doc) in self._described.items()
            },
            "tunnels": [name or "" for name in self.tunnels],
            "broadcasts": len(self.broadcasts),
            "types": types,
            "asyncapi": self.asyncapi(),
        }

    def asyncapi(self) -> dict[str, Any]:
        """Return the operations of this service as an AsyncAPI 3.0 document: a map for ``json.dump``."""
        return asyncapi.document(self.name, self._described)

    def _describe_to(self, _: Request) -> dict[str, object]:
        return self.describe()

    def _serves(self) -> str:
        """Return the operations, as they are written in Python, for those who asked for another one."""
        return ", ".join(f"{name}{signature}" for name, (signature, _) in self._described.items()) or "none"

    @overload
    def request(
        self, operation: str | None = None, *, thread: bool = False, process: bool = False
    ) -> Callable[[_R], _R]: ...
    @overload
    def request(self, operation: _R, *, thread: bool = False, process: bool = False) -> _R: ...
    def request(
        self, operation: str | _R | None = None, *, thread: bool = False, process: bool = False
    ) -> _R | Callable[[_R], _R]:
        """Register the handler of an operation; what it returns is the reply.

        Used bare, the handler takes the requests that name no operation.  Surveys call it as well.

        The handler's parameter is the ``Request``, or the payload.  If it is annotated with a dataclass, a model of
        msgspec or pydantic or another type made of such, the payload is converted.  A caller whose payload does not
        fit gets ``RemoteError`` with the code ``bad_request``.  With several typed parameters the payload is a map of
        them by name, and one with a default may be left out.  One more parameter, of type ``Request`` or without a
        type, gets the request.  Replies may be dataclasses and models, too.

        A ``def`` handler is called in the node's own thread, where it must not block; with ``thread=True`` in a
        worker thread, of which each handler has 40.  At the deadline the caller has its error and the place is free,
        but the thread runs on to its end: nothing can stop it.

        With ``process=True`` it is called in a process of this member: what takes the processor belongs there.  A
        process imports the module of the handler, so that is a function of a module and none within another one.  Each
        member has as many processes as it may use processors, and no more than ``Limits.concurrency``; a call that
        finds all of them busy waits, within its deadline.  At the deadline, or when the caller has cancelled, the
        handler gets ``KeyboardInterrupt`` and the process is killed if it goes on for a second.  A process that ends,
        killed or by a crash, costs the request that it was at the ``RemoteError`` ``process_died``.
        ``Request.deadline`` is on the clock of ``time.monotonic()`` there.

        Args:
            operation: name of the operation.
            thread: True to call the handler, a plain ``def``, in a worker thread.
            process: True to call the handler, a plain ``def`` at the top of a module, in a process.

        Raises:
            ConfigError: a second handler for the operation, a type that cannot be converted, an ``async def`` with
                ``thread=True`` or ``process=True``, or a handler that a process cannot import.
        """
        if isinstance(operation, str) and operation.startswith(OWN):
            raise ConfigError(f"operation {operation!r}: names that begin with {OWN!r} are Iris's own")

        name = operation if isinstance(operation, str) else None
        options = OperationOptions(name, thread, process)
        return _register(self.name, self.requests, operation, self._preparing(name, options))

    def _preparing(
        self, name: str | None, options: OperationOptions, *, operation: bool = False
    ) -> Callable[[Callable[..., object]], RequestHandler | InProcess]:
        for option, value in (("thread", options.thread), ("process", options.process)):
            if not isinstance(value, bool):
                raise ConfigError(f"{option} is {value!r}: use True or False")
        if options.thread and options.process:
            raise ConfigError("a handler runs in a thread or in a process: use thread=True or process=True")

        def prepare(handler: Callable[..., object]) -> RequestHandler | InProcess:
            signature = signature_of(handler, operation=operation)
            make = partial(prepared, signature=signature, thread=options.thread, process=options.process)
            made: RequestHandler | InProcess = make(handler)
            if options.process and (signature.needs or signature.shows is not None):
                raise ConfigError(
                    f"{handler_name(handler)} wants a node or what a lifespan yields, which a process does not have: "
                    "leave process out, or open what it needs in its module"
                )
            if options.process:
                made = InProcess(handler, operation=operation)
            elif signature.needs or signature.shows is not None:
                self._provided[name] = _Provided(handler, signature, make)
            doc = (
                (inspect.getdoc(inspect.unwrap(getattr(handler, "func", handler))) or "")
                .partition("\n\n")[0]
                .replace("\n", " ")
            )
            self._described[name or ""] = signature, doc.encode(errors="backslashreplace").decode()
            return made

        return prepare

    @overload
    def tunnel(self, operation: str | None = None) -> Callable[[_T], _T]: ...
    @overload
    def tunnel(self, operation: _T) -> _T: ...
    def tunnel(self, operation: str | _T | None = None) -> _T | Callable[[_T], _T]:
        """Register the handler of tunnels that are opened to this cluster; the tunnel closes when it returns."""
        return _register(self.name, self.tunnels, operation, lambda handler: handler)

    @property
    def _needs_nothing(self) -> bool:
        """True if this service has no lifespan, and its handlers get only what callers send."""
        handlers = (*self.broadcasts, *self.tunnels.values())
        return self._lifespan is None and not self._provided and not any(needs_of(handler)[0] for handler in handlers)

    def _nodes_needed(self) -> set[type[OwnNode]]:
        """Return the classes of nodes that handlers of this service ask for."""
        needs = [
            need for one in self._provided.values() for need in (*one.signature.needs.values(), one.signature.shows)
        ]
        for handler in (*self.broadcasts, *self.tunnels.values()):
            needs.extend(needs_of(handler)[0].values())
        return {need for need in needs if need is not None}

    def _with(self, provision: Provision) -> Service:
        """Return a service like this one whose handlers have what they need; this one if they need nothing.

        Raises:
            ConfigError: something that a handler needs is not there.
        """
        if self._needs_nothing:
            return self
        given = partial(_given, provision)
        service = self._adapted(request=lambda handler: handler, broadcast=given, tunnel=given)
        service.requests.update({name: one.bound(provision) for name, one in self._provided.items()})
        return service

    def _check_front(self, front: Front) -> None:
        """Raise ConfigError, with what to do, if this service is none for the programs of ``front``."""

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
        outside: OutsideTasks | None = None,
    ) -> Service:
        """Return a service like this one whose handlers are made of this one's.

        Those that run in threads or processes stay as they are, and so are all others called by tasks of trio's then.
        Else ``outside`` serves the requests.
        """
        service = Service(
            self.name,
            allow=self.allow,
            tracebacks=self.tracebacks,
            paused_by=self.paused_by,
            outcomes=self.outcomes,
        )
        for name, handler in self.requests.items():
            service.requests[name] = handler if isinstance(handler, InThread | InProcess) else request(handler)
        service.tunnels.update({name: tunnel(handler) for name, handler in self.tunnels.items()})
        service.broadcasts.extend(map(broadcast, self.broadcasts))
        service._described.update(self._described)
        if not any(isinstance(handler, InThread | InProcess) for handler in service.requests.values()):
            service._outside = outside
        return service


def stand_in(cluster: str, request: RequestHandler, broadcast: BroadcastHandler, tunnel: TunnelHandler) -> Service:
    """Return a service whose handlers stand for other programs: they serve every operation.

    ``request`` says by ``Unserved`` that none of them has served it.
    """
    service = Service(cluster)
    service.requests[EVERY] = request
    service.tunnels[EVERY] = tunnel
    service.broadcasts.append(broadcast)
    return service


@final
class _Provided(Struct, frozen=True):
    """A handler of requests that gets something besides what callers send, or says of which class its node is.

    Attributes:
        handler: the handler as it was registered.
        prepare: makes the function that members call of it.
    """

    handler: Callable[..., object]
    signature: Signature
    prepare: Callable[[Callable[..., object]], RequestHandler]

    def bound(self, provision: Provision) -> RequestHandler:
        """Return the function that members call, with what it needs."""
        signature, name = self.signature, handler_name(self.handler)
        values = provision.arguments(name, signature.needs, signature.optional)
        made = self.prepare(partial(self.handler, **values) if values else self.handler)
        if signature.shows is None:
            return made
        node = provision.node_of(signature.shows, name, only_own=not isinstance(made, InThread))
        return made.showing(node) if isinstance(made, InThread) else made


def _given(provision: Provision, handler: _Heard) -> _Heard:
    """Return a handler of broadcasts or tunnels with what it needs."""
    needs, optional = needs_of(handler)
    return partial(handler, **provision.arguments(handler_name(handler), needs, optional)) if needs else handler


def _callable(service: str, handler: _H) -> _H:
    if not callable(handler):
        raise ConfigError(f"service {service}: a handler is {handler!r}: use a function")
    return handler


def _register(
    service: str,
    table: dict[str | None, _P],
    operation: str | _H | None,
    prepare: Callable[[_H], _P],
) -> _H | Callable[[_H], _H]:
    def register(handler: _H, name: str | None = None) -> _H:
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

    def register_named(handler: _H) -> _H:
        return register(handler, name)

    return register_named
