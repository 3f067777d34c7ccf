"""HTTP endpoint of a node: a few paths that are read with GET, in the node's own run, each connection one request.

A scraper is a stranger.  It gets 16 connections at a time, 5 s for each, 8 KiB of a request and 50 requests a second.
One more ends one that has said nothing for 0.1 s, or takes its answer for longer than 1 s: who opens many and waits
keeps nobody out.  What comes beyond that waits in the system's queue, and the node never does.  A browser that the name
of a page elsewhere has led here gets nothing.  Pages are made by their caller, off the node's thread if they are large.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Final, NamedTuple, final

import trio

from iris.kernel.errors import ConfigError
from iris.kernel.tasks import open_background, protected_context
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.transport import keep_from_children
from iris.node.telemetry.host_names import is_ours
from iris.node.telemetry.patient_listener import PatientListener

_log: Final = logging.getLogger("iris")

MAX_CONNECTIONS: Final = 16
_PATIENCE: Final = 5.0
_REQUEST: Final = 8 * 1024
_RATE: Final = 50.0
_IDLE: Final = 0.1
_BUSY: Final = 1.0
"""Seconds for which a connection that has sent no request yet, and one that is answered, gives way to no other one."""

_BACKLOG: Final = 64
_PIECE: Final = 64 * 1024


class Page(NamedTuple):
    """The answer at a path."""

    status: int
    content_type: str
    body: bytes


MakePage = Callable[[str], Awaitable[Page]]
"""Gets the ``Accept`` header of the request."""


@final
class MetricsEndpoint:
    """An endpoint that is up.  Made by ``open_endpoint``.

    Attributes:
        host: the host that it listens at.
        port: the port really bound.
        refused: requests that were none, or took too long.
    """

    def __init__(self, host: str, port: int, name: str, pages: Mapping[str, MakePage]) -> None:
        self.host: Final = host
        self.port: Final = port
        self._name = name
        self.refused = 0
        self._pages = pages
        self._open: dict[trio.CancelScope, float] = {}
        """Connections, each with the time from which on it gives way to another one."""
        self._left = trio.lowlevel.ParkingLot()

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"<MetricsEndpoint at {self.url}: {', '.join(self._pages)}>"

    async def _run(self, listener: PatientListener) -> None:
        bucket = TokenBucket(_RATE, _RATE, trio.current_time())
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(max(0.0, 1 - bucket.level(trio.current_time())) / _RATE)
                bucket.owe(1)
                stream = await listener.accept()
                await self._make_room()
                now = trio.current_time()
                scope = trio.CancelScope(deadline=now + _PATIENCE)
                self._open[scope] = now + _IDLE
                nursery.start_soon(self._serve, stream, scope)

    async def _make_room(self) -> None:
        """Wait until there is a place, and end who has had one for long enough."""
        while len(self._open) >= MAX_CONNECTIONS:
            first = min(self._open, key=self._open.__getitem__)
            due = self._open[first]
            if due <= trio.current_time():
                await trio.lowlevel.checkpoint()  # else who has sent all of it would pay for a stall of this process
                if self._open.get(first) == due:
                    del self._open[first]
                    first.cancel()
            else:
                with trio.move_on_at(due):
                    await self._left.park()

    async def _serve(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Answer one request.  Nothing of it may end the node."""
        try:
            with scope:
                async with stream:
                    await self._answer(stream, scope)
            self.refused += scope.cancelled_caught
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.refused += 1
        finally:
            self._open.pop(scope, None)
            self._left.unpark_all()

    def _keep(self, scope: trio.CancelScope, seconds: float) -> None:
        if scope in self._open:
            self._open[scope] = trio.current_time() + seconds

    async def _answer(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        import h11

        from iris.node.telemetry.strict_http import StrictConnection

        connection = StrictConnection(_REQUEST)
        try:
            while True:
                event = connection.next_event()
                if event is not h11.NEED_DATA:
                    break
                connection.receive_data(await stream.receive_some(_REQUEST))
        except h11.RemoteProtocolError as error:
            self.refused += 1
            request, page = None, Page(error.error_status_hint, _TEXT, b"this is no request that can be read\n")
        else:
            if not isinstance(event, h11.Request):
                return  # it was closed
            self._keep(scope, _BUSY)  # it has asked, and is idle no more while its page is made
            request, headers = event, dict(event.headers)
            host = headers.get(b"host", b"localhost")  # HTTP/1.0 has none, and no browser speaks it
            if is_ours(host.decode("latin-1"), (self._name,)):
                page = await self._page(event.method, event.target, headers.get(b"accept", b""))
            else:
                self.refused += 1
                page = Page(421, _TEXT, _ELSEWHERE)
        self._keep(scope, _BUSY)
        lines = [
            ("content-type", page.content_type),
            ("content-length", str(len(page.body))),
            ("cache-control", "no-store"),
            ("connection", "close"),
        ]
        if page.status == 405:
            lines.append(("allow", "GET, HEAD"))
        head = connection.send(h11.Response(status_code=page.status, headers=lines)) or b""
        body = b"" if request is not None and request.method == b"HEAD" else page.body
        await stream.send_all(head)
        for start in range(0, len(body), _PIECE):
            await stream.send_all(body[start : start + _PIECE])
        await stream.send_eof()
        self._keep(scope, 0.0)
        while await stream.receive_some(_REQUEST):  # to the end: else what was sent may be dropped by a reset
            pass

    async def _page(self, method: bytes, target: bytes, accept: bytes) -> Page:
        if method not in (b"GET", b"HEAD"):
            return Page(405, _TEXT, b"use GET\n")
        make = self._pages.get(target.partition(b"?")[0].decode("latin-1"))
        if make is None:
            return Page(404, _TEXT, f"there are {', '.join(self._pages)}\n".encode())
        try:
            return await make(accept.decode("latin-1"))
        except Exception as error:  # noqa: BLE001 -- whatever it is, it must not end the node
            _log.error("a page for operators cannot be made", exc_info=error, extra={"reason": type(error).__name__})
            return Page(500, _TEXT, b"this page cannot be made; the log of the node says why\n")


_TEXT: Final = "text/plain; charset=utf-8"

_ELSEWHERE: Final = (
    b"this node is not called so: ask by its address, by the name of its machine, or by a name of one word\n"
)
"""Answer to a page of a name that was made to resolve to this node."""


def text_page(status: int, text: str) -> Page:
    """Return a page of one line."""
    return Page(status, _TEXT, f"{text}\n".encode())


@asynccontextmanager
async def _kept_from_children(descriptor: int) -> AsyncIterator[None]:
    """Have children that are forked meanwhile close a socket of trio's: a restart would find the port in use."""
    same = keep_from_children(socket.socket(fileno=descriptor))
    try:
        yield
    finally:
        same.detach()


@protected_context
async def open_endpoint(host: str, port: int, pages: Mapping[str, MakePage]) -> AsyncIterator[MetricsEndpoint]:
    """Answer HTTP requests until the block ends.

    Args:
        host: an address of this machine, or its name; the first address of a name is used.
        port: 0 takes a free one.
        pages: answers by path.

    Raises:
        ConfigError: the address cannot be used, or h11 is not installed.
    """
    try:
        import_module("h11")  # to say now that it is missing
    except ImportError as error:
        raise missing("h11") from error
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"metrics cannot be served at {host}:{port}: {reason}") from None
    for surplus in listeners[1:]:
        surplus.socket.close()
    listener = listeners[0]
    address: tuple[str, int] = listener.socket.getsockname()[:2]
    async with listener, open_background() as nursery, _kept_from_children(listener.socket.fileno()):
        endpoint = MetricsEndpoint(address[0], address[1], host, pages)
        nursery.start_soon(endpoint._run, PatientListener(listener, "metrics cannot be asked for"))
        yield endpoint


def missing(package: str) -> ConfigError:
    """Return the error for a package that is not installed."""
    return ConfigError(f"metrics need {package}, which is not installed: pip install 'iris-mesh[metrics]'")
