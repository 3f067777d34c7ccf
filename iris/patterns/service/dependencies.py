"""Dependencies: parameters of a handler that Iris gives, and no caller: the member's own node, and what it holds open.

A parameter whose type is a node gets the node that the handler runs at.  One of type ``FromLifespan[T]`` gets what the
lifespan of the service gives.  Both are known when the service joins a cluster, so they are bound to the handler then,
and cost a request nothing.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Annotated, Any, Final, TypeVar, final

from iris.kernel.errors import ConfigError
from iris.kernel.shapes import is_group, is_map
from iris.kernel.tasks import interruptible
from iris.patterns.messages import OwnNode, Request

T = TypeVar("T")

Need = type[OwnNode] | None
"""Need of a parameter: a node of this class, or, with None, what the lifespan gives."""

Lifespan = Callable[..., AbstractAsyncContextManager[object] | AbstractContextManager[object]]
"""Function that is called with the node, and returns the block that is entered before a service joins a cluster."""


@final
class _Marker:
    """Marks a type as that of a value that the lifespan gives."""

    def __repr__(self) -> str:
        return "iris.FromLifespan"


_FROM_LIFESPAN: Final = _Marker()

FromLifespan = Annotated[T, _FROM_LIFESPAN]
"""Type of a handler's parameter that gets what the lifespan of its service gives, ``FromLifespan[Database]``.

Type checkers take it for the type in the brackets.  If the lifespan gives a dict, the parameter gets the value that has
its name there; else it gets what the lifespan gives as it is.
"""


def need_of(annotation: object) -> tuple[Need] | None:
    """Return what a parameter with this annotation is to get, alone in a tuple; None if a caller gives it."""
    notes: tuple[object, ...] = getattr(annotation, "__metadata__", ())
    if any(note is _FROM_LIFESPAN for note in notes):
        return (None,)
    return (annotation,) if isinstance(annotation, type) and issubclass(annotation, OwnNode) else None


def node_shown_by(annotation: object) -> type[OwnNode] | None:
    """Return the class of ``request.node`` that the annotation of a request names; None if it names none."""
    for one in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(one) is Request:
            (shown,) = typing.get_args(one)
            return shown if isinstance(shown, type) and issubclass(shown, OwnNode) else None
    return None


@final
class Provision:
    """Arguments of the handlers of one membership besides what is sent to them.

    Args:
        service: name of the service, for errors.
        node: the node that it joins a cluster at, as its programs see it.
        others: nodes of other classes in the same place, by class: those for worker threads.
        state: what the lifespan gives, alone in a tuple; None if the service has none.
    """

    def __init__(
        self, service: str, node: OwnNode, others: Mapping[type[OwnNode], OwnNode], state: tuple[object] | None
    ) -> None:
        self._service: Final = service
        self._node: Final = node
        self._others: Final = others
        self._state: Final = state

    def node_of(self, kind: type[OwnNode], handler: str, *, only_own: bool = False) -> OwnNode:
        """Return the node of a class; raise ConfigError if there is none here, or it is another one than the own."""
        node = self._node if isinstance(self._node, kind) else None if only_own else self._others.get(kind)
        if node is None:
            raise ConfigError(
                f"{handler} wants an {kind._shown_as}, and service {self._service!r} is joined at an "
                f"{self._node._shown_as}: annotate the parameter with that"
            )
        return node

    def arguments(self, handler: str, needs: Mapping[str, Need], defaults: frozenset[str]) -> dict[str, object]:
        """Return the values of a handler's parameters; raise ConfigError, with what to do, if one cannot be given.

        Args:
            handler: name of the handler, for errors.
            needs: what its parameters are to get.
            defaults: those that may go without.
        """
        values: dict[str, object] = {}
        for name, kind in needs.items():
            if kind is not None:
                values[name] = self.node_of(kind, handler)
            else:
                state = self._named(name)
                if isinstance(state, tuple):
                    (values[name],) = state
                elif name not in defaults:
                    raise ConfigError(f"{handler}: {name} comes from the lifespan, and {state}")
        return values

    def _named(self, name: str) -> tuple[object] | str:
        """Return what the lifespan gives to a parameter, alone in a tuple; or why there is nothing."""
        if self._state is None:
            return f"service {self._service!r} has none: make it with Service(..., lifespan=...)"
        (state,) = self._state
        if not is_map(state):
            return self._state
        if name in state:
            return (state[name],)
        return f"that of service {self._service!r} gives {', '.join(map(str, state)) or 'nothing'}"


_NOTE: Final = "raised in the lifespan of service"


def is_of_lifespan(error: BaseException) -> bool:
    """Return whether an error was raised by the lifespan of a service, when it was entered or left."""
    return any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ()))


def _opened(lifespan: Lifespan, node: OwnNode) -> AbstractAsyncContextManager[object] | AbstractContextManager[object]:
    if inspect.isasyncgenfunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        raise ConfigError(
            "a lifespan that yields is a context manager: decorate it with contextlib.asynccontextmanager"
        )
    return lifespan(node)


@asynccontextmanager
async def lifespan_entered(
    service: str, lifespan: Lifespan | None, node: OwnNode
) -> AsyncIterator[tuple[object] | None]:
    """Hold the lifespan of a service open for the length of the block, and give what it gives; None if there is none.

    Raises:
        ConfigError: it is no asynchronous context manager.
        Whatever it raises itself, with a note that says so.
    """
    if lifespan is None:
        yield None
    else:
        async with _Held(service, lifespan, node) as value:
            yield (value,)


@contextmanager
def lifespan_of_threads(service: str, lifespan: Lifespan | None, node: OwnNode) -> Iterator[tuple[object] | None]:
    """Hold the lifespan of a service open whose program has no event loop; see ``lifespan_entered``."""
    if lifespan is None:
        yield None
    else:
        with _Held(service, lifespan, node) as value:
            yield (value,)


@final
class _Held:
    """A lifespan while it is entered, and while it is left: by ``with`` in a program without an event loop."""

    def __init__(self, service: str, lifespan: Lifespan, node: OwnNode) -> None:
        self._service: Final = service
        self._lifespan: Final = lifespan
        self._node: Final = node
        self._block: Any = None

    @interruptible
    async def __aenter__(self) -> object:
        with self._noting():
            block = self._block = _opened(self._lifespan, self._node)
            if not isinstance(block, AbstractAsyncContextManager):
                raise ConfigError(_no_block(block, "an asynchronous context manager", "contextlib.asynccontextmanager"))
            return await block.__aenter__()

    @interruptible
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._noting(error):
            await self._block.__aexit__(kind, error, traceback)

    def __enter__(self) -> object:
        with self._noting():
            block = self._block = _opened(self._lifespan, self._node)
            if not isinstance(block, AbstractContextManager):
                raise ConfigError(_no_block(block, "a context manager", "contextlib.contextmanager"))
            return block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._noting(error):
            self._block.__exit__(kind, error, traceback)

    @contextmanager
    def _noting(self, error: BaseException | None = None) -> Iterator[None]:
        """Note at what the lifespan raises where that was; not at the ``error`` of the block that it only passes on."""
        try:
            yield
        except Exception as raised:
            if not is_of_lifespan(raised) and (error is None or not _has(raised, error)):
                raised.add_note(f"{_NOTE} {self._service!r}")
            raise


def _has(raised: BaseException, error: BaseException) -> bool:
    """Return whether this is an error, or a group with it, as the nursery of a lifespan raises what its block does."""
    return raised is error or (is_group(raised) and any(_has(one, error) for one in raised.exceptions))


def _no_block(block: object, expected: str, decorator: str) -> str:
    return f"its lifespan returns {type(block).__name__}, and not {expected}: decorate it with {decorator}"
