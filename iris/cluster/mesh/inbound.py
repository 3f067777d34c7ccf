"""Inbound connections: the peer of each, and the time that an unauthenticated one may keep it.

A connection is a stranger's until a genuine frame comes by it: data of a session, or a response or last frame of a
handshake.  The first frame of one is not enough, for it may be a replay.  ``iris.security.channel.admission`` says
which strangers have to go; a connection by which a genuine frame has come goes with its peer.

The network does not tell how far a frame has come.  A member could therefore keep one connection in use and stand still
inside of a frame on others.  So of several connections of one peer only those stay by which whole frames come: after
``Config.frame_timeout`` without one, all are closed but that by which the last one came.  An honest peer loses nothing
by it, for it sends by one.  While each peer has one connection, nothing is noted and nothing is to be done.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol, final

import trio

from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.slots import address_key
from iris.kernel.transport import Transport
from iris.security.channel import UnauthenticatedConnections

_MAX_CONNECTIONS: Final = 8
"""Connections of one peer.  Two are in use while one replaces the other; a member that opens more, and sends a large
frame slowly on each, could make this node hold as many."""

_GONE: Final = "gone"
"""Stands for the address of a connection that has ended: a peer that sends something and hangs up is not to be taken
for one that the operating system vouches for."""


class HandshakePace(Protocol):
    """The part that knows how fast handshakes are."""

    def patience(self) -> float:
        """Return how many seconds a handshake may take now.  Asked for each one."""
        ...


@final
class InboundConnections:
    """The inbound connections of one node.

    Args:
        pace: how long a handshake may take now; None: ``Config.handshake_timeout``.

    Attributes:
        unauthenticated: connections by which no genuine frame has come yet; mostly there are none.
        contested: the peers that have several; mostly there are none.  While there are strangers or rivals, ``genuine``
            has to be called for each frame of a session.
        carried: the frame received last came inside of another: nothing follows from it for any connection.
        carrier: whose limits count for a frame that was carried; None if they are only those of all together.
    """

    def __init__(
        self, transport: Transport, config: Config, refusals: Counter[str], pace: HandshakePace | None = None
    ) -> None:
        self._connections: UnauthenticatedConnections[int] = UnauthenticatedConnections(config, refusals)
        self.unauthenticated: Final = self._connections.waiting
        self.carried = False
        self.carrier: str | None = None
        self._transport = transport
        self._refusals = refusals
        self._addresses: dict[int, str | None] = {}
        self._owners: dict[int, NodeId] = {}
        # of each peer, when a whole frame last came by each, the latest last; the time of one alone does not matter
        self._owned: dict[NodeId, dict[int, float]] = {}
        self.contested: Final[dict[NodeId, None]] = {}
        self._frame_timeout = config.frame_timeout
        self._handshake_timeout = config.handshake_timeout
        self._pace = pace
        self._news = trio.Event()
        transport.observe(self)

    def __len__(self) -> int:
        return len(self._addresses)

    def begin_carried(self, carrier: str | None) -> tuple[bool, str | None]:
        """A frame is handled that came inside of another, until ``end_carried`` is called with what is returned."""
        outer = self.carried, self.carrier
        self.carried, self.carrier = True, carrier
        return outer

    def end_carried(self, outer: tuple[bool, str | None]) -> None:
        """The frame was handled."""
        self.carried, self.carrier = outer

    def address(self) -> str | None:
        """Return whose limits count for the frame received last; None if they are only those of all together.

        All who were gone before their frame was read share the limits of one address.
        """
        return self.carrier if self.carried else self._addresses.get(self._transport.source(), _GONE)

    def genuine(self, node: NodeId) -> None:
        """The frame received last was genuine, and ``node`` sent it."""
        connection = self._transport.source()
        if self.carried or connection not in self._addresses:
            return  # it is gone already
        if self._owners.get(connection) == node:
            if node in self.contested:
                owned = self._owned[node]
                del owned[connection]
                owned[connection] = trio.current_time()
            return
        # From here on no limit of strangers holds for the connection: it ends with its peer, or as a rival.
        self._connections.authenticate(connection)
        self._disown(connection)
        self._owners[connection] = node
        owned = self._owned.setdefault(node, {})
        now = owned[connection] = trio.current_time()
        if len(owned) > 1 and node not in self.contested:
            self.contested[node] = None
            for other in owned:
                owned[other] = now
            self._news.set()
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
            self._news = trio.Event()
            with trio.move_on_at(self.deadline) as waiting:
                await self._news.wait()
            if waiting.cancelled_caught:
                self.expire(trio.current_time())

    @property
    def deadline(self) -> float:
        """The time at which to call ``expire``; infinity if there are neither strangers nor rivals."""
        silent = [next(iter(self._owned[node].values())) + self._frame_timeout for node in self.contested]
        return min([self._connections.deadline + self._grace, *silent])

    @property
    def _grace(self) -> float:
        """Seconds that strangers have in addition, since what they have sent is read late."""
        return 0.0 if self._pace is None else self._pace.patience() - self._handshake_timeout

    def expire(self, now: float) -> None:
        """Send away strangers that take too long, and connections of rivals by which nothing whole comes."""
        for connection in self._connections.expire(now - self._grace):
            self._transport.hang_up(connection)
        for node in list(self.contested):
            *others, _ = self._owned[node].items()
            for connection, received_at in others:
                if now - received_at < self._frame_timeout:
                    break
                self._refusals["no whole frame of a member in time"] += 1
                self._disown(connection)
                self._transport.hang_up(connection)

    # -- ConnectionObserver ---------------------------------------------------------------------------------

    def connection_opened(self, connection: int, address: str | None) -> None:
        """See ``ConnectionObserver.connection_opened``."""
        key = self._addresses[connection] = None if address is None else address_key(address)
        if not self.unauthenticated:
            self._news.set()  # of those that are waited for, the next deadline is not later
        for loser in self._connections.open(connection, key, trio.current_time()):
            self._transport.hang_up(loser)

    def connection_closed(self, connection: int) -> None:
        """See ``ConnectionObserver.connection_closed``."""
        self._connections.close(connection)
        self._disown(connection)
        self._addresses.pop(connection, None)

    def connections_refused(self, count: int) -> None:
        """See ``ConnectionObserver.connections_refused``."""
        self._refusals["connections turned away unseen"] += count

    def _disown(self, connection: int) -> None:
        node = self._owners.pop(connection, None)
        if node is not None:
            owned = self._owned[node]
            del owned[connection]
            if len(owned) < 2:
                self.contested.pop(node, None)
            if not owned:
                del self._owned[node]
