"""Plain sockets that speak WebSocket, or do not, for the tests of what listens for it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

from iris.kernel.config import MIB
from iris.kernel.transport.port import OutgoingConnection
from iris.kernel.transport.websocket import PULL, ClientUpgrade, WebSocketFraming
from iris.kernel.wire.header import FRAME_OVERHEAD

HERE = "ws://127.0.0.1:0/iris"
LARGEST = MIB + FRAME_OVERHEAD
TOKEN = "0123456789abcdef" * 2


def port_of(url: str) -> int:
    return int(url.split(":")[2].partition("/")[0])


async def send(way: OutgoingConnection, data: bytes) -> None:
    while not way.send_nowait(data):
        await way.wait_writable()


@contextlib.contextmanager
def stranger(url: str, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=60, source_address=(source, 0)) as one:
        yield one


def upgrade(one: socket.socket, url: str, kind: str = PULL) -> WebSocketFraming:
    """Do what is due by a plain socket that blocks."""
    asking = ClientUpgrade(url, kind, LARGEST)
    one.sendall(asking.request)
    messages = None
    while messages is None:
        messages = asking.receive(one.recv(4096))
    return messages


def is_closed(one: socket.socket, within: float = 50) -> bool:
    """Return whether the other end closes a connection in time, whatever it says before."""
    deadline = time.monotonic() + within
    try:
        while (left := deadline - time.monotonic()) > 0:
            one.settimeout(left)
            if not one.recv(4096):
                return True
    except TimeoutError:
        pass
    except ConnectionResetError:
        return True
    return False
