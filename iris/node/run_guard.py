"""Run guard: a node may be used in the trio run that opened it, until its block ends.

A call from elsewhere would continue in the tasks of another run, or find no run at all.  Some of these calls fail deep
inside of trio, others never return; here they are errors with instructions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Final, final

import trio

_CLOSED: Final = -1
"""Stands for a thread once the node is closed; no thread has this number."""


@final
class RunGuard:
    """Guard of the trio run that a node belongs to.

    Attributes:
        thread: number of the run's thread (``threading.get_ident``); another one once the node is closed.  Comparing
            it costs a quarter of ``check``, and finds all but calls from other frameworks in the same thread: for
            what is called for each event.
    """

    __slots__ = ("_token", "_waits", "thread")

    def __init__(self) -> None:
        self._token: Final = trio.lowlevel.current_trio_token()
        self.thread = get_ident()
        self._waits: set[trio.CancelScope] = set()

    def check(self) -> None:
        """Check that this is the node's own run, and that the node is open.

        Raises:
            trio.ClosedResourceError: the node is closed.
            RuntimeError: this is another run, another thread or another framework; the message says what to do.
        """
        try:
            token = trio.lowlevel.current_trio_token()
        except RuntimeError:
            token = None
        if token is self._token and self.thread != _CLOSED:
            return
        if self.thread == _CLOSED:
            raise closed()
        if token is not None:
            raise RuntimeError("this node belongs to another trio run: open a node with iris.open_node in this one")
        if _is_in_asyncio():
            raise RuntimeError(
                f"this node belongs to a trio run, and this is asyncio: {_FOR_ASYNCIO}; or call it from a thread with "
                f"{_FROM_THREAD}"
            )
        raise RuntimeError(
            f"this node belongs to a trio run in another thread: call it from here with {_FROM_THREAD}, or open a node "
            "of this thread's own in a trio.run, or with iris.sync.open_node; a handler with thread=True gets one for "
            "threads as a parameter of type iris.sync.Node, or as the node of an iris.sync.Request"
        )

    @property
    def is_closed(self) -> bool:
        """True once the node is closed."""
        return self.thread == _CLOSED

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Wait for something within the block that may never come once the node is closed.

        Yields:
            What ends this early, for a block that is entered: nothing cancels its body.

        Raises:
            trio.ClosedResourceError: the node is closed, or was closed meanwhile.
        """
        if self.thread == _CLOSED:
            raise closed()
        with trio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                yield lambda: self._waits.discard(scope)
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise closed()

    def close(self) -> None:
        """The node is closed: from now on each check fails, and no task waits."""
        self.thread = _CLOSED
        for scope in self._waits:
            scope.cancel()


def closed() -> trio.ClosedResourceError:
    """Return the error of what is asked of a node that is closed."""
    return trio.ClosedResourceError("this node is closed: the block of its open_node has ended")


def check_trio(opener: str = "iris.open_node") -> None:
    """Raise RuntimeError, with what to do, unless a trio run is active, which ``opener`` needs."""
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        if _is_in_asyncio():
            raise RuntimeError(f"{opener} is for trio, and this is asyncio: {_for_asyncio(opener)}") from None
        raise RuntimeError(
            f"{opener} is for trio, and no trio run is in progress here: run the program with trio.run(main), or "
            "use iris.sync.open_node"
        ) from None


def _for_asyncio(opener: str) -> str:
    module, _, name = opener.replace("iris", "iris.aio", 1).rpartition(".")
    return f"import {module} and use {module}.{name}; or run the program with trio.run(main)"


_FOR_ASYNCIO: Final = _for_asyncio("iris.open_node")

_FROM_THREAD: Final = (
    "trio.from_thread.run(node.request, CLUSTER, PAYLOAD), and trio_token=TOKEN if trio.to_thread did not start the "
    "thread (trio.lowlevel.current_trio_token(), in the node's run)"
)


def _is_in_asyncio() -> bool:
    asyncio = sys.modules.get("asyncio")  # who runs under it has imported it
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
