"""Network transport: frames over TCP, WebSocket and ipc; on the wire each says what nng's PUSH and PULL would.

A node listens with ``iris.kernel.transport.listener``, reads with ``iris.kernel.transport.reader`` and sends with
``iris.kernel.transport.writer``, whatever the scheme: from the task that has a frame to the one that waits for it no
thread stands between.

A reverse connection exchanges the roles of dialling and nothing else.  The sender waits for it, at a path of its own
below each ws address of its node, or at each tcp address for who greets as a PULL and shows the token; the node that
cannot be dialled dials there.

A process that was forked after its parent had opened a transport cannot open one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.tasks import HostLoop, Wakeup, run_in_thread
from iris.kernel.transport.dialer import DialSlots, open_connection, open_ipc_connection, prepare_to_send
from iris.kernel.transport.greeting import ReverseGreeting
from iris.kernel.transport.listener import Acceptor
from iris.kernel.transport.port import ConnectionObserver, ConnectionUser, OutgoingConnection, Permit, SocketAddress
from iris.kernel.transport.reader import FrameReader, Framing
from iris.kernel.transport.sp import with_length, with_type_and_length
from iris.kernel.transport.writer import StreamOutgoing
from iris.kernel.wire import largest_frame

if TYPE_CHECKING:
    from iris.kernel.transport.reverse_dial import ReverseDialling, ReverseRequest

_SCHEMES: Final = ("tcp://", "ipc://", "ws://")
_IPC_PATH_LIMIT: Final = 107
DIALS: Final = 256
"""Dials at one time, and look-ups of names, each of these on a thread.  Apart from trio's own threads: members that
have this node dial dead names in their handshakes must not keep it from reading its files."""

_REACHED: Final = 256
"""Addresses of which it is remembered where they were found.  Reverse connections are dialled there: of a
name with several hosts only one knows the token."""


def check_url(url: str) -> str:
    """Return ``url`` if it can be dialled or listened at.

    Raises:
        ConfigError: another scheme than tcp, ipc or ws, no port, or an ipc path beyond the system's 107 bytes.
    """
    if not isinstance(url, str) or not url.startswith(_SCHEMES):
        raise ConfigError(f"{url!r} is not an address: use tcp://HOST:PORT, ws://HOST:PORT/PATH or ipc:///PATH")
    if url.startswith("ipc://"):
        if not url.isprintable():
            raise ConfigError(f"{url!r}: the path of an ipc address has printable characters only")
        if len(url.encode()) - len("ipc://") > _IPC_PATH_LIMIT:
            raise ConfigError(f"{url!r}: the path of an ipc address has at most {_IPC_PATH_LIMIT} bytes")
        return url
    port = re.search(r":([0-9]{1,5})(?:/|\Z)", url[len("ws://") :])
    if port is None or int(port[1]) > 65535:
        raise ConfigError(f"{url!r} has no valid port: use tcp://HOST:PORT or ws://HOST:PORT/PATH")
    return url


def _has_number(url: str) -> bool:
    """Return whether it asks no name server where a URL is."""
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return url.startswith("ipc://") or host in ("", "*", "localhost")
    return True


@final
class _ForkGuard:
    """Knows whether this is the child of a process that had opened a transport: threads are missing from it."""

    def __init__(self) -> None:
        self._opened = self._is_child = False
        os.register_at_fork(after_in_child=self._after_in_child)

    def note_opened(self) -> None:
        """Note that a transport is about to be opened; raise ConfigError in such a child."""
        self.check()
        self._opened = True

    def check(self) -> None:
        """See ``check_not_forked``."""
        if self._is_child:
            raise ConfigError(
                "a process that was forked after its parent had opened a node cannot open one: open the first node "
                "after the fork, or start processes with multiprocessing's 'spawn' or 'forkserver'"
            )

    def _after_in_child(self) -> None:
        self._is_child = self._opened


_fork_guard: Final = _ForkGuard()


def check_not_forked() -> None:
    """Raise ConfigError if this process was forked from one that had opened a transport."""
    _fork_guard.check()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    """A snapshot of the connections of a network transport."""

    inbound: int
    """Connections that are read, reverse ones included."""
    reverse: int
    """Inbound connections that this node has dialled itself."""
    held: int
    """Size of what has come of incomplete frames, in bytes."""
    outbound: int
    """Connections that are sent by, and those that are being dialled in reverse."""
    reported: int
    """Inbound connections that the observer knows of."""
    dialling: int
    """Reverse connections that are being dialled."""
    unauthenticated: int
    """Accepted connections that hold a slot of the listener: without their header yet, or unseen."""
    unseen: int
    """Accepted connections that have sent their header, and that the trio task has not seen."""
    refused: int
    """Connections that were refused before the trio task saw them, since the transport was opened."""


@final
class NetworkTransport:
    """The real network.  Make it inside ``trio.run``; close it before the run ends.

    Raises:
        ConfigError: no descriptor is left for it, or this is a process that was forked from one with a node.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limit = largest_frame(config)
        self._trio = trio.lowlevel.current_trio_token()
        _fork_guard.note_opened()
        try:
            self._streams = FrameReader(self._limit, self)
        except OSError as error:
            reason = str(error.strerror or error).lower()
            raise ConfigError(f"a node cannot be opened: {reason}: raise the limit (ulimit -n)") from None
        self._arrivals = Acceptor(config, self._limit, self._streams, self)
        self._reached: dict[str, tuple[int, SocketAddress]] = {}
        self._dialling: ReverseDialling[ReverseIncoming] | None = None  # made on first need
        self._reverse: dict[int, ReverseIncoming] = {}
        self._open: dict[int, Callable[[], object]] = {}
        """The connections that observers know of, and what hangs each up."""
        self._changes: deque[tuple[int, Callable[[], object] | None, str | None]] = deque()
        self._refused_reported = 0
        self._dials = DialSlots(DIALS)
        self._observer: ConnectionObserver | None = None
        self._unwatch: Callable[[], None] | None = None
        """Ends the watch of an event loop over what arrives.  None: a task of trio's waits for that."""
        self._interrupted = Wakeup()

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        """See ``Transport.listen``."""
        return tuple([await self._listen_at(check_url(url)) for url in urls])

    async def _listen_at(self, url: str) -> str:
        if _has_number(url):
            return self._listen(url)
        return await run_in_thread(self._listen, url)  # a name server may take half a minute

    def _listen(self, url: str) -> str:
        if url.startswith("tcp://"):
            return self._arrivals.listen(url)
        if url.startswith("ws://"):
            return self._arrivals.listen_web(url)
        return self._arrivals.listen_file(url)

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> OutgoingConnection:
        """See ``Transport.dial``.  Cancelling it leaves no connection behind."""
        if check_url(url).startswith("tcp://"):
            connection = await open_connection(url, self._dials, permit)
            self._note_reached(url, connection)
            return self._open_outgoing(connection, url, with_length, user)
        if url.startswith("ws://"):
            return await self._dial_web(url, user, permit)
        return self._open_outgoing(await open_ipc_connection(url), url, with_type_and_length, user)

    async def _dial_web(self, url: str, user: ConnectionUser, permit: Permit | None) -> StreamOutgoing:
        from iris.kernel.transport.websocket_dial import open_web

        connection, messages = await open_web(url, self._limit, self._dials, permit)
        self._note_reached(url, connection)
        return self._open_outgoing(connection, url, messages.encode, user, messages)

    def _note_reached(self, url: str, connection: socket.socket) -> None:
        self._reached.pop(url, None)
        with contextlib.suppress(OSError):  # it broke
            self._reached[url] = (connection.family, connection.getpeername())
        if len(self._reached) > _REACHED:
            del self._reached[next(iter(self._reached))]

    def _open_outgoing(
        self,
        connection: socket.socket,
        url: str,
        framing: Callable[[bytes | memoryview], tuple[bytes | memoryview, ...]],
        user: ConnectionUser,
        framing_in: Framing | None = None,
    ) -> StreamOutgoing:
        notice = _BrokenSoon(self._trio, user)
        try:
            notice.outgoing = StreamOutgoing(connection, self._streams, framing, notice, framing_in)
        except (OSError, ValueError) as error:  # there is no room to watch it, or this transport is closed
            connection.close()
            raise NotSent(f"cannot connect to {url}: {error}") from None
        return notice.outgoing

    # -- reverse connections --------------------------------------------------------------------------------

    async def accept_reverse(self, token: str, user: ConnectionUser) -> OutgoingConnection:
        """See ``Transport.accept_reverse``."""
        connection, messages = await self._arrivals.wait_reverse(token)
        with contextlib.suppress(OSError):  # it broke; the sender finds out
            prepare_to_send(connection)
        framing = with_length if messages is None else messages.encode
        return self._open_outgoing(connection, "the dialler of a reverse connection", framing, user, messages)

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> ReverseIncoming:
        """See ``Transport.dial_reverse``."""
        if url.startswith("ipc://"):
            raise NotSent(f"no reverse connection leads from {url}: that takes a tcp:// or ws:// address")
        if url not in self._reached:
            raise NotSent(f"no reverse connection leads from {url}: it was not reached")
        if self._dialling is None:
            from iris.kernel.transport.reverse_dial import ReverseDialling

            self._dialling = ReverseDialling(self._streams, self)
        ask: Callable[[], ReverseRequest] = partial(ReverseGreeting, token)
        if url.startswith("ws://"):
            from iris.kernel.transport.websocket_dial import WebReturn

            ask = partial(WebReturn, f"{url.rstrip('/')}/{token}", self._limit)
        incoming = ReverseIncoming(self._dialling, self._streams, user)
        self._dialling.dial(incoming, ask, *self._reached[url])
        return incoming

    def reverse_arrived(
        self, key: ReverseIncoming, connection: socket.socket, host: str, messages: Framing | None
    ) -> None:
        """See ``ReverseObserver.reverse_arrived``."""
        number = key.number = self._arrivals.next_number()
        try:
            self._streams.add(number, connection, messages)
        except OSError:  # there is no room to watch it
            connection.close()
            self._trio.run_sync_soon(key.broken)
            return
        self._reverse[number] = key
        self._changes.append((number, partial(self._streams.hang_up, number), host))
        self.arrivals_changed()

    def reverse_due(self) -> None:
        """See ``ReverseObserver.reverse_due``: a reader of frames waits until then."""
        self._interrupted.wake()  # where the task that reads is the one that waits, it looks anyway

    # -- connections that others open -----------------------------------------------------------------------

    def stream_closed(self, number: int) -> None:
        """See ``StreamObserver.stream_closed``."""
        self._changes.append((number, None, None))
        self.arrivals_changed()  # and not now: the caller may be in the middle of something

    def arrivals_changed(self) -> None:
        """See ``ArrivalObserver.arrivals_changed``."""
        with contextlib.suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self._notify, idempotent=True)  # one hop, however many there are

    def _notify(self) -> None:
        refused = self._arrivals.refused
        for number, host in self._arrivals.begin():
            self._changes.append((number, partial(self._streams.hang_up, number), host))
        self._arrivals.evict()  # not before: of each is told first that it is there, and then that it is gone
        observer = self._observer
        if observer is not None and refused != self._refused_reported:
            reported, self._refused_reported = self._refused_reported, refused
            observer.connections_refused(refused - reported)
        while observer is not None and self._changes:
            connection, hang_up, address = self._changes.popleft()
            if hang_up is not None:
                self._open[connection] = hang_up
                observer.connection_opened(connection, address)
            elif self._open.pop(connection, None) is not None:
                observer.connection_closed(connection)
                reverse = self._reverse.pop(connection, None)
                if reverse is not None:
                    reverse.broken()

    def observe(self, observer: ConnectionObserver) -> None:
        """See ``Transport.observe``."""
        self._observer = observer
        self._notify()

    @property
    def held(self) -> int:
        """See ``Transport.held``."""
        return self._streams.held

    def source(self) -> int:
        """See ``Transport.source``."""
        self._notify()
        return self._streams.source

    def hang_up(self, connection: int) -> None:
        """See ``Transport.hang_up``."""
        hang_up = self._open.get(connection)
        if hang_up is not None:
            hang_up()

    def statistics(self) -> TransportStatistics:
        """Return a snapshot of the connections."""
        return TransportStatistics(
            inbound=len(self._streams),
            reverse=len(self._reverse),
            held=self._streams.held,
            outbound=self._streams.watched,
            reported=len(self._open),
            dialling=0 if self._dialling is None else len(self._dialling),
            unauthenticated=self._arrivals.unauthenticated,
            unseen=self._arrivals.unseen,
            refused=self._arrivals.refused,
        )

    # -- frames ---------------------------------------------------------------------------------------------

    def receive_nowait(self) -> bytes | memoryview | None:
        """See ``Transport.receive_nowait``."""
        if self._streams.closed:
            raise trio.ClosedResourceError("this transport is closed")
        if self._arrivals.order:
            self._notify()
        if self._dialling:  # in a flood nobody waits, and attempts are due all the same
            self._dialling.expire(trio.current_time())
        frame = self._streams.receive_nowait()
        if self._changes:
            self._notify()  # the connection that it came by may be new
        return frame

    async def wait_readable(self) -> None:
        """See ``Transport.wait_readable``."""
        if self._streams.closed:
            raise trio.ClosedResourceError("this transport is closed")
        try:
            if not self._dialling:
                await self._wait()
                return
            with trio.move_on_at(self._dialling.deadline):
                await self._wait()
        except trio.ClosedResourceError:
            if self._streams.closed:
                raise
        if self._dialling and not self._streams.closed:
            self._dialling.expire(trio.current_time())

    async def _wait(self) -> None:
        if self._unwatch is None:
            await trio.lowlevel.wait_readable(self._streams.descriptor)
        else:
            await self._interrupted.wait()

    def receive_in(self, host: HostLoop, readable: Callable[[], None]) -> bool:
        """See ``Transport.receive_in``."""
        self._unwatch = host.watch(self._streams.descriptor, readable)
        return self._unwatch is not None

    def interrupt(self) -> None:
        """See ``Transport.interrupt``."""
        if not self._streams.closed:
            self._end_wait()

    def _end_wait(self) -> None:
        if self._unwatch is None:
            trio.lowlevel.notify_closing(self._streams.descriptor)
        else:
            self._interrupted.wake()

    def close(self) -> None:
        """See ``Transport.close``."""
        if not self._streams.closed:  # in the child of a fork it is: what else there is belongs to the parent
            self._end_wait()
            if self._unwatch is not None:
                self._unwatch()
            self._arrivals.close()
            self._streams.close()
            if self._dialling is not None:
                self._dialling.close()


@final
class _BrokenSoon:
    """Notifies the user of a connection in a turn of its own: a sender or receiver may be in the middle of it."""

    def __init__(self, token: trio.lowlevel.TrioToken, user: ConnectionUser) -> None:
        self._token = token
        self._user = user
        self.outgoing: StreamOutgoing | None = None

    def connection_broken(self) -> None:
        """See ``ConnectionUser.connection_broken``."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._notify)

    def _notify(self) -> None:
        if self.outgoing is not None and not self.outgoing.closed:
            self._user.connection_broken()


@final
class ReverseIncoming:
    """A reverse connection that this node dials.  See ``IncomingConnection``."""

    def __init__(self, dialling: ReverseDialling[ReverseIncoming], streams: FrameReader, user: ConnectionUser) -> None:
        self._dialling = dialling
        self._streams = streams
        self._user = user
        self._closed = False
        self.number: int | None = None
        """Number of the connection; None until it is there."""

    def broken(self) -> None:
        """The connection was there, and is lost."""
        if not self._closed:
            self._closed = True
            self._user.connection_broken()

    def close(self) -> None:
        """See ``IncomingConnection.close``."""
        if not self._closed:
            self._closed = True
            self._dialling.give_up(self)
            if self.number is not None:
                self._streams.hang_up(self.number)
