"""Gateways of many sites as machines, linked without any network: messages go back and forth until all is quiet."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

from iris.cluster.directory.directory import SiteDirectory
from iris.cluster.directory.messages import CLUSTER, COMPANION, Export, Hop
from iris.federation.advertising import Advertiser
from iris.kernel import wire
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from tests.support.messages import decoded


def export_just(advertising: Advertiser, entries: Iterable[Export]) -> None:
    """Have a gateway export these in place of what it exports."""
    wanted, exported = {*entries}, advertising.exported.entries
    advertising.export(wanted - exported, exported - wanted)


class Site:
    """One gateway, as its machines."""

    def __init__(self, name: str, gateway: NodeId, *, transit: bool) -> None:
        self.hop = Hop(name, gateway)
        self.directory = SiteDirectory(self.hop)
        self.advertising = Advertiser(self.directory, transit=transit)
        self.members: dict[str, dict[NodeId, bytes]] = {}

    def export(self) -> None:
        """Say what there is in this site."""
        near = filter(self.directory.is_local, self.directory.neighbours)
        companions = {Export(COMPANION, "", node) for node in near}
        members = {
            Export(CLUSTER, name, node, proof) for name, nodes in self.members.items() for node, proof in nodes.items()
        }
        export_just(self.advertising, members | companions)


class World:
    """Sites, links, and the messages in flight.

    Attributes:
        messages: how many were delivered.
        bytes: what they weighed, encoded.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.sites: dict[NodeId, Site] = {}
        self.messages = self.bytes = 0
        self.now = 0.0
        self._links: set[tuple[NodeId, NodeId]] = set()
        self._queue: deque[tuple[NodeId, NodeId, Message]] = deque()

    def add(self, name: str, *, transit: bool = True, clusters: Iterable[str] = ()) -> Site:
        """Begin a gateway of a site that has one member in each of some clusters."""
        site = Site(name, self.node(), transit=transit)
        site.members = {cluster: {self.node(): b""} for cluster in clusters}
        self.sites[site.hop.gateway] = site
        return site

    def node(self) -> NodeId:
        """Return a new node id."""
        return NodeId(self.random.randbytes(16).hex())

    def link(self, one: Site, other: Site) -> None:
        """Link two gateways, of one site or of two."""
        for near, far in ((one, other), (other, one)):
            self._links.add((near.hop.gateway, far.hop.gateway))
            local = near.hop.site == far.hop.site
            near.directory.add(far.hop.gateway, self.now, local=local)
            near.advertising.add(far.hop.gateway, far.hop.site)

    def cut(self, one: Site, other: Site) -> None:
        """Cut a link; messages in flight are lost."""
        for near, far in ((one, other), (other, one)):
            self._links.discard((near.hop.gateway, far.hop.gateway))
            near.directory.forget(far.hop.gateway)
            near.advertising.remove(far.hop.gateway)
        self._queue = deque(item for item in self._queue if (item[0], item[1]) in self._links)

    def remove(self, site: Site) -> None:
        """End a gateway."""
        for other in list(self.sites.values()):
            if (site.hop.gateway, other.hop.gateway) in self._links:
                self.cut(site, other)
        del self.sites[site.hop.gateway]

    def settle(self, rounds: int = 200) -> int:
        """Let all gateways exchange announcements until none is left; return how many rounds that took."""
        for number in range(rounds):
            self.now += 0.05
            for site in self.sites.values():
                site.export()
                for neighbour in site.advertising.neighbours:
                    for message in site.advertising.messages(neighbour):
                        self._queue.append((site.hop.gateway, neighbour, message))
            if not self._queue:
                return number
            self._deliver()
        raise AssertionError(f"still talking after {rounds} rounds")

    def _deliver(self) -> None:
        while self._queue:
            source, target, message = self._queue.popleft()
            site = self.sites[target]
            encoded = wire.encode_batch([message])
            self.messages += 1
            self.bytes += len(encoded)
            (arrived,) = decoded(encoded)
            if isinstance(arrived, kinds.Route):
                site.directory.receive_route_untrusted(source, arrived, self.now)
            else:
                question = site.directory.receive_exports_untrusted(source, arrived, self.now)
                if question is not None:
                    self.sites[source].advertising.repeat(target, Hop(question.site, wire.node_of(question.gateway)))

    def path(self, start: Site, site: str) -> list[str] | None:
        """Follow what each gateway would do with a frame; return the sites that it passes, or None if it is lost."""
        passed = [start.hop.site]
        at = start
        for _ in range(64):
            if at.hop.site == site:
                return passed
            way = at.directory.best_route(site)
            if way is None:
                return None
            at = self.sites[way.neighbour]
            passed.append(at.hop.site)
        raise AssertionError(f"a frame for {site} goes round: {passed[:12]}")
