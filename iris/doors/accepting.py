"""Accepting connections, of which so many at a time may be those of strangers: of whom the door knows no token yet."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from iris.doors.processor import Processor
from iris.kernel.transport import keep_from_children

_logger: Final = logging.getLogger("iris")

UNAUTHENTICATED: Final = 256
"""Connections that are being greeted at a time.  Others wait until one of them is done, or the oldest has had its
time: who says who he is gets in, however many there are who do not, and however many do so at once."""

GRACE: Final = 1.0
"""Seconds that a stranger has in any case: it is ended after that if another one waits."""

MIN_SHARE: Final = 4
"""Connections that one client of a door may have in any case: else it has a quarter of all."""

_PAUSE: Final = 1.0
"""Seconds without accepting where the system has nothing left to accept with."""


async def accept(
    listener: socket.socket, door: str, unauthenticated: Processor, greet: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Accept connections until cancelled, which ends those that are being greeted.

    Children that are forked meanwhile have neither the listener nor the connections.

    Args:
        listener: TCP socket that does not block.
        door: name of the door in the log.
        unauthenticated: their share of the door's time: nobody is let in while they have used more.
        greet: identifies the client, and closes the connection if it is cancelled; what it raises is in the log, and
            costs that connection.
    """
    keep_from_children(listener)
    loop = asyncio.get_running_loop()
    greeting: dict[asyncio.Task[None], float] = {}
    done = asyncio.Event()

    async def welcome(accepted: socket.socket) -> None:
        try:
            await greet(accepted)
        except Exception:
            _logger.exception("the door for %s failed a connection", door, extra={"door": door.lower()})
            accepted.close()

    def end(task: asyncio.Task[None]) -> None:
        greeting.pop(task, None)
        done.set()

    async def wait_room() -> None:
        while len(greeting) >= UNAUTHENTICATED:
            oldest, since = next(iter(greeting.items()))
            left = since + GRACE - loop.time()
            if left <= 0:
                del greeting[oldest]
                oldest.cancel()
                return
            done.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await done.wait()

    is_exhausted = False
    try:
        while True:
            await wait_room()
            await unauthenticated.wait()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                if not is_exhausted:
                    is_exhausted = True
                    _logger.warning(
                        "the door for %s cannot accept a connection: %s", door, error, extra={"door": door.lower()}
                    )
                await asyncio.sleep(_PAUSE)
                continue
            is_exhausted = False
            with suppress(OSError):  # it is gone already
                # asyncio leaves it out where a socket does not name its protocol, as those of ``create_server`` do not.
                # What follows a first write would wait up to 40 ms for the client to confirm that.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.ensure_future(welcome(keep_from_children(accepted)))
            greeting[task] = loop.time()
            task.add_done_callback(end)
            await asyncio.sleep(0)  # it has begun, and closes what it was given
    finally:
        for task in greeting:
            task.cancel()
        if greeting:
            await asyncio.wait(list(greeting))
