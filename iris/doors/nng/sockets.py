"""Sockets of nng, as the door uses them.

Rules of this file:

- No other module imports pynng.
- Every socket gets a limit of what it receives: pynng's default of 0 means unlimited, and a header of 16 bytes could
  then claim gigabytes.
- pynng's callbacks run on nng's threads, one at a time for each socket, and only count and hop to the event loop.
- Messages are received and sent by pynng's helper for one operation of nng, not by its methods on top of that: those
  keep an object for each connection that has ended by the time its message is looked at, and lose the memory of a
  message whose sending is cancelled.  What pynng is not told of it does not keep either (``open_socket``).
- A socket whose mode matters is given it before it listens: afterwards would be too late.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, final

import pynng
from pynng._aio import AIOHelper

from iris.doors.nng.exit import close_at_exit
from iris.doors.nng.inherited import keep_from_children, leave_to_children
from iris.kernel.errors import ConfigError

_note_opened: Final = close_at_exit(pynng.Socket, instead_of=pynng.nng._pynng_atexit)

NngError: Final = pynng.NNGException
"""Error of operations that nng refuses."""

Closed: Final = pynng.Closed
"""The one of these errors that says that the socket is closed."""

_IPC_MODE: Final = 0o600

WAITING: Final = 256
"""Messages to all that nng keeps for a connection that is slow; the oldest go first."""

WAITING_BYTES: Final = 16 << 20
"""Bytes of them: there are fewer if some are large."""


@final
class Pipe(NamedTuple):
    """A connection that a message has come by."""

    number: int
    pipe: pynng.CData

    def end(self) -> None:
        """End it; one that has ended is passed over."""
        pynng.lib.nng_pipe_close(self.pipe)


@final
class Endpoint:
    """A listening socket of one protocol, and how many connections it has.

    Args:
        socket: socket of pynng, just made.
        max_connections: connections at a time; further ones are turned away.
        ended: called in the event loop with the number of each connection that has ended.
    """

    def __init__(
        self, socket: pynng.Socket, max_connections: int, ended: Callable[[int], None] = lambda _: None
    ) -> None:
        self.socket: Final = socket
        self.turned_away = 0
        self.unread = 0
        """Messages for connections that have ended which were not sent to them."""
        self._max_connections = max_connections
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._since: dict[int, int] = {}
        """Connections by number, and the number of messages that had been sent to all before each."""
        self._sent = 0
        self._room = WAITING
        self._large: deque[tuple[int, int]] = deque()
        """Large messages of the last ``WAITING`` to all, of which so many would be too much: number and bytes."""
        self._looks: deque[tuple[int, dict[int, int]]] = deque(maxlen=3)
        """Messages sent, to all and by each connection, at the last looks for those that do not read."""
        self._file: Path | None = None
        self._address = ""
        """Address at which it listens, without the scheme."""
        socket.add_pre_pipe_connect_cb(self._on_added)
        socket.add_post_pipe_remove_cb(self._on_removed)

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._since)

    def has(self, connection: Pipe) -> bool:
        """Return whether a connection is still there."""
        return connection.number in self._since

    def listen(self, url: str) -> str:
        """Listen, and return the address: another one than asked for if the port was 0.

        Raises:
            ConfigError: that cannot be done.
        """
        library, made = pynng.lib, pynng.ffi.new("nng_listener *")
        is_file = url.startswith("ipc://")
        if is_file:
            _check_no_file(Path(url.removeprefix("ipc://")))
        try:
            pynng.exceptions.check_err(library.nng_listener_create(made, self.socket.socket, url.encode()))
            if is_file:
                code = library.nng_listener_set_int(made[0], b"ipc:permissions", _IPC_MODE)
                pynng.exceptions.check_err(code)
            pynng.exceptions.check_err(library.nng_listener_start(made[0], 0))
        except pynng.NNGException as error:
            raise ConfigError(f"cannot listen at {url}: {str(error).rstrip('.').lower()}") from None
        scheme, _, rest = url.partition("://")
        self._address = rest if is_file else str(pynng.Listener(made, self.socket).local_address)
        keep_from_children(self._address)
        if is_file:
            self._file = Path(rest)
            return url
        return f"{scheme}://{rest.rpartition(':')[0]}:{self._address.rpartition(':')[2]}"

    def send_to_all(self, data: bytes) -> None:
        """Send to those who are connected and take it; PUB waits for nobody.

        Connections that are slow share what waits for them, which is bounded in messages and in bytes.
        """
        self._sent += 1
        while self._large and self._large[0][0] <= self._sent - WAITING:
            self._large.popleft()
        if len(data) > WAITING_BYTES // WAITING:
            self._large.append((self._sent, len(data)))
        largest = max((size for _, size in self._large), default=1)
        room = min(WAITING, 1 << (WAITING_BYTES // largest).bit_length() - 1)
        if room != self._room:
            self.socket.send_buffer_size = self._room = room
        self.socket.send(data, block=False)

    def end_stalled(self) -> int:
        """End the connections that have taken nothing since the last look but one, though something was sent to them.

        Returns how many these are.
        """
        self._looks.append((self._sent, _sent_by_connection()))
        if len(self._looks) < 3:
            return 0
        (first, before), (second, _), (_, now) = self._looks
        if first == second:  # nothing that has waited for a whole turn
            return 0
        stalled = [one for one in list(self._since) if one in before and before[one] == now.get(one)]
        for one in stalled:
            pynng.lib.nng_pipe_close(pynng.ffi.new("nng_pipe *", [one])[0])
        return len(stalled)

    def unread_now(self) -> int:
        """Return how many of the messages to all were not sent: of connections that are there, beyond what waits."""
        waiting = self._room + 1
        sent = _sent_by_connection()
        open_ones = [(self._sent - since) - sent.get(pipe, 0) for pipe, since in list(self._since.items())]
        return self.unread + sum(max(0, left - waiting) for left in open_ones)

    def close(self) -> None:
        """Close it; may be called twice.  Blocks until the callbacks have ended."""
        with contextlib.suppress(ValueError):  # it is closed
            self.socket.remove_post_pipe_remove_cb(self._on_removed)
        self.socket.close()
        leave_to_children(self._address)
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None

    # -- on nng's threads ------------------------------------------------------------------------------------

    def _on_added(self, pipe: pynng.Pipe) -> None:
        if len(self._since) >= self._max_connections:
            self.turned_away += 1
            pipe.close()
        else:
            self._since[pipe.id] = self._sent

    def _on_removed(self, pipe: pynng.Pipe) -> None:
        since = self._since.get(pipe.id, self._sent)
        if self._sent > since:
            self.unread += self._sent - since - _sent_by_connection().get(pipe.id, 0)
        self._since.pop(pipe.id, None)  # behind that: who sees that it is gone finds all that it has not read
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended, pipe.id)


def open_socket(
    kind: type[pynng.Socket], max_received: int, tls: pynng.TLSConfig | None, send_buffer_size: int | None = None
) -> pynng.Socket:
    """Open a socket that takes messages of so many bytes."""
    _note_opened()
    socket = kind(recv_max_size=max_received, tls_config=tls, send_buffer_size=send_buffer_size)
    assert socket.recv_max_size == max_received
    # Of a connection that ends at once pynng may hear last that it has begun, and would then keep it for ever.
    library, nothing = pynng.lib, pynng.ffi.NULL
    pynng.exceptions.check_err(library.nng_pipe_notify(socket.socket, library.NNG_PIPE_EV_ADD_POST, nothing, nothing))
    return socket


def _check_no_file(path: Path) -> None:
    """See that nng, which takes away what is left of a socket, takes away no file.

    Raises:
        ConfigError: there is one.
    """
    if path.is_symlink() or (path.exists() and not path.is_socket()):
        raise ConfigError(f"cannot listen at {path}: there is a file that is no socket: move it, or give another path")


def make_tls(certificate: Path, private_key: Path, client_ca: Path) -> pynng.TLSConfig:
    """Return what encrypts, and lets in those only who show a certificate that one of ``client_ca`` has signed.

    Raises:
        ConfigError: the files cannot be read or used.
    """
    try:
        chain, key, authority = (path.read_text() for path in (certificate, private_key, client_ca))
        return pynng.TLSConfig(
            pynng.TLSConfig.MODE_SERVER,
            own_cert_string=chain,
            own_key_string=key,
            ca_string=authority,
            auth_mode=pynng.TLSConfig.AUTH_MODE_REQUIRED,
        )
    except (OSError, UnicodeDecodeError, pynng.NNGException) as error:
        raise ConfigError(
            f"no TLS by certificate {certificate}, private key {private_key}, client CA {client_ca}: {error}"
        ) from None


async def receive(source: pynng.Socket | pynng.Context) -> tuple[bytes, Pipe]:
    """Wait for a message, and return it with the connection that it came by.

    Raises:
        Closed: the socket is closed; a cancellation that comes with a message may be lost, but this is not.
    """
    with AIOHelper(source, "asyncio") as operation:
        message = await operation.arecv_msg()
    pipe = pynng.lib.nng_msg_get_pipe(message._nng_msg)
    return message.bytes, Pipe(pynng.lib.nng_pipe_id(pipe), pipe)


async def send(target: pynng.Context, data: bytes) -> None:
    """Wait until the connection of the message that was received last takes an answer; it may have ended.

    Raises:
        Closed: the socket is closed.
    """
    with AIOHelper(target, "asyncio") as operation:
        try:
            await operation.asend(data)
        except BaseException:
            unsent = pynng.lib.nng_aio_get_msg(operation.aio)
            if unsent != pynng.ffi.NULL:
                pynng.lib.nng_msg_free(unsent)
            raise


def _sent_by_connection() -> dict[int, int]:
    """Return how many messages nng has sent by each connection of this process."""
    library, found, sent = pynng.lib, pynng.ffi.new("nng_stat **"), dict[int, int]()
    pynng.exceptions.check_err(library.nng_stats_get(found))
    try:
        one = library.nng_stat_child(found[0])
        while one != pynng.ffi.NULL:
            if _name_of(one) == b"pipe":
                below = library.nng_stat_child(one)
                while _name_of(below) != b"tx_msgs":
                    below = library.nng_stat_next(below)
                sent[library.nng_stat_value(one)] = library.nng_stat_value(below)
            one = library.nng_stat_next(one)
    finally:
        library.nng_stats_free(found[0])
    return sent


def _name_of(stat: pynng.CData) -> bytes:
    return pynng.ffi.string(pynng.lib.nng_stat_name(stat))
