"""Gateway route: the connection to a node of another site, whose frames leave as messages to a gateway.

To the mesh it is a connection like any other.  Its address is ``site://SITE/NODE``; no transport knows such addresses.
A gateway reports a frame that it does not carry, or carries more slowly, by a code on the wire; the words for the codes
are here.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, final

import trio

from iris.cluster.directory import SitePath
from iris.cluster.routes.envelope import Envelope, begin_batch, end_batch
from iris.cluster.routes.relayed import RelayedObserver
from iris.kernel.buffer_pool import LARGE, give_back
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.link import Link
from iris.kernel.names import NodeId, is_node_id, is_site, realm_of_site
from iris.kernel.transport import ConnectionUser, OutgoingConnection
from iris.kernel.wire import carried_by, kinds

SCHEME: Final = "site://"

HOPS: Final = 16
"""Gateways that hand a frame on before it is dropped.  It ends loops in the moments in which routes change."""

AHEAD: Final = 1024 * 1024
"""Limit in bytes on what waits for the first gateway before more is handed over: it cannot be held back any more when
the gateway says that it is busy."""

_SMALL: Final = 4096
"""Limit in bytes up to which a frame is encoded by hand without a look whether the link is idle.  So are large ones
with one: a turn of the scheduler less.  Those between gather into batches."""

_LOOK: Final = 0.25

PAUSE: Final = 1.0
"""Seconds for which a connection pauses when a gateway says that it is busy, unless it says sooner that it is ready.
What says so may be lost."""


class Carrier(Protocol):
    """Carries frames to nodes that no transport reaches, through others."""

    async def dial(self, url: str, user: ConnectionUser) -> OutgoingConnection:
        """Return a connection to the node at ``url``; see ``Transport.dial``."""
        ...


class Carriers(NamedTuple):
    """The carriers of one node.  None: it reaches no such nodes."""

    gateways: Carrier | None = None
    """To nodes of other sites."""
    forwarder: Carrier | None = None
    """To nodes of this site that cannot be linked directly."""


NO_CARRIERS: Final = Carriers()


def site_url(site: str, node: NodeId) -> str:
    """Return the address of a node for nodes of other sites; one of another realm has its fingerprint before it."""
    return f"{SCHEME}{site}/{node}"


def is_site_url(url: str) -> bool:
    """Return whether an address is one of another site's."""
    return url.startswith(SCHEME)


def parse_site_url(url: str) -> tuple[str, NodeId]:
    """Return the site and the node of an address, perhaps a peer's; raise ConfigError if it is not of that form."""
    site, _, node = url.removeprefix(SCHEME).rpartition("/")
    if not is_site_url(url) or not is_site(site) or not is_node_id(node):
        raise ConfigError(f"{url!r} is not an address of a node at another site: {SCHEME}SITE/NODE")
    return site, NodeId(node)


def realm_of_url(url: str) -> str:
    """Return the fingerprint of the realm that a site in an address is of; empty for the own one, or any other URL."""
    return realm_of_site(url.removeprefix(SCHEME).rpartition("/")[0]) if is_site_url(url) else ""


def carrier_of(source_site: str) -> str | None:
    """Return whose limits on strangers count for a frame from a site: those of another realm, for each of these.

    Its nodes begin handshakes here as fast as its gateways bring them.  None: only the limits of all together.
    """
    realm_id = realm_of_site(source_site)
    return f"realm {realm_id}" if realm_id else None


class CopyPaths(Protocol):
    """The routes that lead to other sites, as a connection of this node uses them.  Asked with each frame."""

    def path(self, site: str) -> SitePath | None:
        """Return the best route to a site; None if there is none."""
        ...

    def link_to(self, neighbour: NodeId) -> Link | None:
        """Return the link to the first gateway of a route, if there still is one."""
        ...

    def is_peer(self, node: NodeId) -> bool:
        """Return whether a node is a peer of this one, and not given up."""
        ...


class GatewayPaths(CopyPaths, Protocol):
    """The same, and the owner of the connections that lead there."""

    def route_closed(self, route: GatewayRoute) -> None:
        """A connection has ended.  Called once."""
        ...


@final
class GatewayRoute(RelayedObserver):
    """A connection to one node of another site, over the route that was the best when it was made.

    Args:
        paths: the maker of this connection.
        user: see ``Transport.dial``.
    """

    def __init__(
        self,
        target: tuple[str, NodeId],
        source: tuple[str, NodeId],
        route: SitePath,
        paths: GatewayPaths,
        user: ConnectionUser,
    ) -> None:
        super().__init__(user)
        self._paths = paths
        self.target: Final = target
        self.path: Final = route
        self._envelope = Envelope(target[0], bytes.fromhex(target[1]), source[0], bytes.fromhex(source[1]))
        self._beginning = begin_batch(self._envelope, HOPS)
        self._paused_until = -math.inf
        self._resumed = trio.lowlevel.ParkingLot()

    def _link(self) -> Link | None:
        return self._paths.link_to(self.path.neighbour)

    def _ended(self) -> None:
        self._paths.route_closed(self)

    def __repr__(self) -> str:
        return f"<GatewayRoute to {self.target[1][:8]} at {self.target[0]} in {len(self.path.path)} hops>"

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        link = self.open_link()
        if self._is_paused():
            return False
        size = len(frame)
        alone = size <= _SMALL or (size >= LARGE and link.is_idle)
        if alone and link.send_alone(end_batch(self._beginning, frame), size):
            give_back(frame)
            return True  # nothing waits there
        if link.waiting_bytes > AHEAD:
            return False
        try:
            link.post_carrying(kinds.Carry(HOPS, *self._envelope, bytes(frame)), size, carried_by(size))
        except NotSent:
            return False
        give_back(frame)
        return True

    def _is_paused(self) -> bool:
        return self._paused_until > -math.inf and self._paused_until > trio.current_time()

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``."""
        link = self.open_link()
        if self._is_paused():
            with trio.move_on_at(self._paused_until):
                await self._resumed.park()
        elif link.waiting_bytes <= AHEAD:
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(_LOOK):  # this connection may be closed meanwhile
                await link.wait_drained(AHEAD // 2)
        self.open_link()

    def pause(self) -> None:
        """A gateway on the path has much waiting: send nothing until ``resume``, for ``PAUSE`` seconds at most."""
        self._paused_until = trio.current_time() + PAUSE

    def resume(self) -> None:
        """Resume sending."""
        self._paused_until = -math.inf
        self._resumed.unpark_all()

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""
        super().close()
        self._resumed.unpark_all()


GONE: Final = 1
"""Reason for which a frame was not carried: its site does not know the node, or not any more."""
NOT_EXPORTED: Final = 2
NO_ROUTE: Final = 3
BUSY: Final = 4
"""The frame was carried, and no more are to follow for now: much waits for the next link."""
READY: Final = 5
"""The link was busy, and is no more."""

REASONS: Final = MappingProxyType(
    {GONE: "its site does not know the node", NOT_EXPORTED: "not exported", NO_ROUTE: "no route"}
)
"""Texts of the reasons after which nothing is carried."""
