"""Accepting connections, of which so many at a time may be those of strangers: of whom the door knows no token yet."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

_log: Final = logging.getLogger("iris")

STRANGERS: Final = 256
"""Connections that are being greeted at a time.  One more ends the oldest of them: who says at once who he is gets in,
however many there are who do not."""

_PAUSE: Final = 1.0
"""Seconds without accepting where the system has nothing left to accept with."""


async def accept(listener: socket.socket, door: str, greet: Callable[[socket.socket], Awaitable[None]]) -> None:
    """Accept connections until cancelled, which ends those that are being greeted.

    Args:
        listener: does not block.
        door: what it is called in the log.
        greet: finds out who has come, and closes the connection if it is cancelled; what it raises is in the log, and
            costs that connection.
    """
    loop = asyncio.get_running_loop()
    greeting: dict[asyncio.Task[None], None] = {}

    async def welcome(accepted: socket.socket) -> None:
        try:
            await greet(accepted)
        except Exception:  # noqa: BLE001 -- it is told in full
            _log.exception("the door for %s failed a connection", door, extra={"door": door.lower()})
            accepted.close()

    try:
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning(
                    "the door for %s cannot accept a connection: %s", door, error, extra={"door": door.lower()}
                )
                await asyncio.sleep(_PAUSE)
                continue
            task = asyncio.ensure_future(welcome(accepted))
            greeting[task] = None
            task.add_done_callback(lambda ended: greeting.pop(ended, None))
            await asyncio.sleep(0)  # it has begun, and closes what it was given
            if len(greeting) > STRANGERS:
                oldest = next(iter(greeting))
                del greeting[oldest]
                oldest.cancel()
    finally:
        for task in greeting:
            task.cancel()
        if greeting:
            await asyncio.wait(list(greeting))
