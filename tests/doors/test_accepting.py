"""Accepting: what a door's sockets are like, and what the child of a fork keeps of them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from iris.doors.accepting import accept
from iris.doors.processor import Processor
from tests.support.forks import forked


def test_a_child_keeps_neither_the_port_of_a_door_nor_its_connections() -> None:
    asyncio.run(fork_and_close())


async def fork_and_close() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = listener.getsockname()
    greeted: asyncio.Queue[socket.socket] = asyncio.Queue()
    accepting = asyncio.ensure_future(accept(listener, "test", Processor(), greeted.put))
    reader, writer = await asyncio.open_connection(*address)
    accepted = await greeted.get()
    with forked():
        accepting.cancel()
        await asyncio.wait([accepting])
        accepted.close()
        listener.close()  # as if the door had died: the child lives
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
    writer.close()


def test_what_is_sent_on_a_connection_does_not_wait_until_the_client_has_confirmed_what_came_before() -> None:
    """The second of two writes came 40 ms late.  asyncio sets the option for sockets alone that name their protocol."""
    asyncio.run(accept_one())


async def accept_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        greeted: asyncio.Queue[socket.socket] = asyncio.Queue()
        accepting = asyncio.ensure_future(accept(listener, "test", Processor(), greeted.put))
        with socket.create_connection(listener.getsockname()), await greeted.get() as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepting.cancel()
        await asyncio.wait([accepting])
