"""Remote members: clusters at other sites by address, ``CLUSTER``, ``CLUSTER@SITE`` and ``REALM/CLUSTER``.

The directory of sites knows realms of other owners by their fingerprints.  Here they get the names that this node's
credential gives them; what it does not trust does not appear.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from iris.cluster.balancing import SiteOrder
from iris.cluster.directory import RemoteMember, SiteDirectory
from iris.cluster.membership import Member
from iris.cluster.mesh import Mesh
from iris.cluster.routes import site_url
from iris.kernel.names import NodeId, is_node_id, qualified, realm_of_site, split_address


@final
class RemoteMembers:
    """The members of clusters at other sites.

    Args:
        order: the order of sites.
    """

    def __init__(self, mesh: Mesh, directory: SiteDirectory, order: SiteOrder) -> None:
        self._mesh = mesh
        self._directory = directory
        self._order = order

    def __repr__(self) -> str:
        return f"<RemoteMembers of {len(self._directory.sites())} sites>"

    def clusters(self) -> Iterator[str]:
        """Yield the address of every cluster that another site exports."""
        yield from self._directory.clusters()
        for realm in (entry.realm for entry in self._mesh.identity.trusted):
            for name in filter(realm.may_use, self._directory.clusters(realm.id)):
                yield qualified(realm.alias, name)

    def has(self, address: str) -> bool:
        """Return whether another site exports a cluster, by look-ups only: it is asked for each request."""
        alias, slash, name = address.rpartition("/")
        if not slash:
            return address in self._directory.clusters()
        realm = self._mesh.identity.alias(alias)
        return realm is not None and name in self._directory.clusters(realm.id) and realm.may_use(name)

    def find(self, address: str) -> list[RemoteMember]:
        """Return the members that a cluster has at other sites, those that are asked first in front."""
        alias, name, site = split_address(address)
        realm_id = ""
        if alias:
            realm = self._mesh.identity.alias(alias)
            if realm is None or not realm.may_use(name):
                return []
            realm_id = realm.id
        wanted = qualified(realm_id, site)
        found = self._directory.members(name, realm_id)
        return sorted((member for member in found if not site or member.site == wanted), key=self.rank)

    def rank(self, member: RemoteMember) -> int:
        """Return a number that is lower for members that are asked earlier."""
        return self._order.rank(member.site, member.distance)

    def ids(self, address: str) -> list[NodeId]:
        """Return the ids of the members that a cluster has at other sites."""
        return [found.node for found in self.find(address)]

    def members(self, address: str) -> tuple[Member, ...]:
        """Return the members that a cluster has at other sites, those that are asked first in front."""
        found: list[Member] = []
        for member in self.find(address):
            peer = self._mesh.peers.get(member.node)
            found.append(
                Member(
                    node=member.node,
                    speaks_for="" if peer is None else peer.identity.caller,
                    site=self.name_of(member.site),
                    addresses=(site_url(member.site, member.node),),
                    status="alive",
                )
            )
        return tuple(found)

    def name_of(self, site: str) -> str:
        """Return what a site is called here: one of another realm has that one's alias before it."""
        realm_id = realm_of_site(site)
        realm = self._mesh.identity.other_realm(realm_id) if realm_id else None
        return site if realm is None else qualified(realm.alias, site.partition("/")[2])

    def site_named(self, name: str) -> str:
        """Return the site that is called so here, as the directory names it."""
        alias, slash, site = name.rpartition("/")
        realm = self._mesh.identity.alias(alias) if slash and not is_node_id(alias) else None
        return name if realm is None else qualified(realm.id, site)
