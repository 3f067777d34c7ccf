"""Connections by TCP on their way from the reception, which has a thread of its own, to the task that reads them."""

from __future__ import annotations

import errno
import itertools
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, final

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.reception import Reception
from iris.kernel.streams import Streams

_FIRST: Final = 2**32
"""Number of the first connection; nng numbers its own with 31 bits."""

_UNTOLD: Final = 4096
"""Connections that the trio thread may not have seen, because it was busy for long, when one more is let in."""


@final
class Arrivals:
    """Where a node listens by TCP, and who has come.

    Args:
        config: for the limits on strangers.
        streams: what reads from the connections.
        news: called, on the thread of the reception, when ``begin`` has something to do or ``refused`` has grown.
    """

    def __init__(self, config: Config, streams: Streams, news: Callable[[], None]) -> None:
        self._config = config
        self._streams = streams
        self._news = news
        self._reception: Reception | None = None  # made on first need: it has descriptors and a thread
        self._numbers = itertools.count(_FIRST)
        self._arrived: dict[int, tuple[socket.socket, str]] = {}
        """Connections that the trio thread has not seen yet, and their hosts; whoever pops one, has it."""
        self._order: deque[int] = deque()
        """Their numbers, in the order in which they came; also of those that have lost their place again."""
        self._evicted: deque[int] = deque()
        """Those that lost their place just when the trio thread saw them."""
        self._unwatched = 0
        """Connections that the system had no room to watch."""

    def __len__(self) -> int:
        return len(self._order)

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
        if self._reception is None:
            self._reception = Reception(self._config, self._take, self._turn_away, self._news)
        try:
            bound = self._reception.listen(host, int(port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "the address is in use by another program" if taken else str(error.strerror or error).lower()
            raise ConfigError(f"cannot listen at {url}: {reason}") from None
        except ValueError:
            raise ConfigError(f"cannot listen at {url}: that is not the name of a host") from None
        return f"tcp://{host}:{bound}"

    def begin(self) -> list[tuple[int, str]]:
        """Have those that have come read, and return their numbers and hosts.  Called in the trio thread."""
        begun: list[tuple[int, str]] = []
        while self._order:
            number = self._order.popleft()
            arrived = self._arrived.pop(number, None)
            if arrived is not None and self._reception is not None:  # else it has lost its place
                connection, host = arrived
                self._reception.seen(number)
                try:
                    self._streams.add(number, connection)
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

    def _take(self, connection: socket.socket, host: str) -> int | None:
        if len(self._arrived) > _UNTOLD:
            return None
        number = next(self._numbers)
        self._arrived[number] = (connection, host)
        self._order.append(number)
        self._news()
        return number

    def _turn_away(self, number: int) -> None:
        arrived = self._arrived.pop(number, None)
        if arrived is not None:
            arrived[0].close()
        else:
            self._evicted.append(number)
            self._news()
