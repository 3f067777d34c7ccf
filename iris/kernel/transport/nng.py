"""Import and exit of nng: pynng without asyncio at the start, closed sockets and nothing more at the end.

pynng imports asyncio for those who await on it there: 29 modules, 20 of the 380 ms that a process needs until ``import
iris`` is done.  Iris never uses it, so its import is deferred.  When the process ends, its sockets are closed and nng
itself is left alone.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Protocol

from iris.kernel.errors import ConfigError


class Closable(Protocol):
    """A socket; closing it twice does nothing."""

    def close(self) -> None:
        """Close it, and wait until its callbacks have ended."""
        ...


def close_at_exit(kind: type[Closable], *, instead_of: Callable[[], None]) -> Callable[[], None]:
    """Have every object of a kind that is open at the end of the process closed then, in place of another exit handler.

    pynng's handler ends nng, which frees its queues before it stops the thread that fills them: of 178 gateways that
    had spoken ws one died of that, of SIGSEGV or with "pthread_mutex_lock: Invalid argument" and SIGABRT.  nng's
    threads are now left to the system.  They harm nothing as long as they call no Python: an open socket that is
    collected when the interpreter is half gone waits for a callback for ever.  So sockets are closed before, those of
    others, too.

    Returns:
        What to call before each of them is opened.  A child of a fork after the first has none of these threads, and
        nng aborts it when it uses a socket: it closes none, and what is returned raises ``ConfigError``.
    """
    opened = forked = False

    def note_opened() -> None:
        nonlocal opened
        if forked:
            raise ConfigError(
                "a process that was forked after its parent had opened a node cannot open one: open the first node "
                "after the fork, or start processes with multiprocessing's 'spawn' or 'forkserver'"
            )
        opened = True

    def close_all() -> None:
        for found in gc.get_objects():
            if issubclass(type(found), kind):
                found.close()

    def close_nothing() -> None:
        nonlocal forked
        if opened:
            forked = True
            atexit.unregister(close_all)
            kind.close = _nothing  # type: ignore[assignment, method-assign]

    atexit.unregister(instead_of)
    atexit.register(close_all)
    os.register_at_fork(after_in_child=close_nothing)
    return note_opened


def _nothing(_: object) -> None:
    pass


class _Deferred(ModuleType):
    """Stands for a module in the names of those who imported it, and imports it when something of it is wanted."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by the import system, which takes "no" for an answer
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:  # wanted at once after all
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def deferred(name: str) -> Generator[None]:
    """Have ``import name`` within the block load nothing, unless it is loaded already.

    Afterwards an import of it gives the real module; those in the block get it with the first use of an attribute.
    """
    if name in sys.modules:
        yield
        return
    stand_in = sys.modules[name] = _Deferred(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
