"""Interrupt protection: Ctrl-C strikes in the program that uses Iris, and not within Iris.

trio raises ``KeyboardInterrupt`` wherever SIGINT finds the interpreter, unless a function on the stack is protected:
then it is raised at the next checkpoint of the main task.  Between two lines of Iris it would leave half-changed what
other tasks rely on: a task that was to be woken and waits no more, for one, ends trio with ``TrioInternalError``.

trio looks at the innermost function on the stack that is marked one way or the other.  So

- the functions of the package are protected, and with them all that is called from there;
- the few functions that call the code of users are ``interruptible``: a handler may never end by itself;
- blocks that users enter are made by ``protected_context``, because the standard library's are not protected.

A mark costs nothing while the code runs: it is looked for when a signal comes.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Final, NoReturn, ParamSpec, TypeVar, cast, final

import trio

from iris.kernel.tasks.checkpoints import checkpoint_after_error
from iris.kernel.tasks.must_enter import MustEnter

_PACKAGE: Final = f"{__name__.partition('.')[0]}."
_ASYNC: Final = CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR
_KINDS: Final = frozenset((FunctionType, property, staticmethod, classmethod))

_F = TypeVar("_F", bound=Callable[..., object])
_P = ParamSpec("_P")
_T = TypeVar("_T")

_interruptible: Final[dict[int, CodeType]] = {}
"""Code of functions by its ``id``.  It is kept: the ``id`` of code that is gone may be that of other code later."""
_protected: Final[set[str]] = set()
"""Names of the modules whose functions are protected."""
_looked_at = 0
"""Size of ``sys.modules`` when every module of this package in it was protected; 0 if one was still being loaded."""
_needed = True
"""False if nothing in this process raises ``KeyboardInterrupt``."""


def interruptible(function: _F) -> _F:
    """Mark a function that calls the code of users: ``KeyboardInterrupt`` may strike there, and in what it calls.

    It may strike in the function itself, too, which must bear it like an exception of what it calls.
    """
    marked = cast("FunctionType", function)
    _interruptible[id(marked.__code__)] = marked.__code__
    trio.lowlevel.disable_ki_protection(marked)
    return function


def protect_package() -> None:
    """Protect the functions of the package's modules that are loaded.  Done before, it costs nothing.

    Modules that are loaded later are protected when it is called again: each background nursery does so.
    """
    global _looked_at  # noqa: PLW0603 -- marks are one for each process, as code is
    present = len(sys.modules)
    if present == _looked_at or not _needed:
        return
    complete = True
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE) and name not in _protected:
            if getattr(module.__spec__, "_initializing", False):  # another thread loads it: not all is there yet
                complete = False
                continue
            for code in _codes_of(module):
                if id(code) not in _interruptible:
                    trio.lowlevel.enable_ki_protection(_Code(code))
            _protected.add(name)
    _looked_at = present if complete else 0


def leave_unprotected() -> None:
    """Protect nothing any more: a process that waits for SIGINT as it waits for anything else saves 14 ms."""
    global _needed  # noqa: PLW0603 -- likewise
    _needed = False


def _codes_of(module: ModuleType) -> list[CodeType]:
    """Return the code of what a module defines and others may call first, with no other function of Iris around it.

    That is async functions, which tasks begin with, and those with public names, which users call, with what is defined
    within them.  All other functions are called by these; with them this would take twice the time.
    """
    names, name = vars(module), module.__name__
    defined = list(names.values())  # at once: another thread may load a module of this package, which is then a name
    for one in tuple(defined):
        if isinstance(one, type) and one.__module__ == name:
            defined += vars(one).values()
    codes: list[CodeType] = []
    for one in defined:
        kind = type(cast("object", one))
        if kind in _KINDS:
            function: object = one if kind is FunctionType else one.fget if kind is property else one.__func__
            if getattr(function, "__globals__", None) is not names:  # it is contextlib's, which everybody uses
                function = getattr(function, "__wrapped__", None)
            if type(function) is FunctionType and function.__globals__ is names:
                code = function.__code__
                if code.co_flags & _ASYNC or code.co_name[0] not in "_<":
                    codes.append(code)
    for code in codes:  # which grows meanwhile
        for constant in code.co_consts:
            if type(constant) is CodeType:
                codes.append(constant)  # noqa: PERF401 -- a list for each of 2,700 takes a millisecond more
    return codes


@final
class _Code:
    """An object that has code: trio marks the code of a function, and here there is the code alone."""

    def __init__(self, code: CodeType) -> None:
        self.__code__: CodeType = code


def protected_context(
    function: Callable[_P, AsyncIterator[_T]],
) -> Callable[_P, AbstractAsyncContextManager[_T]]:
    """Make a factory as ``asynccontextmanager`` does, of blocks that users enter without an interrupt on the way.

    The standard library's own functions around ``function`` are everybody's and not protected: interrupted there, the
    block would be left without its end.
    """
    opened = asynccontextmanager(function)

    @wraps(function)
    def enter(*args: _P.args, **kwargs: _P.kwargs) -> AbstractAsyncContextManager[_T]:
        return _Block(opened(*args, **kwargs), function.__name__)

    return enter


@final
class _Block(MustEnter, AbstractAsyncContextManager[_T]):
    """A block that users enter.

    Args:
        block: the block that is entered.
        name: the name of the function that opens it, for errors.
    """

    __slots__ = ("_block",)

    def __init__(self, block: AbstractAsyncContextManager[_T], name: str) -> None:
        super().__init__(name, "async with")
        self._block: Final = block

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> _T:
        try:
            self._enters()
            return await self._block.__aenter__()
        except Exception:
            await checkpoint_after_error()
            raise

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, traceback)

    # Python would name this class in its errors, and not what to write.

    def __await__(self) -> NoReturn:
        self._refuse("await")

    def __aiter__(self) -> NoReturn:
        self._refuse("async for")

    def __enter__(self) -> NoReturn:
        self._refuse("with", ", or iris.sync in a program without async")

    def __exit__(self, *_: object) -> None:
        """Needed for ``__enter__`` to be called at all."""

    def _refuse(self, used: str, otherwise: str = "") -> NoReturn:
        self._warned()
        raise TypeError(f"{self._opener}(...) opens a block and is not for {used!r}: use 'async with'{otherwise}")
