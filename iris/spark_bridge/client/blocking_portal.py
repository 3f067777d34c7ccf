"""Blocking portal: a node in a thread of its own, for code that knows no trio, such as Spark's Python processes.

Calls to a bridge block until they are answered.  The node is opened at the first use and closed when nobody has used it
for a while: Spark keeps its Python workers for minutes, and does not say when it is done with them.

A process that was forked while a portal was open gets new portals.  Nothing is opened when this module is imported, so
Spark's forking daemon never holds a socket.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Final, Generic, TypeVar, final

import trio

from iris.kernel.errors import IrisError
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.client.connection import Connection
from iris.sync import open_node

T = TypeVar("T")

_IDLE: Final = 30.0
"""Seconds without use after which the node is closed."""

_AHEAD: Final = 8
"""Items that a stream fetches before they are wanted: of 256 KiB, for the bridge's chunks."""


@final
class BlockingPortal:
    """Blocking access to one bridge, from any thread.  Get one from ``portal_to``.

    Args:
        connection: name of the bridge, and how to reach it.
        idle: seconds without use after which the node is closed; the next use opens another one.
    """

    def __init__(self, connection: Connection, *, idle: float = _IDLE) -> None:
        self._connection = connection
        self._idle = idle
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._uses = 0
        self._used = 0.0

    def call(self, ask: Callable[[BridgeClient], Awaitable[T]]) -> T:
        """Await something in the node's thread and return its result.

        Raises:
            ConfigError: the node cannot be opened with this connection.
            Whatever ``ask`` raises.
        """
        try:
            with self._use() as opened:
                return opened.portal.call(partial(ask, opened.client))
        except IrisError as error:
            # Spark shows the whole traceback to its user, who has no use for frames of this module.
            raise error.with_traceback(None) from None

    def stream(self, source: Callable[[BridgeClient], AsyncGenerator[T]]) -> Generator[T]:
        """Iterate over something asynchronous; the next items are fetched while the last ones are used.

        Closing the iterator cancels the source.  Errors are those of ``call``.
        """
        try:
            with self._use() as opened:
                feed = _Feed[T]()
                fetching = opened.portal.new_call(partial(feed.run, source, opened.client), lambda: None)
                opened.portal.begin(fetching)
                try:
                    while items := opened.portal.call(feed.receive):
                        yield from items
                finally:
                    opened.portal.do(fetching.cancel)
        except IrisError as error:
            raise error.with_traceback(None) from None

    @contextmanager
    def _use(self) -> Generator[_Opened]:
        with self._lock:
            if self._opened is None:
                self._opened = _Opened(self._connection)
                self._close_later(self._opened, self._idle)
            opened = self._opened
            self._uses += 1
        try:
            yield opened
        except trio.ClosedResourceError:  # the node has failed: the next use opens another one
            self._close(opened)
            raise
        finally:
            with self._lock:
                self._uses -= 1
                self._used = time.monotonic()

    def _close_later(self, opened: _Opened, pause: float) -> None:
        timer = threading.Timer(pause, self._close_if_unused, (opened,))
        timer.daemon = True
        timer.start()

    def _close_if_unused(self, opened: _Opened) -> None:
        with self._lock:
            if self._opened is not opened:
                return
            left = self._idle if self._uses else self._used + self._idle - time.monotonic()
            if left > 0:
                self._close_later(opened, left)
                return
            self._opened = None
        opened.close()

    def _close(self, opened: _Opened) -> None:
        with self._lock:
            if self._opened is opened:
                self._opened = None
        opened.close()

    def close(self) -> None:
        """Close the node, and wait until it is closed."""
        if self._opened is not None:
            self._close(self._opened)


@final
class _Opened:
    """A node that is open in a thread of its own, and a client for it."""

    def __init__(self, connection: Connection) -> None:
        self._block = open_node(credential=connection.credential, seeds=connection.seeds, client=not connection.member)
        node = self._block.__enter__()
        self.portal: Final = node._portal
        self.client: Final = BridgeClient(node._inner, connection.bridge, patience=connection.timeout)

    def close(self) -> None:
        self._block.__exit__(None, None, None)


@final
class _Feed(Generic[T]):
    """Queue of items from an asynchronous source to a blocking consumer."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[T](_AHEAD)
        self._error: BaseException | None = None

    async def run(self, source: Callable[[BridgeClient], AsyncGenerator[T]], client: BridgeClient) -> None:
        with self._send:
            items = source(client)
            try:
                async for item in items:
                    await self._send.send(item)
            except Exception as error:  # noqa: BLE001 -- it is the consumer's
                self._error = error
            finally:
                with trio.CancelScope(shield=True):
                    await items.aclose()

    async def receive(self) -> list[T]:
        """Return the items that are there, at least one; none at the end."""
        try:
            items = [await self._receive.receive()]
        except trio.EndOfChannel:
            if self._error is not None:
                raise self._error from None
            return []
        while True:
            try:
                items.append(self._receive.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return items


_portals: dict[tuple[int, Connection], BlockingPortal] = {}
_portals_lock = threading.Lock()


def portal_to(connection: Connection) -> BlockingPortal:
    """Return this process's portal with a connection."""
    with _portals_lock:
        key = (os.getpid(), connection)
        portal = _portals.get(key)
        if portal is None:
            portal = _portals[key] = BlockingPortal(connection)
        return portal
