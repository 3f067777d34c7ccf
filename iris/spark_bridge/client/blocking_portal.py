"""Blocking portal: a node in a thread of its own, for code that knows no trio, such as Spark's Python processes.

Calls to a bridge block until they are answered.  The node is opened at the first use and closed when nobody has used it
for a while: Spark keeps its Python workers for minutes, and does not say when it is done with them.

A process that was forked while a portal was open gets new portals.  Nothing is opened when this module is imported, so
Spark's forking daemon never holds a socket.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar, final

import trio

from iris.kernel.errors import IrisError
from iris.node.open import open_node
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.client.connection import Connection

T = TypeVar("T")

_IDLE: Final = 30.0
"""Seconds without use after which the node is closed."""

_AHEAD: Final = 8
"""Items that a stream fetches before they are wanted: of 256 KiB, for the bridge's chunks."""

_EXIT: Final = 2.0
"""Seconds that the end of the process waits for nodes to say goodbye."""


@final
class BlockingPortal:
    """Blocking access to one bridge, from any thread.  Get one from ``portal_to``.

    Args:
        connection: which bridge, and how to reach it.
        idle: seconds without use after which the node is closed; the next use opens another one.
    """

    def __init__(self, connection: Connection, *, idle: float = _IDLE) -> None:
        self._connection = connection
        self._idle = idle
        self._lock = threading.Lock()
        self._run: _PortalThread | None = None

    def call(self, ask: Callable[[BridgeClient], Awaitable[T]]) -> T:
        """Await something in the node's thread and return its result.

        Raises:
            ConfigError: the node cannot be opened with this connection.
            Whatever ``ask`` raises.
        """
        try:
            with self._use() as run:
                return trio.from_thread.run(run.ask, ask, trio_token=run.token)
        except IrisError as error:
            # Spark shows the whole traceback to its user; where in here it arose helps nobody.
            raise error.with_traceback(None) from None

    def stream(self, source: Callable[[BridgeClient], AsyncGenerator[T]]) -> Generator[T]:
        """Iterate over something asynchronous; the next items are fetched while the last ones are used.

        Closing the iterator cancels the source.  Errors are those of ``call``.
        """
        try:
            yield from self._stream(source)
        except IrisError as error:
            raise error.with_traceback(None) from None

    def _stream(self, source: Callable[[BridgeClient], AsyncGenerator[T]]) -> Generator[T]:
        with self._use() as run:
            feed = trio.from_thread.run_sync(run.start_feed, source, trio_token=run.token)
            try:
                while items := trio.from_thread.run(feed.receive, trio_token=run.token):
                    yield from items
            finally:
                trio.from_thread.run_sync(feed.scope.cancel, trio_token=run.token)

    @contextmanager
    def _use(self) -> Generator[_PortalThread]:
        with self._lock:
            run = self._run
            if run is None or not run.enter():
                run = self._run = _PortalThread(self._connection, self._idle)
                run.enter()
                run.start()
        try:
            run.wait_open()
            yield run
        finally:
            run.leave()

    def close(self, timeout: float | None = None) -> None:
        """Close the node, and wait until it is closed or ``timeout`` seconds have passed."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.close(timeout)


@final
class _PortalThread:
    """A thread with a node, from its opening to its end."""

    def __init__(self, connection: Connection, idle: float) -> None:
        self.token: trio.lowlevel.TrioToken
        self._connection = connection
        self._idle = idle
        self._thread = threading.Thread(target=self._main, name=f"iris portal {connection.bridge}", daemon=True)
        self._lock = threading.Lock()
        self._uses = 0
        self._ended = False
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self._changed: trio.Event
        self._nursery: trio.Nursery
        self._client: BridgeClient

    # -- from any thread ------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def enter(self) -> bool:
        """Keep the node open until ``leave``; tell whether that was still possible."""
        with self._lock:
            if self._ended:
                return False
            self._uses += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._uses -= 1
            if self._uses or self._ended:
                return
        self._tell()

    def wait_open(self) -> None:
        """Wait until the node is open.

        Raises:
            Whatever opening it raised.
        """
        self._opened.wait()
        if self._error is not None:
            raise self._error

    def close(self, timeout: float | None) -> None:
        with self._lock:
            self._ended = True
        self._tell()
        self._thread.join(timeout)

    def _tell(self) -> None:
        try:
            self.token.run_sync_soon(self._changed.set)
        except (AttributeError, trio.RunFinishedError):
            return  # not open yet, or no more

    # -- in the node's thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # noqa: BLE001 -- the thread that waits for the node gets it
            self._error = error
        with self._lock:
            self._ended = True
        self._opened.set()

    async def _live(self) -> None:
        connection = self._connection
        self._changed = trio.Event()
        self.token = trio.lowlevel.current_trio_token()
        async with (
            open_node(credential=connection.credential, seeds=connection.seeds) as node,
            trio.open_nursery() as nursery,
        ):
            self._nursery = nursery
            self._client = BridgeClient(node, connection.bridge, patience=connection.timeout)
            self._opened.set()
            while not self._is_over():
                self._changed = trio.Event()
                with trio.move_on_after(self._idle) as pause:
                    await self._changed.wait()
                if pause.cancelled_caught and self._end_if_unused():
                    break
            nursery.cancel_scope.cancel()

    def _is_over(self) -> bool:
        with self._lock:
            return self._ended

    def _end_if_unused(self) -> bool:
        with self._lock:
            self._ended = not self._uses
            return self._ended

    async def ask(self, ask: Callable[[BridgeClient], Awaitable[T]]) -> T:
        return await ask(self._client)

    def start_feed(self, source: Callable[[BridgeClient], AsyncGenerator[T]]) -> _Feed[T]:
        feed = _Feed[T]()
        self._nursery.start_soon(feed.run, source, self._client)
        return feed


@final
class _Feed(Generic[T]):
    """Queue of items from an asynchronous source to a blocking consumer."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._send, self._receive = trio.open_memory_channel[T](_AHEAD)
        self._error: BaseException | None = None

    async def run(self, source: Callable[[BridgeClient], AsyncGenerator[T]], client: BridgeClient) -> None:
        with self._send, self.scope:
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


def close_portals(timeout: float | None = None) -> None:
    """Close every portal of this process; they open again when they are used."""
    with _portals_lock:
        portals = [portal for (process, _), portal in _portals.items() if process == os.getpid()]
    for portal in portals:
        portal.close(timeout)


atexit.register(close_portals, _EXIT)
