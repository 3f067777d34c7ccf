"""Frames over nng: one PULL socket to listen, one PUSH socket for each way out.

Why these two.  PUSH says "not now" when its peer is slow: real backpressure, where PAIR1 polyamorous and raw REP
drop silently.  One PULL is one file descriptor for all peers.  Draining by file descriptor with non-blocking calls
moves 124,000 frames/s where ``asend``/``arecv`` move 11,500.

Rules of this file: no other module imports pynng; every socket gets a receive limit (pynng's default of 0 means
unlimited, and a 16-byte header could then claim gigabytes); pynng's callbacks run on nng's threads and only hop to
trio; a process that has opened a socket must not fork and go on using it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

import pynng
import trio

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.transport import Refused
from iris.kernel.wire import FRAME_OVERHEAD

_SCHEMES: Final = ("tcp://", "ipc://", "ws://")
_IPC_PATH_LIMIT: Final = 107


def check_url(url: str) -> str:
    """Return ``url`` if nng could use it.

    Raises:
        ConfigError: another scheme than tcp, ipc or ws, no port, or an ipc path beyond the system's 107 bytes.
    """
    if not url.startswith(_SCHEMES):
        raise ConfigError(f"{url!r} is not an address: use tcp://HOST:PORT, ws://HOST:PORT/PATH or ipc:///PATH")
    if url.startswith("ipc://"):
        if len(url.encode("utf-8", "replace")) - len("ipc://") > _IPC_PATH_LIMIT:
            raise ConfigError(f"{url!r}: the path of an ipc address has at most {_IPC_PATH_LIMIT} bytes")
        return url
    port = re.search(r":(\d{1,5})(?:/|\Z)", url[len("ws://") :])
    if port is None or int(port[1]) > 65535:
        raise ConfigError(f"{url!r} has no valid port: use tcp://HOST:PORT or ws://HOST:PORT/PATH")
    return url


def _reason(error: pynng.NNGException) -> str:
    return str(error).rstrip(".").lower() or type(error).__name__


@final
class NngTransport:
    """The real network.  Make it inside ``trio.run``; close it before the run ends."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limit = max(config.max_payload, config.batch_bytes) + FRAME_OVERHEAD
        self._trio = trio.lowlevel.current_trio_token()
        self._pull = pynng.Pull0(recv_max_size=self._limit, recv_buffer_size=config.receive_frames)
        assert self._pull.recv_max_size == self._limit
        self._fd = self._pull.recv_fd
        self._closed = False
        self._files: list[Path] = []

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        """See ``Transport.listen``."""
        return tuple([self._listen(check_url(url)) for url in urls])

    def _listen(self, url: str) -> str:
        try:
            listener = self._pull.listen(url)
        except pynng.AddressInUse:
            raise ConfigError(f"cannot listen at {url}: the address is in use by another program") from None
        except pynng.NNGException as error:
            raise ConfigError(f"cannot listen at {url}: {_reason(error)}") from None
        if url.startswith("ipc://"):
            path = Path(url.removeprefix("ipc://"))
            path.chmod(0o600)
            self._files.append(path)
            return url
        bound = re.search(r":(\d+)\Z", str(listener.local_address))
        return url if bound is None else re.sub(r":0(?=/|\Z)", f":{bound[1]}", url, count=1)

    async def dial(self, url: str, on_broken: Callable[[], None]) -> NngOutgoing:
        """See ``Transport.dial``.  Cancelling it leaves no connection behind."""
        check_url(url)
        socket = pynng.Push0(recv_max_size=self._limit, send_buffer_size=self._config.send_frames)
        outgoing = NngOutgoing(socket)

        told = False

        def broken() -> None:
            nonlocal told
            if not (outgoing.closed or told):
                told = True  # nng dials again by itself, and may lose that connection as well
                on_broken()

        def on_pipe_removed(_: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # a socket closed after its run has nobody to tell
                self._trio.run_sync_soon(broken, idempotent=True)

        socket.add_post_pipe_remove_cb(on_pipe_removed)

        def connect() -> None:
            socket.dial(url, block=True)

        try:
            # Blocking, on a thread: nng reports a refusal only there.  Closing the socket ends the wait.
            await trio.to_thread.run_sync(connect, abandon_on_cancel=True)
        except (pynng.ConnectionRefused, pynng.NoEntry) as error:
            outgoing.close()
            raise Refused(f"cannot connect to {url}: {_reason(error)}") from None
        except pynng.NNGException as error:
            outgoing.close()
            raise NotSent(f"cannot connect to {url}: {_reason(error)}") from None
        except BaseException:
            outgoing.close()
            raise
        return outgoing

    def receive_nowait(self) -> bytes | None:
        """See ``Transport.receive_nowait``."""
        try:
            return self._pull.recv(block=False)
        except pynng.TryAgain:
            return None
        except pynng.Closed:
            raise trio.ClosedResourceError("this transport is closed") from None

    async def wait_readable(self) -> None:
        """See ``Transport.wait_readable``."""
        if self._closed:
            raise trio.ClosedResourceError("this transport is closed")
        await trio.lowlevel.wait_readable(self._fd)

    def close(self) -> None:
        """See ``Transport.close``."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._fd)
            self._pull.close()
            for path in self._files:
                path.unlink(missing_ok=True)


@final
class NngOutgoing:
    """One PUSH socket with one connection.  nng's own redialling is not used: the mesh decides what to dial."""

    def __init__(self, socket: pynng.Push0) -> None:
        self._socket = socket
        self._fd: int | None = None
        self._watching = False
        self._others = trio.lowlevel.ParkingLot()
        self.closed = False

    def send_nowait(self, frame: bytes) -> bool:
        """See ``Outgoing.send_nowait``."""
        try:
            self._socket.send(frame, block=False)
        except pynng.TryAgain:
            return False
        except pynng.NNGException:
            raise trio.ClosedResourceError("this way out is closed") from None
        return True

    async def wait_writable(self) -> None:
        """See ``Outgoing.wait_writable``."""
        if self.closed:
            raise trio.ClosedResourceError("this way out is closed")
        if self._watching:  # only one task may wait for a descriptor; handshakes share the way with their link
            await self._others.park()
            if self.closed:
                raise trio.ClosedResourceError("this way out was closed")
            return
        if self._fd is None:
            self._fd = self._socket.send_fd  # made on first need: an idle link has no such descriptor
        self._watching = True
        try:
            await trio.lowlevel.wait_readable(self._fd)
        finally:
            self._watching = False
            self._others.unpark_all()

    def close(self) -> None:
        """See ``Outgoing.close``."""
        if not self.closed:
            self.closed = True
            if self._fd is not None:
                trio.lowlevel.notify_closing(self._fd)
            self._socket.close()
