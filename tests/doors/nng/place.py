"""A door for nng in the local realm of a test, a member beside it, and clients of several kinds."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynng
import pytest

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import ClientLimits, Clients
from iris.doors.nng import NngDoor, open_nng_door
from tests.support.doors import NOW, Counted, greeters

NNGCAT = pytest.mark.skipif(shutil.which("nngcat") is None, reason="nngcat is not installed: apt install nng-utils")

GREETINGS = {"req": b"\0SP\0\0\x30\0\0", "surveyor": b"\0SP\0\0\x62\0\0", "push": b"\0SP\0\0\x50\0\0"}
GREETINGS["sub"] = b"\0SP\0\0\x21\0\0"
SERVING_GREETINGS = {"orders.rep": b"\0SP\0\0\x31\0\0", "orders.respondent": b"\0SP\0\0\x63\0\0"}
"""First bytes of nng's sockets, by the client's protocol."""

PUBLIC: Any = {"call": (">",), "publish": (">",), "subscribe": (">",)}


def framed(data: bytes) -> bytes:
    """Return what goes over an ipc connection of nng for a message."""
    return b"\x01" + len(data).to_bytes(8, "big") + data


def left_in(directory: Path) -> list[Path]:
    """Return the files of doors that are still there."""
    return [*directory.glob("door.*")]


@dataclass
class Raw:
    """A connection by ipc that says what it is given."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def ask(self, data: bytes, number: int = 1) -> None:
        """Send what a REQ would, or a SURVEYOR."""
        self.writer.write(framed((number | 1 << 31).to_bytes(4, "big") + data))

    def stop_reading(self) -> None:
        transport: Any = self.writer.transport
        transport.pause_reading()

    async def hear(self) -> bytes:
        """Return the answer, which has the number of its request before it."""
        head = await self.reader.readexactly(9)
        return await self.reader.readexactly(int.from_bytes(head[1:], "big"))

    async def is_ended(self) -> bool:
        """Wait for the end of the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass
        return True


@dataclass
class Place:
    """A door and what is around it."""

    node: iris.aio.Node
    member: iris.aio.Node
    door: NngDoor
    clients: Clients
    tokens: Path
    counted: Counted

    @asynccontextmanager
    async def dial(self, protocol: str, greeting: bytes | None = None) -> AsyncGenerator[Raw]:
        """Open a bare connection that has said who it is."""
        path = self.door.addresses[protocol].removeprefix("ipc://")
        reader, writer = await asyncio.open_unix_connection(path, limit=1 << 22)
        try:
            writer.write({**GREETINGS, **SERVING_GREETINGS}[protocol] if greeting is None else greeting)
            if greeting is None:
                await reader.readexactly(8)
            yield Raw(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ask(self, message: bytes) -> bytes:
        """Ask as a REQ does, by a socket of its own."""
        with await self.socket(pynng.Req0, "req") as socket:
            await socket.asend(message)
            return await socket.arecv()

    async def socket(self, kind: type[pynng.Socket], protocol: str, **options: Any) -> pynng.Socket:
        """Return a connected socket of nng that takes messages of 1 MiB, as those of C do."""
        options = {"recv_timeout": 30_000, "send_timeout": 30_000, "recv_max_size": 1 << 20, **options}
        socket = kind(**options)
        await asyncio.to_thread(socket.dial, self.door.addresses[protocol], block=True)  # the door is in this thread
        return socket

    async def nngcat(self, protocol: str, *options: str) -> tuple[int | None, str, str]:
        """Run nngcat, and return its status, what it has said and what it has complained of."""
        process = await self.start_nngcat(protocol, *options)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async def start_nngcat(self, protocol: str, *options: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("nngcat", f"--{protocol.rpartition('.')[2]}", "--dial", self.door.addresses[protocol], *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def until(self, condition: Callable[[], object]) -> None:
        limit = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < limit, self.door.statistics()
            await asyncio.sleep(0.005)

    async def connected(self, protocol: str, count: int = 1) -> None:
        """Wait until so many connections are there."""
        await self.until(lambda: self.door.statistics().connections[protocol] == count)


@asynccontextmanager
async def open_place(
    tmp_path: Path,
    *,
    rights: Mapping[str, Any] = PUBLIC,
    limits: ClientLimits | None = None,
    url: str | None = None,
    **options: Any,
) -> AsyncGenerator[Place]:
    """Open a door, and a member of the cluster ``greeters``."""
    given: Any = rights
    grant(tmp_path / "tokens", "tools", **given)
    clients, counted = Clients(tmp_path / "tokens", lambda: NOW, limits or ClientLimits()), Counted()
    async with (
        iris.aio.open_node("greeters") as member,
        member.join("greeters", greeters(counted)),
        iris.aio.open_node("door") as node,
    ):
        await node.wait_for("greeters")
        async with open_nng_door(node, clients, url or f"ipc://{tmp_path}/door", "tools", **options) as door:
            yield Place(node, member, door, clients, tmp_path / "tokens", counted)
