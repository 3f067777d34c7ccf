"""The connections that others have opened to this node: whose each is, and how long a stranger may keep one.

A connection is a stranger's until a genuine frame comes by it: data of a session, or a response or last frame of a
handshake.  The first frame of one is not enough, for it may be a replay.  ``iris.security.admission`` says which
strangers have to go; a connection by which a genuine frame has come goes with its peer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, final

import trio

from iris.kernel.config import Config
from iris.kernel.ids import NodeId
from iris.kernel.transport import Transport
from iris.security.admission import Connections, address_key

_MAX_CONNECTIONS: Final = 8
"""Connections of one peer.  Two are in use while one replaces the other; a member that opens more, and stands still
in the middle of a frame on each, could make this node hold as many frames."""


@final
class Inbound:
    """The connections to one node.

    Attributes:
        strangers: those by which no genuine frame has come yet; mostly there are none.
        carried: the frame received last came inside of another: nothing follows from it for any connection.
    """

    def __init__(self, transport: Transport, config: Config, refusals: Counter[str]) -> None:
        self._connections: Connections[int] = Connections(config, refusals)
        self.strangers: Final = self._connections.waiting
        self.carried = False
        self._transport = transport
        self._refusals = refusals
        self._addresses: dict[int, str | None] = {}
        self._owners: dict[int, NodeId] = {}
        self._owned: dict[NodeId, dict[int, None]] = {}
        self._news = trio.Event()
        transport.observe(self)

    def __len__(self) -> int:
        return len(self._addresses)

    def address(self) -> str | None:
        """Return whose limits count for the frame received last; None if they are only those of all together."""
        return None if self.carried else self._addresses.get(self._transport.source())

    def genuine(self, node: NodeId) -> None:
        """The frame received last was genuine, and ``node`` sent it."""
        connection = self._transport.source()
        if self.carried or connection not in self._addresses or self._owners.get(connection) == node:
            return  # it is gone already, or known
        self._connections.authenticate(connection)
        self._disown(connection)
        self._owners[connection] = node
        owned = self._owned.setdefault(node, {})
        owned[connection] = None
        if len(owned) > _MAX_CONNECTIONS:
            self._refusals["too many connections of a member"] += 1
            self._transport.hang_up(next(iter(owned)))

    def refused(self) -> None:
        """The frame received last was not: if it came from a stranger, he is sent away."""
        connection = self._transport.source()
        if not self.carried and self._connections.refuse(connection):
            self._transport.hang_up(connection)

    def hang_up(self, node: NodeId) -> None:
        """Close the connections of a node that is given up.  It sees that, and begins anew if it is still there."""
        for connection in self._owned.get(node, ()):
            self._transport.hang_up(connection)

    async def run(self) -> None:
        """Send away who takes too long; run it in one task."""
        while True:
            # A connection that is opened meanwhile has a later deadline than those that are waited for.
            if self.strangers:
                await trio.sleep_until(self._connections.deadline)
            else:
                self._news = trio.Event()
                await self._news.wait()
            for connection in self._connections.expire(trio.current_time()):
                self._transport.hang_up(connection)

    # -- ConnectionObserver ---------------------------------------------------------------------------------

    def connection_opened(self, connection: int, address: str | None) -> None:
        """See ``ConnectionObserver.connection_opened``."""
        key = self._addresses[connection] = None if address is None else address_key(address)
        for loser in self._connections.open(connection, key, trio.current_time()):
            self._transport.hang_up(loser)
        self._news.set()

    def connection_closed(self, connection: int) -> None:
        """See ``ConnectionObserver.connection_closed``."""
        self._connections.close(connection)
        self._disown(connection)
        self._addresses.pop(connection, None)

    def connections_refused(self, count: int) -> None:
        """See ``ConnectionObserver.connections_refused``."""
        self._refusals["connections that came too fast"] += count

    def _disown(self, connection: int) -> None:
        node = self._owners.pop(connection, None)
        if node is not None:
            owned = self._owned[node]
            del owned[connection]
            if not owned:
                del self._owned[node]
