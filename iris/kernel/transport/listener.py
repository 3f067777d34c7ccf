"""Listener: accepts TCP, WebSocket and ipc in a thread of its own, until each connection has sent its header.

A connection passes two hands: the ``Listener`` accepts it in the thread and reads its header, the ``Acceptor`` takes it
over in the trio task that uses it.  The thread is there so that a node that is busy turns nobody away.

What strangers can have is bounded from the start, by ``iris.kernel.slots``: a connection holds its slot until it is
closed, or until the trio task has seen it and counts it as its own (``seen``).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import selectors
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, final

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.numerals import read_port
from iris.kernel.slots import SlotTable, address_key
from iris.kernel.tasks import close_locked, try_lock
from iris.kernel.transport.greeting import Greeting, GreetingProgress, SpGreeting
from iris.kernel.transport.inherited import keep_from_children
from iris.kernel.transport.reader import FrameReader, Framing
from iris.kernel.transport.reverse_accept import PendingReverseTable

if TYPE_CHECKING:
    from iris.kernel.transport.websocket import WebSocketListener


_logger: Final = logging.getLogger("iris")

_BACKLOG: Final = 4096
"""Connections that the kernel holds until they are accepted; it may cut that to its own limit."""

_AT_ONCE: Final = 64
"""Connections that are accepted in one go, before those that have sent their header are handed on."""

_PAUSE: Final = 0.05
"""Seconds without accepting after an error that lasts: no descriptor or memory is left for one more."""

_FILE_MODE: Final = 0o600
"""Mode of Unix sockets: the user that connects must be allowed to write to it."""

_OF_ONE: Final = frozenset(
    {
        *(errno.ECONNABORTED, errno.EINTR, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
"""Errors that end one connection before it is accepted; see accept(2).  After any other error, such as that no
descriptor is left, the next attempt would end in the same way at once."""

_LOCKED: Final = 10.0
"""Seconds for which others may hold the lock of a directory."""

_LOCKED_AGAIN: Final = 0.002
_LOCKED_AT_MOST: Final = 0.2
"""Seconds between the first attempts to have it, and between later ones: where hundreds of processes start together
they would else keep the processors from the one that has it."""


@final
class _Visitor:
    """An accepted connection that has not sent its header yet, or that the trio task has not seen."""

    __slots__ = ("greeting", "host", "number", "socket")

    def __init__(self, connection: socket.socket, host: str | None, greeting: Greeting) -> None:
        self.socket = connection
        self.host = host
        self.greeting = greeting
        self.number: int | None = None
        """The number it was admitted under; None until its header was complete."""


class ArrivalDesk(Protocol):
    """Takes over the connections that a listener has accepted.  Called on the listener's thread; must not block."""

    def admit(self, connection: socket.socket, host: str | None, greeting: Greeting) -> int | None:
        """Return a number for a connection that has sent its header; None if it is not taken.

        Args:
            connection: the callee's from then on, if it is taken.
            host: the host that it comes from; None by ipc.
            greeting: its greeting.
        """
        ...

    def turn_away(self, number: int) -> None:
        """The connection of this number has lost its slot."""
        ...

    def note_refused(self) -> None:
        """``Listener.refused`` has grown."""
        ...


@final
class Listener:
    """Accepts connections in a thread, until each has sent the header that is due.

    Args:
        config: for the limits on strangers.
        desk: takes the connections over.
    """

    def __init__(self, config: Config, desk: ArrivalDesk) -> None:
        self._desk = desk
        self._places: SlotTable[_Visitor] = SlotTable(
            limit=config.half_open_handshakes,
            per_address=max(1, config.half_open_per_address * 3 // 4),
            timeout=config.handshake_timeout,
        )
        self._admitted: dict[int, _Visitor] = {}
        self._lock = threading.Lock()
        """Guards the slots and the admitted connections.  It is held for a tenth of a millisecond at most."""
        self._refused = 0
        self._waker, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._selector = selectors.DefaultSelector()
        except OSError:  # there is no descriptor left for it
            os.close(self._waker)
            os.close(self._wake)
            raise
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._listeners: list[socket.socket] = []
        self._closed = False
        self._is_exhausted = False
        """True if it was logged that nothing can be accepted."""
        self._thread: threading.Thread | None = None

    def listen(self, host: str, port: int, greet: Callable[[], Greeting]) -> int:
        """Take connections from now on; return the port, which is another one if it was 0.

        ``greet`` is called on this thread for each connection, and returns what it has to send first.

        Raises:
            OSError: the address is taken, not ours, or not known.
        """
        wildcard = host in ("", "*")
        name = None if wildcard else host.strip("[]")
        family = socket.AF_INET if wildcard else socket.AF_UNSPEC
        found = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = keep_from_children(socket.socket(family, kind, protocol))
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            self._begin(listener, greet)
        except BaseException:
            listener.close()
            raise
        bound: int = listener.getsockname()[1]
        return bound

    def listen_file(self, path: str, greet: Callable[[], Greeting]) -> None:
        """Take connections to a Unix socket from now on: those of this user.  See ``listen``.

        A file that a dead process has left is replaced.  The mode is set before anybody can connect: until ``listen``
        the system refuses everybody.  Meanwhile the directory has a lock that such processes share, and that who
        replaces a file has alone: it would take a socket that is bound and not open yet for one that is left over.  If
        it fails it leaves no file.

        Raises:
            OSError: somebody listens there, there is another file, or it cannot be made.
        """
        listener = keep_from_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            directory = Path(path).parent
            with _locked(directory, shared=True):
                is_free = _bind(listener, path)
                if is_free:
                    self._begin_at(path, listener, greet)
            if not is_free:
                with _locked(directory, shared=False):
                    if not _bind(listener, path):
                        if not _is_left_over(path):
                            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                        Path(path).unlink()
                        listener.bind(path)
                    self._begin_at(path, listener, greet)
        except BaseException:
            listener.close()
            raise

    def _begin_at(self, path: str, listener: socket.socket, greet: Callable[[], Greeting]) -> None:
        try:
            Path(path).chmod(_FILE_MODE)
            self._begin(listener, greet)
        except BaseException:
            Path(path).unlink()
            raise

    def _begin(self, listener: socket.socket, greet: Callable[[], Greeting]) -> None:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, (listener, greet))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="iris reception", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # as of whatever else the machine has no more of
                raise OSError(errno.EAGAIN, f"{error}: raise the limit of processes") from None
            self._thread = thread

    @property
    def refused(self) -> int:
        """Connections that were closed here: without a header in time, with a wrong one, or for a newer one."""
        return self._refused

    @property
    def waiting(self) -> int:
        """Connections that hold a slot here."""
        return len(self._places)

    def seen(self, number: int) -> None:
        """The trio task counts the connection of this number from now on.  One that is gone is ignored."""
        with self._lock:
            visitor = self._admitted.pop(number, None)
            if visitor is not None:
                self._places.leave(visitor)

    def close(self) -> None:
        """Stop listening, and close what has not been admitted.  Blocks for milliseconds; may be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            os.write(self._wake, b"x")
            self._thread.join()
        for listener in self._listeners:
            listener.close()
        for visitor in list(self._places.keys()):
            visitor.socket.close()
        self._selector.close()
        os.close(self._waker)
        os.close(self._wake)

    # -- on the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                self._run_once()
            except Exception:  # it is logged; if this thread ended, the node would be deaf for good
                _logger.exception("connections are accepted again in %g s", _PAUSE, extra={"cause": "accepting"})
                time.sleep(_PAUSE)

    def _run_once(self) -> None:
        with self._lock:
            wait = self._places.deadline - time.monotonic()
        for key, _ in self._selector.select(None if wait == float("inf") else max(0.0, wait)):
            if isinstance(key.data, _Visitor):
                self._look(key.data)
            elif key.data is not None:
                self._accept(*key.data)
        with self._lock:
            late = self._places.expire(time.monotonic())
        self._send_away(late)

    def _accept(self, listener: socket.socket, greet: Callable[[], Greeting]) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OF_ONE:
                    continue
                if not self._is_exhausted:
                    self._is_exhausted = True
                    reason = str(error.strerror or error).lower()
                    _logger.error("connections wait, for they cannot be accepted: %s", reason, extra={"reason": reason})
                time.sleep(_PAUSE)
                return
            self._is_exhausted = False
            keep_from_children(connection)
            host = None if connection.family == socket.AF_UNIX else str(address[0])
            try:
                visitor = _Visitor(connection, host, greet())
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, visitor)
            except (OSError, MemoryError):  # the machine has no room to watch one more
                connection.close()
                continue
            # From here on it counts against the limits of strangers.  The newest gets a slot in any case: an attacker
            # has to keep coming to keep others out.
            with self._lock:
                losers = self._places.allocate(visitor, None if host is None else address_key(host), time.monotonic())
            self._send_away(losers)
            self._look(visitor)  # mostly its header has come by then

    def _look(self, visitor: _Visitor) -> None:
        """Read from a connection, and admit it if its header is complete."""
        if visitor.socket.fileno() < 0:
            return  # it was closed, for a newer one, since it became readable
        try:
            progress = visitor.greeting.receive(visitor.socket)
        except Exception:  # noqa: BLE001 -- a library reads what strangers say; no surprise in it may end this thread
            progress = GreetingProgress.WRONG
        if progress is GreetingProgress.WHOLE:
            self._admit_visitor(visitor)
        elif progress is not GreetingProgress.PART:
            with self._lock:
                self._places.leave(visitor)
            if progress is GreetingProgress.WRONG:
                self._send_away([visitor])
            else:
                self._selector.unregister(visitor.socket)
                visitor.socket.close()

    def _admit_visitor(self, visitor: _Visitor) -> None:
        connection = visitor.socket
        self._selector.unregister(connection)
        with self._lock:  # before anybody can call ``seen``
            number = self._desk.admit(connection, visitor.host, visitor.greeting)
            if number is None:
                self._places.leave(visitor)
                connection.close()
            else:
                visitor.number = number
                self._admitted[number] = visitor

    def _send_away(self, visitors: list[_Visitor]) -> None:
        for visitor in visitors:
            self._refused += 1
            if visitor.number is None:
                self._selector.unregister(visitor.socket)
                visitor.socket.close()
            else:
                with self._lock:
                    self._admitted.pop(visitor.number, None)
                self._desk.turn_away(visitor.number)
        if visitors:
            self._desk.note_refused()


_UNREPORTED: Final = 4096
"""Connections that the trio thread may not have seen, because it was busy for long, when one more is let in."""


class ArrivalObserver(Protocol):
    """The trio task that connections are handed over to."""

    def arrivals_changed(self) -> None:
        """``Acceptor.begin`` has something to do, or ``refused`` has grown.

        Called on the thread of the listener, which must not be held up.
        """
        ...


@final
class Acceptor:
    """Hands accepted connections over to the trio task, and knows where this node listens.

    Args:
        config: for the limits on strangers.
        limit: bytes of the largest frame.
        streams: the reader of the connections.
        observer: notified when ``begin`` has something to do or ``refused`` has grown.
    """

    def __init__(self, config: Config, limit: int, streams: FrameReader, observer: ArrivalObserver) -> None:
        self._config = config
        self._limit = limit
        self._streams = streams
        self._observer = observer
        self._reception: Listener | None = None  # made on first need: it has descriptors and a thread
        self._numbers = itertools.count(1)
        self._tokens = PendingReverseTable()
        self._takes_reverse = False
        """True once it listens where reverse connections can come."""
        self._doors: dict[tuple[str, int], WebSocketListener] = {}
        self._files: list[tuple[Path, os.stat_result]] = []
        self._arrived: dict[int, tuple[socket.socket, str | None, Greeting]] = {}
        """Connections that the trio thread has not seen yet, and their hosts; the task that pops one has it."""
        self.order: Final[deque[int]] = deque()
        """Their numbers, in the order in which they came; also of those that have lost their slot again.

        Empty when ``begin`` has nothing to do: that is looked at for every frame."""
        self._evicted: deque[int] = deque()
        """Numbers of the connections that lost their slot just when the trio thread saw them."""
        self._unwatched = 0
        """Connections that the system had no room to watch."""

    @property
    def refused(self) -> int:
        """Connections that were refused before the trio task saw them."""
        return self._unwatched + (0 if self._reception is None else self._reception.refused)

    @property
    def unseen(self) -> int:
        """Connections that have sent their header, and that the trio task has not seen."""
        return len(self._arrived)

    @property
    def unauthenticated(self) -> int:
        """Connections that hold a slot of the listener: without their header yet, or unseen."""
        return 0 if self._reception is None else self._reception.waiting

    def listen(self, url: str) -> str:
        """Listen at ``tcp://HOST:PORT``; return the URL really bound, or raise ConfigError if that cannot be done."""
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        number = read_port(port)
        if number is None:
            raise ConfigError(f"cannot listen at {url}: a tcp address ends with its port")
        bound = self._listen(url, host, number, lambda: SpGreeting(self._tokens))
        self._takes_reverse = True
        return f"tcp://{host}:{bound}"

    def listen_file(self, url: str) -> str:
        """Take connections to ``ipc:///PATH`` from now on; see ``listen``.  The file goes with this object."""
        path = url.removeprefix("ipc://")
        with _named_errors(url):
            self._get_reception().listen_file(path, SpGreeting)
            self._files.append((Path(path), Path(path).lstat()))
        return url

    def listen_web(self, url: str) -> str:
        """Take connections to ``ws://HOST:PORT/PATH`` from now on; see ``listen``.  Several paths may have one port."""
        from iris.kernel.transport.websocket import WebSocketListener, path_of, split_url

        path = path_of(split_url(url).resource_name)
        authority, slash, rest = url.removeprefix("ws://").partition("/")
        host, _, port = authority.rpartition(":")
        door = self._doors.get((host, int(port)))
        if door is not None and path in door.paths:
            raise ConfigError(f"cannot listen at {url}: the address is in use")
        if door is None:
            door = WebSocketListener(self._limit, self._tokens)
            door.paths.add(path)  # before anybody can come
            port = str(self._listen(url, host, int(port), door.greet))
            self._doors[host, int(port)] = door
            self._takes_reverse = True
        door.paths.add(path)
        return f"ws://{host}:{port}{slash}{rest}"

    def _listen(self, url: str, host: str, port: int, greet: Callable[[], Greeting]) -> int:
        with _named_errors(url):
            return self._get_reception().listen(host, port, greet)

    def _get_reception(self) -> Listener:
        if self._reception is None:
            self._reception = Listener(self._config, self)
        return self._reception

    async def wait_reverse(self, token: str) -> tuple[socket.socket, Framing | None]:
        """Wait for the first connection that shows ``token``; return it, to send by.

        Cancelling leaves nothing behind.

        Raises:
            NotSent: nobody can come, or the token is in use.
        """
        if not self._takes_reverse:
            raise NotSent("a node that listens nowhere is linked to nodes that listen at a tcp:// or ws:// address")
        return await self._tokens.wait(token)

    def next_number(self) -> int:
        """Return a number for another connection."""
        return next(self._numbers)

    def begin(self) -> list[tuple[int, str | None]]:
        """Have new connections read, and return their numbers and hosts.  Called in the trio thread."""
        begun: list[tuple[int, str | None]] = []
        while self.order:
            number = self.order.popleft()
            arrived = self._arrived.pop(number, None)
            if arrived is not None and self._reception is not None:  # else it has lost its slot
                connection, host, greeting = arrived
                # From here on the connection is the trio task's, and counts there (``UnauthenticatedConnections``): its
                # slot here is free again.
                self._reception.seen(number)
                if greeting.awaited is not None:
                    greeting.awaited.hand_over(connection, greeting.framing)
                    continue
                try:
                    self._streams.add(number, connection, greeting.framing, typed=host is None)
                except OSError:
                    self._unwatched += 1
                    connection.close()
                else:
                    begun.append((number, host))
        return begun

    def evict(self) -> None:
        """Hang up on connections that ``begin`` has returned, perhaps just now, and that have lost their slot since."""
        while self._evicted:
            self._streams.hang_up(self._evicted.popleft())

    def close(self) -> None:
        """Stop listening, and close what has come.  Blocks for milliseconds; may be called twice.

        Files go while somebody still listens there: another node would replace one that is left over, by one that may
        have the same number on the disk.
        """
        while self._files:
            path, made = self._files.pop()
            with contextlib.suppress(OSError):
                if os.path.samestat(made, path.lstat()):  # else it is somebody else's
                    path.unlink()
        if self._reception is not None:
            self._reception.close()
        while self._arrived:
            self._arrived.popitem()[1][0].close()

    # -- on the thread of the listener ----------------------------------------------------------------------

    def admit(self, connection: socket.socket, host: str | None, greeting: Greeting) -> int | None:
        """See ``ArrivalDesk.admit``."""
        if len(self._arrived) > _UNREPORTED:
            # The trio task is far behind.  To refuse here bounds the descriptors; to wait would stop accepting.
            return None
        number = next(self._numbers)
        self._arrived[number] = (connection, host, greeting)
        self.order.append(number)
        self._observer.arrivals_changed()
        return number

    def note_refused(self) -> None:
        """See ``ArrivalDesk.note_refused``."""
        self._observer.arrivals_changed()

    def turn_away(self, number: int) -> None:
        """See ``ArrivalDesk.turn_away``."""
        arrived = self._arrived.pop(number, None)
        if arrived is not None:
            connection, _, greeting = arrived
            connection.close()
            if greeting.awaited is not None:
                greeting.awaited.is_claimed = False
        else:
            self._evicted.append(number)
            self._observer.arrivals_changed()


@contextlib.contextmanager
def _locked(directory: Path, *, shared: bool) -> Generator[None]:
    """Lock a directory against other processes of Iris for the length of the block, which is milliseconds.

    Args:
        directory: the directory.
        shared: others may have it meanwhile that share it.

    Raises:
        OSError: it cannot be opened, or others hold the lock for so long.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until, pause = time.monotonic() + _LOCKED, _LOCKED_AGAIN
        while True:
            try:
                try_lock(descriptor, shared=shared)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise OSError(errno.EBUSY, f"another process holds a lock on {directory}") from None
                time.sleep(pause * (1 + os.getpid() % 8 / 8))  # not all of those that wait at one time
                pause = min(1.5 * pause, _LOCKED_AT_MOST)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        close_locked(descriptor)


def _bind(listener: socket.socket, path: str) -> bool:
    """Bind a socket to a path; return whether nothing was there."""
    try:
        listener.bind(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _is_left_over(path: str) -> bool:
    """Return whether a path is that of a socket at which nobody listens any more."""
    if not stat.S_ISSOCK(Path(path).lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.setblocking(False)
        return trial.connect_ex(path) == errno.ECONNREFUSED


@contextlib.contextmanager
def _named_errors(url: str) -> Generator[None]:
    """Raise ``ConfigError`` where the system cannot listen."""
    try:
        yield
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "the address is in use by another program" if taken else str(error.strerror or error).lower()
        raise ConfigError(f"cannot listen at {url}: {reason}") from None
    except ValueError:
        raise ConfigError(f"cannot listen at {url}: that is not the name of a host") from None
