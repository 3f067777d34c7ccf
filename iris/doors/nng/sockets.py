"""Sockets of the door: the scalability protocols (SP) that programs of nng speak, on connections of asyncio.

- A connection begins with eight bytes of each side that say which protocol it speaks; who speaks another one, or none,
  is ended.  A message stands behind its length; over a Unix socket a byte is before that.
- Nothing is read of a message that is larger than may be.  Of each connection one whole message waits at a time: what
  follows is not read until that was received, so the client is held up.  So it is while those of all connections have
  as many bytes as may wait.
- What is sent goes in pieces: a connection that does not read costs one of them beside the message, which all
  connections share.

Sources: sp-tcp-mapping-01 and sp-ipc-mapping-01 of nanomsg, and nng for the type of messages by ipc.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

from iris.doors.accepting import accept
from iris.doors.processor import Processor
from iris.kernel.errors import ConfigError

_logger: Final = logging.getLogger("iris")

WAITING: Final = 256
"""Messages to all that wait for a connection that is slow; the oldest go first."""

WAITING_BYTES: Final = 16 << 20
"""Size limit of these messages, in bytes: there are fewer if some are large.  All connections share the messages."""

_IPC_MODE: Final = 0o600
_BACKLOG: Final = 1024
_PIECE: Final = 64 * 1024

_GREETING_TIMEOUT: Final = 10.0
"""Seconds for the handshake of TLS, and for the bytes that say the protocol."""

_MESSAGE_TIMEOUT: Final = 30.0
"""Seconds for a message, from when there is room for it."""

_STALE_LOOKS: Final = 2
"""Looks without progress after which a connection is ended."""

_MESSAGE: Final = b"\x01"
"""Type of all messages by ipc."""

_HOP: Final = 4
_HOPS: Final = 8
"""Size of a hop in the header of a request or survey, in bytes, and the number that there may be."""


class Protocol(NamedTuple):
    """A protocol of SP, as the door speaks it."""

    own: int
    """Number of the door's side."""
    peer: int
    """Number of the client's side."""
    has_header: bool = False
    """True if messages begin with a header, which is the same before the answer."""
    receives: bool = True
    """False if clients send nothing."""


REP: Final = Protocol(0x31, 0x30, has_header=True)
RESPONDENT: Final = Protocol(0x63, 0x62, has_header=True)
PULL: Final = Protocol(0x51, 0x50)
PUB: Final = Protocol(0x20, 0x21, receives=False)
REQ: Final = Protocol(0x30, 0x31, has_header=True)
SURVEYOR: Final = Protocol(0x62, 0x63, has_header=True)


@final
class Room:
    """Room for the messages that have come and wait to be received, of all connections of an endpoint.

    Args:
        most: bytes of them; a message that is larger waits alone.

    Attributes:
        taken: bytes that are taken.
    """

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._waiting: deque[asyncio.Event] = deque()
        """Writers that wait for room, the first one first."""

    @contextlib.asynccontextmanager
    async def reserved(self, size: int) -> AsyncGenerator[None]:
        """Keep so many bytes for the length of the block, once they are free and who came before has had its turn."""
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            while self._waiting[0] is not turn or (self.taken and self.taken + size > self._most):
                turn.clear()
                await turn.wait()
        finally:
            self._waiting.remove(turn)
            self._wake()
        self.taken += size
        try:
            yield
        finally:
            self.taken -= size
            self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].set()


@final
class Pipe:
    """A connection.

    Args:
        number: number that no other connection of the process has.
        reader: what is received.
        writer: what is sent.
        typed: True by ipc, where a byte stands before the length.
    """

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, typed: bool) -> None:
        self.number: Final = number
        self.reader: Final = reader
        self.unread = 0
        """Messages to all that were dropped because it was slow."""
        self.gone: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        """Done once the endpoint has the connection no more."""
        self._writer = writer
        self._typed = typed
        self._writing = asyncio.Lock()
        self._waiting: deque[bytes] = deque()
        """Messages to all that wait, the oldest first."""
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._pieces = 0
        """Pieces that were sent."""
        self._look = (0, 0)
        """Pieces at the last look, and number of looks since there was progress."""

    @property
    def is_ended(self) -> bool:
        """True if nothing more can be sent."""
        return self._writer.transport.is_closing()

    @property
    def left(self) -> int:
        """Number of messages to all that were not sent: dropped, or still waiting."""
        return self.unread + len(self._waiting)

    def end(self) -> None:
        """End it; one that has ended is passed over."""
        self._writer.transport.abort()

    async def read_size(self, most: int) -> int:
        """Return the bytes of the next message, which ``read`` returns.

        Raises:
            EOFError, OSError: there is none, or it has more bytes than may be: the connection is to be ended.
        """
        if self._typed and await self.reader.readexactly(1) != _MESSAGE:
            raise EOFError
        size = int.from_bytes(await self.reader.readexactly(8), "big")
        if size > most:
            raise EOFError
        return size

    async def read(self, size: int) -> bytes:
        """Return a message of so many bytes; raise EOFError or OSError if it does not come, or too slowly."""
        async with asyncio.timeout(_MESSAGE_TIMEOUT):
            return await self.reader.readexactly(size)

    async def send(self, data: bytes) -> None:
        """Send a message; return when the connection has taken it, or has ended."""
        size = len(data)
        head = (_MESSAGE if self._typed else b"") + size.to_bytes(8, "big")
        async with self._writing:
            await self._write(head + data[:_PIECE])
            rest = memoryview(data)
            for start in range(_PIECE, size, _PIECE):
                await self._write(rest[start : start + _PIECE])

    async def _write(self, piece: bytes | memoryview) -> None:
        if not self.is_ended:
            self._writer.write(piece)
            with contextlib.suppress(OSError):
                await self._writer.drain()
            self._pieces += 1

    def put(self, data: bytes) -> None:
        """Have a message to all sent when its turn comes; the oldest are dropped if too much waits."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        while len(self._waiting) > WAITING or self._waiting_bytes > WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.unread += 1
        self._news.set()

    async def send_waiting(self) -> None:
        """Send messages to all for as long as the connection lasts."""
        while not self.is_ended:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self.unread += 1  # until it is sent
            await self.send(data)
            self.unread -= not self.is_ended

    def is_stalled(self) -> bool:
        """Return True if it has taken nothing since the look before the last one, though something waits for it."""
        pieces, looks = self._look
        is_waiting = bool(self._waiting) or self._writing.locked()
        looks = looks + 1 if is_waiting and pieces == self._pieces else 0
        self._look = self._pieces, looks
        return looks >= _STALE_LOOKS


class Received(NamedTuple):
    """A message that a connection has sent."""

    data: bytes
    pipe: Pipe
    header: bytes
    """Header that the answer to it begins with."""


@final
class Endpoint:
    """A listening socket of one protocol, and its connections.

    Args:
        protocol: what is spoken.
        max_received: bytes of a message at most.
        max_waiting: bytes of messages that have come and wait to be received.
        max_connections: connections at a time; further ones are turned away.
        strangers: processor of connections that have not said what they speak.
        tls: context for TLS.  None by ipc.
        beside: what is done for each connection beside reading; cancelled when it has ended.
    """

    def __init__(
        self,
        protocol: Protocol,
        max_received: int,
        max_waiting: int,
        max_connections: int,
        strangers: Processor,
        tls: ssl.SSLContext | None,
        beside: Callable[[Pipe], Coroutine[object, object, None]] | None = None,
    ) -> None:
        self.turned_away = 0
        self._protocol = protocol
        self._max_received = max_received
        self._room = Room(max_waiting)
        self._max_connections = max_connections
        self._strangers = strangers
        self._tls = tls
        self._beside = beside
        self._unread = 0
        """Messages to all that were not sent to connections that have ended."""
        self._pipes: dict[int, tuple[Pipe, asyncio.Task[None]]] = {}
        self._messages: asyncio.Queue[tuple[Received, asyncio.Event]] = asyncio.Queue()
        """One message of each connection at most, in the order in which they came, and what tells it to go on."""
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._file: Path | None = None

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._pipes)

    def has(self, connection: Pipe) -> bool:
        """Return whether a connection is still there."""
        return connection.number in self._pipes

    def listen(self, url: str) -> str:
        """Listen, and return the address, with the port really bound; raise ConfigError if that cannot be done."""
        scheme, _, place = url.partition("://")
        try:
            if scheme == "ipc":
                self._listener = _listen_at_file(Path(place))
                self._file = Path(place)
            else:
                host, _, port = place.rpartition(":")
                self._listener = _listen_at_port(host.strip("[]"), int(port))
                url = f"{scheme}://{host}:{self._listener.getsockname()[1]}"
        except OSError as error:
            raise ConfigError(f"cannot listen at {url}: {str(error.strerror or error).lower()}") from None
        self._accepting = asyncio.ensure_future(accept(self._listener, "nng", self._strangers, self._greet))
        return url

    async def receive(self) -> Received:
        """Wait for a message, of the connection that has waited for longest."""
        received, taken = await self._messages.get()
        taken.set()
        return received

    def send_to_all(self, data: bytes) -> None:
        """Send to those who are connected and take it.  Nobody is waited for."""
        for pipe, _ in self._pipes.values():
            pipe.put(data)

    def end_stalled(self) -> int:
        """End the connections that have taken nothing since the last look but one, though something waits for them.

        Returns how many these are.
        """
        stalled = [pipe for pipe, _ in self._pipes.values() if pipe.is_stalled()]
        for pipe in stalled:
            pipe.end()
        return len(stalled)

    def unread_now(self) -> int:
        """Return how many of the messages to all were dropped, or not sent to connections that have ended."""
        return self._unread + sum(pipe.unread for pipe, _ in self._pipes.values())

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._accepting is not None:
            await _cancel([self._accepting])
        await _cancel([task for _, task in self._pipes.values()])
        for pipe, _ in self._pipes.values():  # whose task had not begun
            pipe.end()
        if self._listener is not None:
            self._listener.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    async def _greet(self, accepted: socket.socket) -> None:
        """Do the handshakes of a connection, and let it in if there is room."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        made = asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol, accepted, ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else _GREETING_TIMEOUT,
        )  # fmt: skip
        try:
            transport, _ = await self._strangers.metered(made)
        except OSError:  # it is gone, or speaks no TLS
            accepted.close()
            return
        except BaseException:
            accepted.close()
            raise
        try:
            transport.write(_greeting(self._protocol.own))
            async with asyncio.timeout(_GREETING_TIMEOUT):
                speaks = await reader.readexactly(8) == _greeting(self._protocol.peer)
        except (OSError, EOFError):  # it is gone, or too slow
            speaks = False
        except BaseException:
            transport.abort()
            raise
        if not speaks:
            transport.abort()
            return
        if len(self._pipes) >= self._max_connections:
            self.turned_away += 1
            transport.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        pipe = Pipe(next(_numbers), reader, writer, typed=self._tls is None)
        self._pipes[pipe.number] = pipe, asyncio.ensure_future(self._keep(pipe))

    async def _keep(self, pipe: Pipe) -> None:
        """Read what a connection sends until it ends."""
        beside = None if self._beside is None else asyncio.ensure_future(self._beside(pipe))
        try:
            await self._read(pipe)
        except (OSError, EOFError):
            pass
        except Exception:
            _logger.exception("the door failed a connection of nng", extra={"door": "nng"})
        finally:
            pipe.end()
            if beside is not None:
                beside.cancel()
            self._unread += pipe.left
            del self._pipes[pipe.number]
            pipe.gone.set_result(None)
            if beside is not None:
                await asyncio.wait([beside])

    async def _read(self, pipe: Pipe) -> None:
        if not self._protocol.receives:
            await pipe.reader.read(1)  # returns when it has ended, or says what it may not
            return
        while True:
            size = await pipe.read_size(self._max_received)
            async with self._room.reserved(size):
                await self._wait_received(pipe, await pipe.read(size))

    async def _wait_received(self, pipe: Pipe, data: bytes) -> None:
        header = b""
        if self._protocol.has_header:
            size = _size_of_header(data)
            if size is None:  # it has come too far
                return
            header, data = data[:size], data[size:]
        taken = asyncio.Event()
        self._messages.put_nowait((Received(data, pipe, header), taken))
        await taken.wait()


_numbers: Final = itertools.count(1)


def _greeting(number: int) -> bytes:
    return b"\0SP\0" + number.to_bytes(2, "big") + b"\0\0"


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _size_of_header(data: bytes) -> int | None:
    """Return the size of the header of a request or survey; None if it has gone through too many devices.

    Raises:
        EOFError: the message ends within it.
    """
    for hop in range(_HOPS):
        if len(data) < (hop + 1) * _HOP:
            raise EOFError
        if data[hop * _HOP] & 0x80:
            return (hop + 1) * _HOP
    return None


def _listen_at_file(path: Path) -> socket.socket:
    """Listen at a Unix socket of this user's; one that nobody listens at any more is replaced.

    Raises:
        ConfigError: there is a file that is no socket.
        OSError: it cannot be done.
    """
    if path.is_symlink() or (path.exists() and not path.is_socket()):
        raise ConfigError(f"cannot listen at {path}: there is a file that is no socket: move it, or give another path")
    listener = socket.socket(socket.AF_UNIX)
    try:
        try:
            listener.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or _is_listened_to(path):
                raise
            path.unlink(missing_ok=True)
            listener.bind(str(path))
        path.chmod(_IPC_MODE)  # nobody can connect before it listens
        return _listening(listener)
    except BaseException:
        listener.close()
        raise


def _is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # where many wait to be accepted, somebody listens
        return caller.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


def _listen_at_port(host: str, port: int) -> socket.socket:
    family, kind, number, _, address = socket.getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        return _listening(listener)
    except BaseException:
        listener.close()
        raise


def _listening(listener: socket.socket) -> socket.socket:
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def make_tls(certificate: Path, private_key: Path, client_ca: Path) -> ssl.SSLContext:
    """Return what encrypts, and lets in those only who show a certificate that one of ``client_ca`` has signed.

    Raises:
        ConfigError: the files cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, private_key)
        context.load_verify_locations(client_ca)
    except OSError as error:  # those of TLS as well
        raise ConfigError(
            f"no TLS by certificate {certificate}, private key {private_key}, client CA {client_ca}: {error}"
        ) from None
    return context
