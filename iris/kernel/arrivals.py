"""Connections by TCP and WebSocket on their way from the reception, with its thread, to the task that uses them."""

from __future__ import annotations

import errno
import itertools
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from iris.kernel.awaited import AwaitedTokens
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.greetings import Greeting, NngGreeting
from iris.kernel.reception import Reception
from iris.kernel.streams import Framing, Streams

if TYPE_CHECKING:
    from iris.kernel.web_door import WebDoor

_FIRST: Final = 2**32
"""Number of the first connection; nng numbers its own with 31 bits."""

_UNTOLD: Final = 4096
"""Connections that the trio thread may not have seen, because it was busy for long, when one more is let in."""


@final
class Arrivals:
    """Where a node listens by TCP and WebSocket, and who has come.

    Args:
        config: for the limits on strangers.
        limit: bytes of the largest frame.
        streams: what reads from the connections.
        news: called, on the thread of the reception, when ``begin`` has something to do or ``refused`` has grown.
    """

    def __init__(self, config: Config, limit: int, streams: Streams, news: Callable[[], None]) -> None:
        self._config = config
        self._limit = limit
        self._streams = streams
        self._news = news
        self._reception: Reception | None = None  # made on first need: it has descriptors and a thread
        self._numbers = itertools.count(_FIRST)
        self._tokens = AwaitedTokens()
        self._doors: dict[tuple[str, int], WebDoor] = {}
        self._arrived: dict[int, tuple[socket.socket, str, Greeting]] = {}
        """Connections that the trio thread has not seen yet, and their hosts; whoever pops one, has it."""
        self.order: Final[deque[int]] = deque()
        """Their numbers, in the order in which they came; also of those that have lost their place again.

        Empty when ``begin`` has nothing to do: that is looked at for every frame."""
        self._evicted: deque[int] = deque()
        """Those that lost their place just when the trio thread saw them."""
        self._unwatched = 0
        """Connections that the system had no room to watch."""

    @property
    def refused(self) -> int:
        """Connections that never got here."""
        return self._unwatched + (0 if self._reception is None else self._reception.refused)

    def listen(self, url: str) -> str:
        """Take connections to ``tcp://HOST:PORT`` from now on; return the URL with the port really bound.

        Raises:
            ConfigError: it cannot be listened at.
        """
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        if not port.isdigit():
            raise ConfigError(f"cannot listen at {url}: a tcp address ends with its port")
        return f"tcp://{host}:{self._listen(url, host, int(port), NngGreeting)}"

    def listen_web(self, url: str) -> str:
        """Take connections to ``ws://HOST:PORT/PATH`` from now on; see ``listen``.  Several paths may have one port."""
        from iris.kernel.web import path_of, split_url
        from iris.kernel.web_door import WebDoor

        path = path_of(split_url(url).resource_name)
        authority, slash, rest = url.removeprefix("ws://").partition("/")
        host, _, port = authority.rpartition(":")
        door = self._doors.get((host, int(port)))
        if door is not None and path in door.paths:
            raise ConfigError(f"cannot listen at {url}: the address is in use")
        if door is None:
            door = WebDoor(self._limit, self._tokens)
            door.paths.add(path)  # before anybody can come
            port = str(self._listen(url, host, int(port), door.greet))
            self._doors[host, int(port)] = door
        door.paths.add(path)
        return f"ws://{host}:{port}{slash}{rest}"

    def _listen(self, url: str, host: str, port: int, greet: Callable[[], Greeting]) -> int:
        if self._reception is None:
            self._reception = Reception(self._config, self._take, self._turn_away, self._news)
        try:
            return self._reception.listen(host, port, greet)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "the address is in use by another program" if taken else str(error.strerror or error).lower()
            raise ConfigError(f"cannot listen at {url}: {reason}") from None
        except ValueError:
            raise ConfigError(f"cannot listen at {url}: that is not the name of a host") from None

    async def wait_reverse(self, token: str) -> tuple[socket.socket, Framing]:
        """Wait for whoever comes with ``token`` first; return the connection, which is to send by.

        Cancelling leaves nothing behind.

        Raises:
            NotSent: nobody can come, or the token is in use.
        """
        if not self._doors:
            raise NotSent("a node that can only dial out is reached from a node that listens at a ws:// address")
        return await self._tokens.wait(token)

    def next_number(self) -> int:
        """Return a number for another connection."""
        return next(self._numbers)

    def begin(self) -> list[tuple[int, str]]:
        """Have those that have come read, and return their numbers and hosts.  Called in the trio thread."""
        begun: list[tuple[int, str]] = []
        while self.order:
            number = self.order.popleft()
            arrived = self._arrived.pop(number, None)
            if arrived is not None and self._reception is not None:  # else it has lost its place
                connection, host, greeting = arrived
                self._reception.seen(number)
                if greeting.awaited is not None:
                    assert greeting.framing is not None
                    greeting.awaited.hand_over(connection, greeting.framing)
                    continue
                try:
                    self._streams.add(number, connection, greeting.framing)
                except OSError:
                    self._unwatched += 1
                    connection.close()
                else:
                    begun.append((number, host))
        return begun

    def evict(self) -> None:
        """Hang up on those that ``begin`` has returned, perhaps just now, and that have lost their place meanwhile."""
        while self._evicted:
            self._streams.hang_up(self._evicted.popleft())

    def close(self) -> None:
        """Stop listening, and close what has come.  Blocks for milliseconds; may be called twice."""
        if self._reception is not None:
            self._reception.close()
        while self._arrived:
            self._arrived.popitem()[1][0].close()

    # -- on the thread of the reception ---------------------------------------------------------------------

    def _take(self, connection: socket.socket, host: str, greeting: Greeting) -> int | None:
        if len(self._arrived) > _UNTOLD:
            return None
        number = next(self._numbers)
        self._arrived[number] = (connection, host, greeting)
        self.order.append(number)
        self._news()
        return number

    def _turn_away(self, number: int) -> None:
        arrived = self._arrived.pop(number, None)
        if arrived is not None:
            connection, _, greeting = arrived
            connection.close()
            if greeting.awaited is not None:
                greeting.awaited.is_claimed = False
        else:
            self._evicted.append(number)
            self._news()
