"""Connections by ipc that this node opens: a Unix socket that has greeted, and been greeted, as nng does.

A thread of nng would wait for each, and others write what goes over it: nodes that start together on one machine, each
linked to each, spend most of their processor time on waking each other up.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Final

import trio

from iris.kernel.config import KIB
from iris.kernel.errors import NotSent
from iris.kernel.tcp import SMALL, exchange_greetings
from iris.kernel.transport import Refused

_HEADER: Final = struct.Struct(">BQ").pack
_MESSAGE: Final = 1
"""The type of everything that goes by ipc."""

_BUFFER: Final = 144 * KIB
"""Half of the bytes that the system takes, with its own: one full frame.  With the usual 208 KiB every frame of 256 KiB
went in two parts, for each of which both ends were woken; a tunnel took 11 % more processor time, with gateways on its
way 12 %.  Behind somebody who does not read wait 287 KB of frames of 16 KiB instead of 219 KB."""

_FULL: Final = 0.01
"""Seconds until it is tried again where too many wait to be accepted."""


def with_type_and_length(frame: bytes) -> tuple[bytes, ...]:
    """Return what goes on the wire for a frame: a 1, its length, eight bytes, big-endian, and itself."""
    size = len(frame)
    return (_HEADER(_MESSAGE, size) + frame,) if size <= SMALL else (_HEADER(_MESSAGE, size), frame)


async def open_ipc_connection(url: str) -> socket.socket:
    """Connect to ``ipc:///PATH``, and greet.

    How long that takes is for the caller to limit.  Cancelling leaves nothing behind.

    Returns:
        A socket that does not block, by which nothing but the greetings has gone.

    Raises:
        Refused: nobody listens there.
        NotSent: it cannot be connected to, or somebody else listens there.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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
