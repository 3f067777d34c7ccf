"""Crossing: methods of the trio API as methods for asyncio, one line each, with their names, arguments and types."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, final

import outcome

from iris.aio.guest import Guest, Waiter, enter_guest, turning
from iris.kernel.tasks import HeldBlock, MustEnter

T = TypeVar("T")
V = TypeVar("V")
W = TypeVar("W")
P = ParamSpec("P")


class Handle(Generic[T]):
    """An object of the trio API, for asyncio."""

    __slots__ = ("_guest", "_inner")

    def __init__(self, inner: T, guest: Guest) -> None:
        self._inner: Final = inner
        self._guest: Final = guest

    def __repr__(self) -> str:
        return repr(self._inner)


class Source(Handle[T], Generic[T, V]):
    """A handle from which values are taken, one after the other.

    What comes when its taker was cancelled is kept for the next one.  What a closed node has left can be taken as with
    trio, whether or not the run that it was made in is there; of a bridge's jobs and batches nothing is left.
    """

    __slots__ = ("_arrived",)

    _has_left: ClassVar[bool] = True

    def __init__(self, inner: T, guest: Guest) -> None:
        super().__init__(inner, guest)
        self._arrived: Final[deque[V]] = deque()

    async def _fetch(self) -> None:
        """Wait in the trio run for what is taken next."""
        taken: AsyncIterator[V] = cast("Any", self._inner)
        self._arrived.append(await taken.__anext__())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V:
        while not self._arrived:  # two may wait for one value
            await (self._guest.call_even_closed if self._has_left else self._guest.call)(self._fetch)
        return self._arrived.popleft()


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the method of a ``Handle`` that awaits one of what is in it."""

    @wraps(method)
    async def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return await self._guest.call(partial(method, self._inner, *args, **kwargs))

    return call


def direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a ``Handle`` that calls a plain one of what is in it."""

    @wraps(method)
    def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._inner, *args, **kwargs)

    return call


def block(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[T]], handle: Callable[[T, Guest], W]
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[W]]:
    """Return the method of a ``Handle`` whose block is one of what is in it; ``handle`` makes what the block gives."""

    @wraps(method)
    def enter(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[W]:
        return Block(self._guest, partial(method, self._inner, *args, **kwargs), handle, method.__name__)

    return enter


@final
class Block(MustEnter, AbstractAsyncContextManager[W]):
    """A block of the trio API, entered and left by asyncio.

    Cancelling while it is left cancels that, as with trio.  A block that fails while its body runs, as that of a node
    does whose parts fail, cancels the task that has entered it, and raises its error in place of ``CancelledError``.
    """

    __slots__ = ("_block", "_call", "_cancelling", "_cut_off", "_ended", "_guest", "_handle", "_held", "_task")

    def __init__(
        self,
        guest: Guest,
        block: Callable[[], AbstractAsyncContextManager[T]],
        handle: Callable[[T, Guest], W],
        opener: str = "this",
    ) -> None:
        super().__init__(opener, "async with")
        self._guest = guest
        self._block = block
        self._handle: Callable[[Any, Guest], W] = handle
        self._task: asyncio.Task[Any] | None = None
        """The one whose body runs; None before and after."""
        self._cancelling = 0
        self._cut_off = False

    @turning
    async def __aenter__(self) -> W:
        self._enters()
        news = Waiter(self._guest.loop)
        self._ended = Waiter(self._guest.loop)
        self._held = HeldBlock[Any](self._block(), news.notify)

        def ended() -> None:
            self._ended.notify()
            news.notify()
            if self._task is not None and not self._task.done() and self._has_failed():
                self._cut_off = True
                self._task.cancel()

        self._call = self._guest.begin(self._held.hold, ended)
        self._guest.advance(news)
        try:
            await news.wait()
        except asyncio.CancelledError:
            self._call.cancel()
            await self._ended.wait_surely(self._call.cancel)
            raise
        if self._ended.notified:
            self._call.result()
            raise AssertionError("a block ends when it is left")
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        return self._handle(self._held.value, self._guest)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if self._cut_off and task is asyncio.current_task():
            assert task is not None
            if task.uncancel() > self._cancelling and isinstance(error, asyncio.CancelledError):
                return False  # by somebody else, too
            if not isinstance(error, asyncio.CancelledError):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # it was on its way to the body, which has ended
        elif not self._ended.notified:
            if error is None or isinstance(error, Exception):
                self._held.leave(error)
                self._guest.advance(self._ended)
            else:
                self._call.cancel()
            cancelled = await self._ended.wait_surely(self._call.cancel, leaving=True)
            if cancelled is not None:
                raise cancelled
        came = self._call.outcome
        if isinstance(came, outcome.Error) and came.error is not error:
            raise came.error
        if self._cut_off:
            self._call.result()
        return isinstance(error, Exception) and isinstance(came, outcome.Value)

    def _has_failed(self) -> bool:
        """Return True if a block that nobody has left has ended by an error of its own, or of the whole run."""
        return isinstance(self._call.outcome, outcome.Error) or not self._guest.is_closing


@final
class Opening(MustEnter, AbstractAsyncContextManager[W]):
    """A block of the trio API that no handle has made, with the trio run of its event loop; see ``Block``."""

    __slots__ = ("_block", "_guest", "_handle", "_opened")

    def __init__(
        self, block: Callable[[], AbstractAsyncContextManager[T]], handle: Callable[[T, Guest], W], opener: str
    ) -> None:
        super().__init__(opener, "async with")
        self._block = block
        self._handle: Callable[[Any, Guest], W] = handle
        self._guest: Guest | None = None

    async def __aenter__(self) -> W:
        self._enters()
        self._guest = await enter_guest()
        self._opened = Block(self._guest, self._block, self._handle, self._opener)
        try:
            return await self._opened.__aenter__()
        except BaseException:
            await self._guest.leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._guest is not None
        try:
            return await self._opened.__aexit__(kind, error, traceback)
        finally:
            await self._guest.leave()
