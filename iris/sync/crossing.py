"""Crossing: methods of the trio API as plain methods, one line each, with their names, arguments and types."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from inspect import signature
from threading import get_ident
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, final

import outcome
from trio import EndOfChannel

from iris.kernel.tasks import HeldBlock, MustEnter
from iris.sync.line import Behind
from iris.sync.portal import Portal, Waiter

_log: Final = logging.getLogger("iris")

T = TypeVar("T")
V = TypeVar("V")
W = TypeVar("W")
P = ParamSpec("P")


class Handle(Generic[T]):
    """An object of the trio API, for threads."""

    __slots__ = ("_inner", "_portal")

    def __init__(self, inner: T, portal: Portal) -> None:
        self._inner: Final = inner
        self._portal: Final = portal

    def __repr__(self) -> str:
        return repr(self._inner)


class Source(Handle[T], Generic[T, V]):
    """A handle from which values are taken, one after the other.

    What comes when its taker was interrupted is kept for the next one.  What a closed node has left can be taken as
    with trio, whether or not the run that it was made in is there; of a bridge's jobs and batches nothing is left.
    """

    __slots__ = ("_arrived",)

    _has_left: ClassVar[bool] = True

    def __init__(self, inner: T, portal: Portal) -> None:
        super().__init__(inner, portal)
        self._arrived: Final[deque[V]] = deque()

    async def _fetch(self) -> None:
        """Wait in the trio run for what is taken next."""
        taken: AsyncIterator[V] = cast("Any", self._inner)
        self._arrived.append(await taken.__anext__())

    def _fetch_at_once(self) -> bool:
        """Take what is there already, in the trio run; return whether there was anything."""
        return False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> V:
        while True:
            try:
                return self._arrived.popleft()
            except IndexError:  # or another thread was quicker
                try:
                    call = self._portal.call_even_closed if self._has_left else self._portal.call
                    call(self._fetch, lambda _woken, _deadline: (None,) if self._fetch_at_once() else None, "none")
                except (StopAsyncIteration, EndOfChannel):
                    raise StopIteration from None


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[T]], behind: Behind = "own"
) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a ``Handle`` that waits for one of what is in it, behind events and within its timeout."""
    timeout_of = _timeout_in(method)

    @wraps(method)
    def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        within = timeout_of(args, kwargs)
        return self._portal.call(partial(method, self._inner, *args, **kwargs), behind=behind, within=within)

    return call


def _timeout_in(method: Callable[..., object]) -> Callable[[tuple[Any, ...], dict[str, Any]], object]:
    """Return what finds the timeout among the arguments of a call of a method: its default if it is not given."""
    parameters = signature(method).parameters
    default = parameters["timeout"].default if "timeout" in parameters else None
    names = [*parameters][1:]  # without the object itself
    return lambda args, kwargs: {**dict(zip(names, args, strict=False)), **kwargs}.get("timeout", default)


def direct(method: Callable[Concatenate[Any, P], T], behind: Behind = "own") -> Callable[Concatenate[Any, P], T]:
    """Return the method of a ``Handle`` that has a plain one of what is in it called in the trio run, behind events.

    After that has ended, it is called here: what tells of a node that is closed still does.
    """

    @wraps(method)
    def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._portal.is_over:
            return method(self._inner, *args, **kwargs)
        return self._portal.call_plain(partial(method, self._inner, *args, **kwargs), behind)

    return call


def shared(
    method: Callable[Concatenate[Any, P], T], handle: Callable[[T, Portal], W]
) -> Callable[Concatenate[Any, P], W]:
    """Return the method of a ``Handle`` that calls a plain one of what is in it; ``handle`` makes what it returns."""
    plain = direct(method)

    @wraps(method)
    def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return handle(plain(self, *args, **kwargs), self._portal)

    return call


def block(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[T]],
    handle: Callable[[T, Portal], W],
    behind: Behind = "own",
) -> Callable[Concatenate[Any, P], AbstractContextManager[W]]:
    """Return the method of a ``Handle`` whose block is one of what is in it; ``handle`` makes what the block gives.

    It waits for its thread's events within its timeout, and then opens within that.
    """
    timeout_of = _timeout_in(method)

    @wraps(method)
    def enter(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[W]:
        opened = partial(method, self._inner, *args, **kwargs)
        within = timeout_of(args, kwargs)
        return Block(self._portal, opened, handle, method.__name__, behind, within)

    return enter


@final
class Block(MustEnter, AbstractContextManager[W]):
    """A block of the trio API, entered and left by threads.

    Ctrl-C while it is left cancels that, as with trio; a second one does not wait for it.  A block that fails while
    its body runs logs its error, and raises it when it is left.
    """

    __slots__ = ("_behind", "_block", "_call", "_ended", "_handle", "_held", "_is_inside", "_portal", "_within")

    def __init__(
        self,
        portal: Portal,
        block: Callable[[], AbstractAsyncContextManager[T]],
        handle: Callable[[T, Portal], W],
        opener: str = "this",
        behind: Behind = "own",
        within: object = None,
    ) -> None:
        super().__init__(opener, "with")
        self._within: Final = within
        self._behind: Final[Behind] = behind
        self._portal = portal
        self._block = block
        self._handle: Callable[[Any, Portal], W] = handle
        self._is_inside = False

    def __enter__(self) -> W:
        self._enters()
        self._portal.check()
        news, ended, thread = Waiter(), Waiter(), get_ident()

        def end() -> None:
            came = self._call.outcome
            if self._is_inside and isinstance(came, outcome.Error):
                _log.critical(
                    "what a block was entered for has failed; leaving it raises this",
                    exc_info=came.error,
                    extra={"reason": type(came.error).__name__},
                )
            ended.notify()
            news.notify()

        async def hold() -> None:  # what opens a block may look for the trio run, too
            await self._portal.events.wait_turn(thread, self._within)
            self._held = HeldBlock[Any](self._block(), news.notify)
            await self._held.hold()

        self._ended, self._call = ended, self._portal.new_call(hold, end)
        try:
            self._portal.begin(self._call, "none")
            news.wait()
        except BaseException:
            self._portal.cancel(self._call, ended)
            raise
        if ended.notified:
            self._call.result()
            raise AssertionError("a block ends when it is left")
        self._is_inside = True
        return self._handle(self._held.value, self._portal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._is_inside = False
        if self._portal.is_forked:
            return False
        if error is not None and not isinstance(error, Exception):
            self._portal.cancel(self._call, self._ended)
        else:
            try:
                if self._portal.do(self._leave, error, get_ident()):
                    self._ended.wait()
            except BaseException:
                self._portal.cancel(self._call, self._ended)
                raise
        came = self._call.outcome
        if isinstance(came, outcome.Error) and came.error is not error:
            raise came.error
        return isinstance(error, Exception) and isinstance(came, outcome.Value)

    def _leave(self, error: Exception | None, thread: int) -> None:
        """Leave it once the events are published that stand in line: some may be the block's."""
        if self._ended.notified:
            return
        if self._portal.events.holds(self._behind, thread):
            self._portal.events.call_emptied(partial(self._leave, error, thread))
        else:
            self._held.leave(error)
