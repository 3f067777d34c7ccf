"""Dialer: outbound connections by TCP and ipc, each a socket on which both ends have sent the header of SP.

No thread waits for a connection, unless a name must be looked up; so a node may dial many at a time.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar, final

import trio

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.numerals import read_port
from iris.kernel.tasks import first_of
from iris.kernel.transport.inherited import keep_from_children
from iris.kernel.transport.port import Permit, Refused, SocketAddress
from iris.kernel.transport.sp import ANSWER, GREETING

T = TypeVar("T")

_UNSENT: Final = 128 * KIB
"""Limit on the bytes that the system takes beyond those in flight: at most so much bulk stands before a request.

For somebody who does not read, on loopback, it takes 250 KiB with this limit and 3.8 MB without; frames of 64 KiB
go at 660 to 840 MiB/s with it and 440 to 580 without.  A smaller buffer (SO_SNDBUF) would limit what is on the way,
too, and so the rate of a long line."""

_OF_A_NAME: Final = 2
"""Addresses of a name that are dialled at one time: most have two, of which one may be cut off."""


@final
class DialSlots:
    """Limits how many connections are made at the same time, and how many names are looked up.

    Apart from each other: a look-up has its thread until the system's resolver gives up, also when nobody waits for it
    any more.  Who is dialled by names that nobody answers for must not keep those with numbers from being dialled.
    """

    __slots__ = ("connections", "look_ups")

    def __init__(self, at_once: int) -> None:
        self.connections: Final = trio.CapacityLimiter(at_once)
        self.look_ups: Final = trio.CapacityLimiter(at_once)


async def open_connection(url: str, dials: DialSlots, permit: Permit | None = None) -> socket.socket:
    """Connect to ``tcp://HOST:PORT``, and exchange SP headers.

    A host with several addresses is tried at one after the other; one that does not answer holds the next one up for a
    quarter of a second.  How long that takes is for the caller to limit: the system waits for minutes, and a greeting
    is waited for without end.  Cancelling leaves nothing behind but the thread
    that looks up a name, until it has found it.

    Args:
        url: the address to connect to.
        dials: limits those that are being made at the same time.
        permit: see ``Transport.dial``.

    Returns:
        A socket that does not block, by which nothing but the greetings has gone.

    Raises:
        Refused: nobody listens at any of its addresses.
        NotSent: unreachable, or somebody else listens there.
        ConfigError: the URL does not end with a port.
    """
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    number = read_port(port)
    if number is None:
        raise ConfigError(f"cannot connect to {url}: a tcp address ends with its port")
    connection, _ = await open_greeted(url, host.strip("[]"), number, dials, exchange_greetings, permit)
    return connection


async def open_greeted(
    url: str,
    host: str,
    port: int,
    dials: DialSlots,
    greet: Callable[[socket.socket], Awaitable[T]],
    permit: Permit | None = None,
) -> tuple[socket.socket, T]:
    """Connect to a port, exchange headers by ``greet``, and return its result, too; see ``open_connection``.

    ``greet`` raises ``OSError`` if what listens there is not meant.
    """
    try:
        addresses = await _resolve(host, port, dials.look_ups)
    except (OSError, ValueError, RuntimeError) as error:  # a name beyond those that can be asked for; no thread is left
        raise NotSent(f"cannot connect to {url}: {_reason(error)}") from None

    failures: list[Exception] = []
    attempts = [partial(_open_at, family, address, greet, permit) for family, address in addresses]
    async with dials.connections:  # one slot, however many addresses a stranger's name has
        connection = await first_of(
            attempts, failures, expected=(OSError, NotSent), discard=lambda made: made[0].close(), at_once=_OF_A_NAME
        )
    if connection is not None:
        return connection
    refused = all(isinstance(error, ConnectionRefusedError) for error in failures)
    reported = next(failure for failure in failures if refused or not isinstance(failure, ConnectionRefusedError))
    raise (Refused if refused else NotSent)(f"cannot connect to {url}: {_reason(reported)}")


async def _resolve(host: str, port: int, limiter: trio.CapacityLimiter) -> list[tuple[int, SocketAddress]]:
    def resolve(flags: int = 0) -> list[tuple[int, SocketAddress]]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, address) for family, _, _, _, address in found]

    try:
        return resolve(socket.AI_NUMERICHOST)  # which asks nobody
    except socket.gaierror:
        return await trio.to_thread.run_sync(resolve, abandon_on_cancel=True, limiter=limiter)


async def _open_at(
    family: int, address: SocketAddress, greet: Callable[[socket.socket], Awaitable[T]], permit: Permit | None
) -> tuple[socket.socket, T]:
    if permit is not None:
        permit(str(address[0]))
    connection = keep_from_children(socket.socket(family, socket.SOCK_STREAM))
    try:
        connection.setblocking(False)
        prepare_to_send(connection)
        code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(connection)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if connection.getsockname() == connection.getpeername():
            # The system gave this end the very port that nobody listens at, and has connected it with itself.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return connection, await greet(connection)
    except BaseException:
        connection.close()
        raise


def prepare_to_send(connection: socket.socket) -> None:
    """Have a connection by TCP send small frames at once, and take little more than what is on the way.

    Raises:
        OSError: it broke.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


async def exchange_greetings(connection: socket.socket) -> None:
    """Send the SP header to the peer that has accepted, and wait for a PULL's; raise OSError if none comes."""
    connection.send(GREETING)
    said = b""
    while len(said) < len(ANSWER):
        try:
            piece = connection.recv(len(ANSWER) - len(said))
        except BlockingIOError:
            await trio.lowlevel.wait_readable(connection)
            continue
        said += piece
        if not piece:
            raise ConnectionAbortedError("it was closed before a greeting came")
        if not ANSWER.startswith(said):
            raise ConnectionAbortedError("who listens there does not greet as a node does")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


_BUFFER: Final = 144 * KIB
"""Half of the bytes that the system takes, with its own: one full frame.  With the usual 208 KiB every frame of 256 KiB
went in two parts, for each of which both ends were woken; a tunnel took 11 % more processor time, with gateways on its
way 12 %.  Behind somebody who does not read wait 287 KB of frames of 16 KiB instead of 219 KB."""

_FULL: Final = 0.01
"""Seconds until it is tried again where too many wait to be accepted."""


async def open_ipc_connection(url: str) -> socket.socket:
    """Connect to ``ipc:///PATH``, and exchange SP headers.

    How long that takes is for the caller to limit.  Cancelling leaves nothing behind.

    Returns:
        A socket that does not block, by which nothing but the greetings has gone.

    Raises:
        Refused: nobody listens there.
        NotSent: it cannot be connected to, or somebody else listens there.
    """
    try:
        connection = keep_from_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    except OSError as error:  # no descriptor is left
        raise NotSent(f"cannot connect to {url}: {str(error.strerror).lower()}") from None
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        path = url.removeprefix("ipc://")
        while (code := connection.connect_ex(path)) == errno.EAGAIN:  # noqa: ASYNC110 -- the system tells nobody
            await trio.sleep(_FULL)
        if code:
            raise OSError(code, os.strerror(code))
        await exchange_greetings(connection)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        connection.close()
        raise Refused(f"cannot connect to {url}: {str(error.strerror).lower()}") from None
    except OSError as error:
        connection.close()
        raise NotSent(f"cannot connect to {url}: {str(error.strerror or error).lower()}") from None
    except BaseException:
        connection.close()
        raise
    return connection
