"""A door for MQTT in the local realm of a test, a member beside it, and clients that speak in bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mqtt5

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import ClientLimits, Clients
from iris.doors.mqtt import MqttDoor, open_mqtt_door
from tests.support.doors import NOW, dial

CODE = {"311": 4, "5": 5}


class Ended(Exception):
    """The door has ended the connection."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def frame(first: int, *parts: bytes) -> bytes:
    body, length = b"".join(parts), bytearray()
    size = len(body)
    while True:
        size, low = divmod(size, 128)
        length.append(low | (0x80 if size else 0))
        if not size:
            return bytes((first, *length)) + body


def connect_3(token: str, client_id: str = "", *, keep_alive: int = 60, will: bytes = b"", flags: int = 0xC2) -> bytes:
    """Return a CONNECT of 3.1.1; ``will`` is its topic and payload."""
    parts = text("MQTT"), bytes((4, flags | (4 if will else 0))), keep_alive.to_bytes(2, "big"), text(client_id)
    return frame(0x10, *parts, will, text("any"), text(token))


def publish_3(topic: str, payload: bytes = b"", *, qos: int = 0, packet_id: int = 1, retain: bool = False) -> bytes:
    number = packet_id.to_bytes(2, "big") if qos else b""
    return frame(0x30 | qos << 1 | retain, text(topic), number, payload)


def subscribe_3(*filters: str, qos: int = 1) -> bytes:
    return frame(0x82, b"\x00\x07", *(text(one) + bytes((qos,)) for one in filters))


@dataclass
class Raw:
    """A client that says what it is given."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *packets: Any) -> None:
        """Send bytes, or packets of the library ``mqtt5``."""
        for packet in packets:
            self.writer.write(packet if isinstance(packet, bytes) else packet.write())

    async def frame(self) -> bytes:
        """Read one packet.

        Raises:
            Ended: there is none any more.
        """
        try:
            read = await self.reader.readexactly(2)
            size, shift = read[1] & 0x7F, 7
            while read[-1] & 0x80:
                read += await self.reader.readexactly(1)
                size |= (read[-1] & 0x7F) << shift
                shift += 7
            return read + await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Ended from None

    async def hear(self) -> Any:
        """Read one packet of MQTT 5, as an independent library understands it."""
        data = await self.frame()
        packet, size = mqtt5.read(memoryview(data))
        assert size == len(data)
        return packet

    async def join(self, token: str, client_id: str = "", **options: Any) -> Any:
        """Say CONNECT of MQTT 5, and return the CONNACK."""
        options = {"clean_start": True, **options}
        self.send(mqtt5.ConnectPacket(client_id, password=token.encode(), **options))
        return await self.hear()

    async def follow(self, *filters: str, **options: Any) -> list[int]:
        """Subscribe, and return the reasons."""
        wanted = [mqtt5.TopicFilter(one, **options) for one in filters]
        self.send(mqtt5.SubscribePacket(9, wanted))
        return [int(one) for one in (await self.hear()).reason_codes]

    async def end(self) -> bytes:
        """Return what comes until the door ends the connection."""
        read = b""
        with contextlib.suppress(Ended):
            while True:
                read += await self.frame()
        return read


@dataclass
class Place:
    """A door and what is around it."""

    node: iris.aio.Node
    member: iris.aio.Node
    door: MqttDoor
    clients: Clients
    tokens: Path
    token: str
    address: tuple[str, int]

    @asynccontextmanager
    async def dial(self, **options: Any) -> AsyncGenerator[Raw]:
        """Open a bare connection."""
        async with dial(self.address, **options) as (reader, writer):
            yield Raw(reader, writer)

    @asynccontextmanager
    async def client(self, client_id: str = "", **options: Any) -> AsyncGenerator[Raw]:
        """Open a connection of MQTT 5 that is welcome."""
        async with self.dial() as raw:
            told = await raw.join(self.token, client_id, **options)
            assert told.reason_code == 0
            yield raw

    @asynccontextmanager
    async def old_client(self, client_id: str = "", **options: Any) -> AsyncGenerator[Raw]:
        """Open a connection of MQTT 3.1.1 that is welcome."""
        async with self.dial() as raw:
            raw.send(connect_3(self.token, client_id, **options))
            assert await raw.frame() == b"\x20\x02\x00\x00"
            yield raw

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def open_place(
    tmp_path: Path,
    *,
    rights: Mapping[str, Any] | None = None,
    limits: ClientLimits | None = None,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncGenerator[Place]:
    """Open a door and a member."""
    given: Any = rights or {"publish": (">",), "subscribe": (">",)}
    token = grant(tmp_path / "tokens", "sensor", **given)
    clients = Clients(tmp_path / "tokens", lambda: NOW, limits or ClientLimits())
    made = socket.create_server(("127.0.0.1", 0), backlog=1024)
    address = made.getsockname()
    async with (
        iris.aio.open_node("member") as member,
        iris.aio.open_node("door") as node,
        open_mqtt_door(node, clients, sockets=[made], tls=tls, **options) as door,
    ):
        yield Place(node, member, door, clients, tmp_path / "tokens", token, address)


@asynccontextmanager
async def storing(node: iris.aio.Node, pattern: str = ">") -> AsyncGenerator[list[tuple[str, Any]]]:
    """Have a node keep and confirm events, as a bridge does."""
    stored: list[tuple[str, Any]] = []

    async def store(events: iris.aio.Subscription) -> None:
        while True:
            batch = await events.receive_batch()
            stored.extend((event.topic, event.payload) for event in batch)
            await events.confirm(batch)

    async with node.subscribe_durable(pattern, name="store", overflow="wait") as events:
        task = asyncio.ensure_future(store(events))
        try:
            yield stored
        finally:
            task.cancel()
            await asyncio.wait([task])
