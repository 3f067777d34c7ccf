"""Path-vector directory: which sites there are, which gateway leads to them, and what they export.  Sans-IO.

Every node of a site has one.  Its neighbours are the gateways of its own site; those of a gateway are also the
gateways of other sites that it is linked to.  A route is a path vector, as in BGP (RFC 4271): a gateway that would be
on a path twice does not take it, so rings and meshes of sites need no tree.

Rules of this file:

- What neighbours advertise is kept for each of them (``iris.cluster.directory.neighbour_table``).  Of what an origin
  exports, the neighbour with the best route to that origin is believed.  One that lies about an origin can hide it from
  those who are no nearer to it otherwise, for as long as the liar is there, and no longer.
- Several gateways of one site name each other as companions.  An origin that calls itself by the name of a known site
  and is no companion of it is not believed as long as that one can be reached.
- What a neighbour advertises beyond its share of entries or of messages is an error of that neighbour alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView
from functools import partial
from typing import Final, NamedTuple, final

from iris.cluster.directory.export_index import ExportIndex
from iris.cluster.directory.exports import ExportTable
from iris.cluster.directory.messages import CLUSTER, TOPIC, Export, Hop, exports_untrusted, route_untrusted, wanted
from iris.cluster.directory.neighbour_table import MAX_ORIGINS, MAX_WEIGHT, UPDATES, NeighbourTable, Owner, StaleUpdate
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId, realm_of_site, realm_of_topic
from iris.kernel.wire import kinds

FORMER: Final = 1024
"""Sites that are remembered after the last route to them has ended."""


class SitePath(NamedTuple):
    """A route to a site: the next hop for frames, and the gateways that they pass."""

    neighbour: NodeId
    path: tuple[Hop, ...]


class RemoteMember(NamedTuple):
    """A member of a cluster at another site."""

    site: str
    node: NodeId
    proof: bytes
    distance: int
    """Gateways on the path."""


class RemoteSubscriber(NamedTuple):
    """A node of another site that wants events."""

    site: str
    node: NodeId
    pattern: str


@final
class RemoteSubscriptions:
    """Changes of who at other sites wants events: there may be very many subscribers, and each change is one.

    Attributes:
        withdrawn: nodes that subscribe to nothing any more, as far as their sites have reported; whoever has dealt with
            one removes it.
    """

    def __init__(self) -> None:
        self.withdrawn: Final[set[NodeId]] = set()
        self._patterns: Counter[NodeId] = Counter()
        """Number of patterns to which each node subscribes."""
        self._changed = False
        self._changes: dict[RemoteSubscriber, bool] = {}

    def __repr__(self) -> str:
        return f"<RemoteSubscriptions of {len(self._patterns)} nodes>"

    def note(self, found: RemoteSubscriber, *, wants: bool) -> None:
        """A node begins to want events of a pattern, or ceases to."""
        self._changed = True
        if self._changes.get(found, wants) != wants:
            del self._changes[found]  # as it was
        else:
            self._changes[found] = wants
        self._patterns[found.node] += 1 if wants else -1
        if self._patterns[found.node]:
            self.withdrawn.discard(found.node)
        else:
            del self._patterns[found.node]
            self.withdrawn.add(found.node)

    def pop_changes(self) -> dict[RemoteSubscriber, bool]:
        """Return who wants events that did not at the last call (True), and the other way round."""
        changes, self._changes = self._changes, {}
        return changes

    def pop_changed(self) -> bool:
        """Return whether there were changes since the last call."""
        changed, self._changed = self._changed, False
        return changed


class TooManyChanges(RemoteProtocolError):
    """A neighbour sends more changes of the directory than anybody honest would."""


@final
class SiteDirectory:
    """The path-vector directory of one node.

    Args:
        own: this node, and the site it is in.
        max_origins: gateways of all sites together that one neighbour may advertise.
        max_weight: bytes of memory that the exports which one neighbour advertises may take.
    """

    def __init__(self, own: Hop, *, max_origins: int = MAX_ORIGINS, max_weight: int = MAX_WEIGHT) -> None:
        self.own: Final = own
        self.version = 0
        """Number that grows with each change, so that what was derived can be checked."""
        self.changed: set[Hop] = set()
        """The origins that have changed since somebody emptied this."""
        self.subscriptions: Final = RemoteSubscriptions()
        """Changes of who wants events of this realm."""
        self._wanting: dict[RemoteSubscriber, int] = {}
        """Nodes that want them, and the number of gateways of its site that say so: counted with each change, since
        there may be 65,536 exports of each gateway."""
        self._permits: Callable[[str, Export], bool] = lambda _, __: True
        self._reporter = partial(NeighbourTable, max_origins=max_origins, max_weight=max_weight)
        self._neighbours: dict[NodeId, NeighbourTable] = {}
        self._owners: dict[str, Owner] = {}
        self._contents: dict[Hop, ExportTable] = {}
        """Exports that are believed, with versions of our own: no neighbour can get ahead of later reports."""
        self._sources: dict[Hop, NodeId] = {}
        """The neighbour that is believed, by origin."""
        self._since: dict[Hop, float] = {}
        self._present: dict[str, dict[NodeId, Hop]] = {}
        """The origins of each site by their gateways, in the order in which they became known."""
        self._accepted: dict[str, dict[Hop, None]] = {}
        """Origins of each site that speak for it."""
        self._former: dict[str, None] = {}
        """Sites that could be reached and cannot any more, the one that was lost last at the end."""
        self._index: Final = ExportIndex()
        """Exports of the origins that speak for their sites."""
        self._routes: dict[str, dict[str, SitePath | None]] = {}
        """The best route to each site by salt, as long as no gateway of that site changes."""
        self._settled: dict[str, float] = {}
        """Time at which the gateways of each site were all known, as long as none changes."""
        self._rerouted: set[str] = set()
        self._relisted: set[NodeId] = set()
        """Sites with other routes, and nodes that are members of something else, since ``pop_changes``."""

    def __repr__(self) -> str:
        return f"<SiteDirectory of {self.own.site!r}: {len(self._accepted)} sites, {len(self._neighbours)} neighbours>"

    def permit(self, permits: Callable[[str, Export], bool]) -> None:
        """Accept only those exports of a site that are permitted; the rest is dropped as if never advertised."""
        self._permits = permits

    # -- neighbours -----------------------------------------------------------------------------------------

    def add(self, neighbour: NodeId, now: float, *, local: bool, owner: str = "") -> None:
        """Listen to a neighbour from now on.  A local one is a gateway of this very site.

        Args:
            neighbour: the id of the neighbour.
            now: this moment.
            local: see above.
            owner: names who vouches for it; those of one owner have ``SHARES`` together.  Empty: nobody else has it.
        """
        if neighbour not in self._neighbours:
            shared = self._owners.setdefault(owner, Owner()) if owner else Owner()
            self._neighbours[neighbour] = self._reporter(now, local=local, owner=shared)

    def forget(self, neighbour: NodeId) -> None:
        """A neighbour cannot be reached: nothing leads through it any more."""
        known = self._neighbours.pop(neighbour, None)
        if known is not None:
            known.forget()
            self._owners = {name: owner for name, owner in self._owners.items() if owner.neighbours}
        for origin in () if known is None else known.exports:
            self._follow(origin)

    @property
    def neighbours(self) -> tuple[NodeId, ...]:
        """The neighbours whose advertisements are accepted."""
        return tuple(self._neighbours)

    def questions(self) -> Iterator[tuple[NodeId, kinds.ExportsWanted]]:
        """Yield what to ask which neighbour after more of other realms is permitted: it was passed over before."""
        for neighbour, known in self._neighbours.items():
            for origin in known.exports:
                if realm_of_site(origin.site):
                    yield neighbour, wanted(origin)

    def is_local(self, neighbour: NodeId) -> bool:
        """Return whether a neighbour is a gateway of this site."""
        known = self._neighbours.get(neighbour)
        return known is not None and known.local

    # -- advertisements of neighbours -----------------------------------------------------------------------

    def receive_route_untrusted(self, neighbour: NodeId, message: kinds.Route, now: float) -> None:
        """Receive a route.

        Raises:
            RemoteProtocolError: malformed, or the neighbour advertises what it cannot know; nothing has changed.
            TooManyChanges: too many messages.
        """
        known = self._known(neighbour, now)
        origin, path = route_untrusted(message)
        if path and (path[0].gateway != neighbour or path[-1] != origin):
            raise RemoteProtocolError("a path begins with who tells of it and ends with its origin")
        if path and known.local != (path[0].site == self.own.site):
            raise RemoteProtocolError(f"a gateway of site {path[0].site!r} is none of {self.own.site!r}")
        looped = not _is_straight(path) or any(
            hop.site == self.own.site or hop.gateway == self.own.gateway for hop in path[known.local :]
        )
        if not path or looped:
            if known.withdraw(origin):
                self._follow(origin)
        elif known.route(origin, path):
            self._since.setdefault(origin, now)
            self._contents.setdefault(origin, ExportTable(origin))
            self._present.setdefault(origin.site, {})[origin.gateway] = origin
            self._follow(origin)

    def receive_exports_untrusted(
        self, neighbour: NodeId, message: kinds.Exports, now: float
    ) -> kinds.ExportsWanted | None:
        """Receive a change of exports; return what to ask the neighbour if it does not fit to what is known.

        Raises:
            RemoteProtocolError: malformed, or beyond the neighbour's share: its route to the origin is forgotten then.
            TooManyChanges: too many messages.
        """
        known = self._known(neighbour, now)
        received = exports_untrusted(message)
        origin = received.origin
        if origin not in known.exports:
            return None  # its route was not taken, or the message crossed with a withdrawal
        contents = self._contents[origin]
        try:
            change = known.receive_exports(received, partial(self._permits, origin.site), contents.same)
        except StaleUpdate:
            return None if received.more else wanted(origin)
        except RemoteProtocolError:
            self._follow(origin)
            raise
        if change is None:
            return None
        if self._sources.get(origin) != neighbour:
            self._believe(origin)
        elif any(change):
            self._touch(origin)
            self._count(origin, *contents.change(self.version, *change))
        self._settle(origin)
        return None

    def _known(self, neighbour: NodeId, now: float) -> NeighbourTable:
        known = self._neighbours.get(neighbour)
        if known is None:
            raise RemoteProtocolError("this node is not asked about sites")
        if not known.tokens.spend(now):
            raise TooManyChanges(f"more than {UPDATES} messages about sites at once")
        return known

    def _touch(self, origin: Hop) -> None:
        self.version += 1
        self.changed.add(origin)

    # -- whom to believe ------------------------------------------------------------------------------------

    def _follow(self, origin: Hop) -> None:
        """The routes to an origin have changed."""
        self._touch(origin)
        self._rerouted.add(origin.site)
        self._believe(origin)
        self._settle(origin)

    def _believe(self, origin: Hop) -> None:
        """Choose whom to believe about an origin: of those who have sent its exports, the one with the best route.

        While none has sent them, what was known stays: routes come before exports.
        """
        routes = [
            route for route in self.routes_to(origin) if self._neighbours[route.neighbour].exports[origin].version
        ]
        best = min(routes, key=_cost, default=None)
        if best is None:
            self._sources.pop(origin, None)
        elif self._sources.get(origin) != best.neighbour:
            self._sources[origin] = best.neighbour
            contents, entries = self._contents[origin], self._neighbours[best.neighbour].exports[origin].entries
            if contents.entries != entries or not contents.version:
                self._touch(origin)
                self._count(origin, *contents.replace(self.version, entries))

    def _settle(self, origin: Hop) -> None:
        """Work out again which gateways speak for a site, after one of them has changed.

        A gateway that speaks for a site does so for as long as it can be reached.  So the companions of one gateway are
        looked at when it changes and when it is accepted, and no others.
        """
        site = origin.site
        self._routes.pop(site, None)
        self._settled.pop(site, None)
        present = self._present.get(site, {})
        accepted = self._accepted.setdefault(site, {})
        if not self._has_route(origin):
            contents = self._contents.pop(origin, None)
            if contents is not None and origin in accepted:
                self._count(origin, (), contents.entries)
            self._sources.pop(origin, None)
            self._since.pop(origin, None)
            present.pop(origin.gateway, None)
            accepted.pop(origin, None)
            if not present:
                self._present.pop(site, None)
        if not accepted:
            waiting = list(present.values())[:1]
        elif origin in accepted or any(other in accepted for other in self._companions(origin)):
            waiting = [origin]
        else:
            waiting = []
        self._accept(accepted, waiting)
        while waiting:
            more = [other for other in self._companions(waiting.pop()) if other not in accepted]
            self._accept(accepted, more)
            waiting += more
        if not accepted:
            del self._accepted[site]
            self._former.pop(site, None)
            self._former[site] = None
            if len(self._former) > FORMER:
                del self._former[next(iter(self._former))]

    def _accept(self, accepted: dict[Hop, None], origins: Iterable[Hop]) -> None:
        for origin in origins:
            if origin not in accepted:
                accepted[origin] = None
                self._touch(origin)  # neighbours are sent it only from now on
                self._rerouted.add(origin.site)
                self._count(origin, self._contents[origin].entries, ())

    def _count(self, origin: Hop, more: Iterable[Export], less: Iterable[Export]) -> None:
        """Count what an origin exports, and who wants events, as far as it speaks for its site."""
        if not self.is_accepted(origin):
            return
        for sign, exports in ((1, more), (-1, less)):
            for export in exports:
                self._index.count(origin.site, export, sign)
                if export.kind == CLUSTER:
                    self._relisted.add(NodeId(export.node))
                if export.kind == TOPIC and not realm_of_topic(export.name):
                    found = RemoteSubscriber(origin.site, NodeId(export.node), export.name)
                    before = self._wanting.get(found, 0)
                    self._wanting[found] = before + sign
                    if not before:
                        self.subscriptions.note(found, wants=True)
                    elif not before + sign:
                        del self._wanting[found]
                        self.subscriptions.note(found, wants=False)

    def _companions(self, origin: Hop) -> list[Hop]:
        """Return the gateways of a site that name this one as their companion, as it does them."""
        contents = self._contents.get(origin)
        if contents is None or not contents.companions:
            return []
        present = self._present[origin.site]
        named = present.keys() & contents.companions
        return [
            present[other] for other in sorted(named) if origin.gateway in self._contents[present[other]].companions
        ]

    def _has_route(self, origin: Hop) -> bool:
        return any(origin in neighbour.exports for neighbour in self._neighbours.values())

    def name_conflicts(self, now: float, patience: float) -> list[Hop]:
        """Return the origins that use the name of another site, for ``patience`` seconds or longer."""
        return [
            origin
            for origin, since in self._since.items()
            if now - since >= patience and origin not in self._accepted.get(origin.site, ())
        ]

    # -- what is asked --------------------------------------------------------------------------------------

    def origins(self) -> tuple[Hop, ...]:
        """Return every origin that is believed and can be reached."""
        return tuple(origin for accepted in self._accepted.values() for origin in accepted)

    def gateways(self, site: str) -> tuple[Hop, ...]:
        """Return the origins of one site that are believed and can be reached."""
        return tuple(self._accepted.get(site, ()))

    def is_accepted(self, origin: Hop) -> bool:
        """Return whether an origin is believed and can be reached."""
        return origin in self._accepted.get(origin.site, ())

    def sites(self) -> tuple[str, ...]:
        """Return the other sites that can be reached, sorted."""
        return tuple(sorted(self._accepted))

    def reaches(self, site: str) -> bool:
        """Return whether another site can be reached."""
        return site in self._accepted

    def has_reached(self, site: str) -> bool:
        """Return whether another site can be reached, or could be: it may be without a route for a moment."""
        return site in self._accepted or site in self._former

    def contents(self, origin: Hop) -> ExportTable | None:
        """Return what an origin exports."""
        return self._contents.get(origin)

    def routes_to(self, origin: Hop) -> Iterator[SitePath]:
        """Yield every route to an origin."""
        for neighbour, known in self._neighbours.items():
            exported = known.exports.get(origin)
            if exported is not None:
                yield SitePath(neighbour, exported.path)

    def best_route(self, site: str, *, salt: str = "") -> SitePath | None:
        """Return the best route to a site: the shortest; ``salt`` spreads askers over equal ones."""
        if site not in self._accepted:  # nodes name any number of sites that do not exist
            return None
        known = self._routes.setdefault(site, {})
        if salt not in known:
            routes = (route for origin in self._accepted[site] for route in self.routes_to(origin))
            known[salt] = min(routes, key=lambda way: _cost(way, salt), default=None)
        return known[salt]

    def best(self, origin: Hop) -> SitePath | None:
        """Return the best route to one gateway of a site."""
        return min(self.routes_to(origin), key=_cost, default=None)

    def members(self, cluster: str, realm_id: str = "") -> list[RemoteMember]:
        """Return the members of a cluster at all other sites of a realm, the nearest first."""
        found: dict[NodeId, RemoteMember] = {}
        if cluster not in self._index.clusters(realm_id):
            return []
        for site, accepted in self._accepted.items():
            if realm_of_site(site) != realm_id:
                continue
            listed = [members for one in accepted if (members := self._contents[one].clusters.get(cluster))]
            path = self.best_route(site) if listed else None
            if path is not None:
                for members in listed:
                    for node, proof in members.items():
                        found.setdefault(node, RemoteMember(site, node, proof, len(path.path)))
        return sorted(found.values(), key=lambda foreign: (foreign.distance, foreign.site, foreign.node))

    def clusters(self, realm_id: str = "") -> KeysView[str]:
        """Return the name of every cluster that another site of a realm exports, now and later; it costs nothing."""
        return self._index.clusters(realm_id)

    def subscribers(self) -> set[RemoteSubscriber]:
        """Return who at other sites wants events of this realm."""
        return set(self._wanting)

    def lists(self, site: str, node: NodeId) -> bool:
        """Return whether a site says that a node is a member of some cluster."""
        return bool(self._index.memberships(site, node))

    def listing(self, site: str, node: NodeId) -> Iterator[Hop]:
        """Yield the gateways of a site that say so."""
        memberships = self._index.memberships(site, node)
        for origin in self._accepted.get(site, ()) if memberships else ():
            entries = self._contents[origin].entries
            if any(export in entries for export in memberships):
                yield origin

    def memberships(self, site: str, node: NodeId) -> set[tuple[str, bytes]]:
        """Return the clusters that a site says a node is a member of, each with its proofs."""
        return {(export.name, export.proof) for export in self._index.memberships(site, node)}

    def subscribes(self, site: str, node: NodeId, realm_id: str = "") -> bool:
        """Return whether a site says that a node wants events of a realm; empty: of this one."""
        return self._index.subscribes(site, node, realm_id)

    def pop_changes(self) -> tuple[set[str], set[NodeId]]:
        """Return the sites with other routes, and the nodes that other gateways list or otherwise, since the last call.

        A node that follows the directory looks at these and no others: a site may have thousands of nodes.
        """
        news = self._rerouted, self._relisted
        self._rerouted, self._relisted = set(), set()
        return news

    def is_fully_exported(self, site: str) -> bool:
        """Return whether all that the gateways of a site export is known here: a route comes before its exports."""
        return all(self._contents[origin].version for origin in self._accepted.get(site, ()))

    def settles(self, site: str, settling: float) -> float:
        """Return from when on what the gateways of a site do not export is known not to be there; infinity if never.

        That is when each of them has sent its exports and been known for ``settling`` seconds: one that has just come
        back exports what it has found of its site so far.
        """
        known = self._settled.get(site)
        if known is None:
            accepted = self._accepted.get(site, ())
            if not accepted:
                return math.inf
            known = max(self._since[origin] for origin in accepted) if self.is_fully_exported(site) else math.inf
            self._settled[site] = known
        return known + settling

    def offers(self, site: str, node: NodeId) -> bool:
        """Return whether a session may be begun with a node: it is a member of a cluster, or wants events."""
        return self._index.names(site, node)


def _is_straight(path: tuple[Hop, ...]) -> bool:
    """Return whether a path enters no site twice; within one it may pass two gateways."""
    sites = [hop.site for at, hop in enumerate(path) if at == 0 or path[at - 1].site != hop.site]
    return len(sites) == len(set(sites)) and len(path) == len({hop.gateway for hop in path})


def _cost(route: SitePath, salt: str = "") -> tuple[int, int, SitePath]:
    return (len(route.path), hash_of(salt + route.neighbour) if salt else 0, route)


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value
