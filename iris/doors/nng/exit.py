"""Exit of processes that use nng: its sockets are closed, and nothing more is done."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable
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
            raise ConfigError("a process that was forked after its parent had opened a door for nng cannot open one")
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
