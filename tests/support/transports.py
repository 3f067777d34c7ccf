"""Real transports, for the tests of what they promise."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from iris.kernel.config import KIB, Config
from iris.kernel.transport.greeting import Greeting
from iris.kernel.transport.network import NetworkTransport, TransportStatistics
from iris.kernel.transport.port import OutgoingConnection, Transport

SCHEMES: Final = ("tcp", "ipc", "ws")

PATIENT: Final = Config(handshake_timeout=100.0)
"""Limits with which no peer is disconnected for being slow, which on a busy machine any may be."""


@asynccontextmanager
async def open_transports(count: int = 1, config: Config | None = None) -> AsyncIterator[list[NetworkTransport]]:
    """So many transports, and a minute for all that is done with them."""
    transports = [NetworkTransport(config or Config()) for _ in range(count)]
    try:
        with trio.fail_after(60):
            yield transports
    finally:
        for transport in transports:
            transport.close()


async def receive(transport: Transport) -> bytes:
    while (frame := transport.receive_nowait()) is None:
        await transport.wait_readable()
    return bytes(frame)


@asynccontextmanager
async def waiting(transport: Transport) -> AsyncIterator[None]:
    """Wait for frames that do not come, as a node does: what else happens is noticed meanwhile."""

    async def wait() -> None:
        frame = await receive(transport)
        raise AssertionError(f"a frame of {len(frame)} bytes has come")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        yield
        nursery.cancel_scope.cancel()


def check_idle(transport: NetworkTransport) -> None:
    """Assert that a transport holds nothing of the connections that it had."""
    left = transport.statistics()
    assert left == TransportStatistics(
        inbound=0,
        reverse=0,
        held=0,
        outbound=0,
        reported=0,
        dialling=0,
        unauthenticated=0,
        unseen=0,
        refused=left.refused,
    )


class NoDesk:
    """A desk that takes no connection."""

    def admit(self, connection: socket.socket, host: str | None, greeting: Greeting) -> int | None:
        """Take none."""

    def turn_away(self, number: int) -> None:
        """There is none."""

    def note_refused(self) -> None:
        """Count none."""


class ClosedStreams:
    """The connections that a reader has reported as ended."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def stream_closed(self, number: int) -> None:
        """See ``StreamObserver``."""
        self.numbers.append(number)


class Notified:
    """The user of a connection, as a function that is called when it is lost.  See ``ConnectionUser``."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def connection_broken(self) -> None:
        """See ``ConnectionUser.connection_broken``."""
        self._call()


ignore: Final = Notified(lambda: None)
"""User of connections whose end does not matter."""


async def fill(way: OutgoingConnection) -> int:
    """Send until nothing more is taken for a while; return how many frames were."""
    taken = 0
    while True:
        while way.send_nowait(bytes(64 * KIB)):
            taken += 1
        with trio.move_on_after(0.05) as scope:
            await way.wait_writable()
        if scope.cancelled_caught:
            if not way.send_nowait(bytes(64 * KIB)):  # TCP takes a little even when it does not call itself writable
                return taken
            taken += 1
