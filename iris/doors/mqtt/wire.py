"""The bytes of one connection: writing that does not wait for ever, and an end that the client can read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final, Self, final

from iris.doors.mqtt.counters import MqttStatistics

_STALLED: Final = 30.0
"""Seconds that a client may leave a packet unread."""

_PARTING: Final = 1.0
"""Seconds that a client has to read why the connection ends, and to end it too."""

_READ_AHEAD: Final = 16_384
"""Size of what is read before it is asked for, in bytes; twice as much waits at most."""


@final
class Lost(Exception):
    """The connection is gone, without a word of the client."""


@final
class Wire:
    """A connection that was accepted.  Several tasks may send at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: MqttStatistics) -> None:
        self.reader: Final = reader
        self._writer = writer
        self._counted = counted
        self._writing = asyncio.Lock()

    @classmethod
    async def over(cls, accepted: socket.socket, tls: ssl.SSLContext | None, counted: MqttStatistics) -> Self:
        """Return the wire over a socket.

        Raises:
            OSError: the handshake of TLS has failed, or the connection has ended.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ_AHEAD, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), counted)

    async def send(self, data: bytes) -> None:
        """Send a packet; it returns when there is room for another one.

        Raises:
            Lost: the connection is gone, or the client does not read.
        """
        async with self._writing:
            try:
                self._writer.write(data)
                async with asyncio.timeout(_STALLED):
                    await self._writer.drain()
            except TimeoutError:
                self._counted.stalled += 1
                self._writer.transport.abort()
                raise Lost from None
            except OSError:
                raise Lost from None

    async def part(self, data: bytes) -> None:
        """Send a last packet, and wait a little until the client has ended the connection as well.

        Closing a socket at once that has unread bytes would take the packet back.
        """
        with suppress(OSError):
            async with asyncio.timeout(_PARTING):
                self._writer.write(data)
                await self._writer.drain()
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                    while await self.reader.read(65_536):
                        pass

    async def close(self) -> None:
        """Close the connection, also when the client does not read what was sent."""
        self._writer.close()
        try:
            async with asyncio.timeout(_PARTING):
                await self._writer.wait_closed()
        except OSError:
            self._writer.transport.abort()
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
