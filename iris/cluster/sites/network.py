"""Site network: what a node at a named site has before its mesh.  Directory, relay, routes and border.

A mesh asks them from its first frame on: how a node of another site is reached, what becomes of a frame that is
carried, and what a peer of another site may do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import trio

from iris.cluster.directory import Border, Hop, SiteDirectory, SitePath
from iris.cluster.mesh import PeerTable
from iris.cluster.routes import CopyRoute, GatewayRoute, parse_site_url
from iris.cluster.sites.relay import Relay
from iris.kernel.errors import NotSent
from iris.kernel.link import Link
from iris.kernel.names import NodeId
from iris.kernel.slots import Groups
from iris.kernel.transport import ConnectionUser


@final
class GatewayRoutes:
    """The connections of one node that lead through gateways; see ``Carrier``."""

    def __init__(self, directory: SiteDirectory, relay: Relay, peers: PeerTable) -> None:
        self._peers: Final = peers
        self._directory = directory
        self._relay = relay
        self._own: Final = (directory.own.site, directory.own.gateway)
        self._routes: dict[GatewayRoute, None] = {}
        self._at: Groups[str, GatewayRoute] = Groups()
        """Routes by site."""
        self._to: Groups[tuple[str, NodeId], GatewayRoute] = Groups()
        """Routes by target: a gateway reports the state of each, with small frames."""
        self.copies: Final = CopyRoute(self._own, self)
        """Route of events for several nodes of other sites."""

    def __repr__(self) -> str:
        return f"<GatewayRoutes: {len(self._routes)}>"

    def __len__(self) -> int:
        return len(self._routes)

    def __iter__(self) -> Iterator[GatewayRoute]:
        return iter(list(self._routes))

    def at(self, site: str) -> list[GatewayRoute]:
        """Return the routes to nodes of a site."""
        return [*self._at.of(site)]

    def to(self, site: str, node: NodeId) -> list[GatewayRoute]:
        """Return the routes to a node of a site: one, or two while one replaces the other."""
        return [*self._to.of((site, node))]

    async def dial(self, url: str, user: ConnectionUser) -> GatewayRoute:
        """See ``Transport.dial``."""
        site, node = parse_site_url(url)
        await trio.lowlevel.checkpoint()
        path = self.path(site)
        if path is None or self.link_to(path.neighbour) is None:
            raise NotSent(f"no gateway leads to site {site!r}")
        route = GatewayRoute((site, node), self._own, path, self, user)
        self._routes[route] = None
        self._to.add(route.target, route)
        self._at.add(site, route)
        return route

    # -- GatewayPaths ---------------------------------------------------------------------------------------

    def path(self, site: str) -> SitePath | None:
        """See ``GatewayPaths.path``."""
        return self._directory.best_route(site, salt=self._own[1])

    def link_to(self, neighbour: NodeId) -> Link | None:
        """See ``GatewayPaths.link_to``."""
        return self._relay.link_to(neighbour)

    def is_peer(self, node: NodeId) -> bool:
        """See ``CopyPaths.is_peer``."""
        return node in self._peers

    def route_closed(self, route: GatewayRoute) -> None:
        """See ``GatewayPaths.route_closed``."""
        self._routes.pop(route, None)
        self._to.remove(route.target, route)
        self._at.remove(route.target[0], route)


@final
class SiteNetwork:
    """The parts of one node that lead to other sites.

    Args:
        own: the node and its site.
        peers: the peers that its mesh will have.
    """

    def __init__(self, own: Hop, peers: PeerTable) -> None:
        self.directory: Final = SiteDirectory(own)
        self.relay: Final = Relay(own, peers)
        self.routes: Final = GatewayRoutes(self.directory, self.relay, peers)
        self.border: Final = Border()
        """Rules for what may cross the border of this site: nothing may, until a gateway has sent its lists."""

    def __repr__(self) -> str:
        return f"<SiteNetwork {self.directory!r}, {self.relay!r}>"
