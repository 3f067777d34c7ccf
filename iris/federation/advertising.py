"""Route advertisement of a gateway, as in BGP: which sites, routes and exports it sends to which neighbour (sans-IO).

A neighbour gets one route to each origin, the best that this gateway has, with this gateway's site put in front.  What
was advertised is remembered (Adj-RIB-Out), so a neighbour gets differences and gets nothing twice.  The sending rate is
half of the rate that a neighbour takes for a flood: a gateway that passes on what several others send, each a little
below that rate, is no flooder itself.

Not advertised to a neighbour:

- routes that lead through its own site;
- to this gateway's own site, what was learned from that site: each of its gateways advertises that itself;
- to another site, what a third site exports, unless this gateway has ``transit``;
- to a gateway of another realm, all but what this realm permits that one to reach;
- what is beyond half of a neighbour's limit for one peer: changes need room as well.  That half is divided max-min
  fair among the sources: each gets as much as the others, as far as it has use for it.  Of each source, what a second
  gateway of a site advertises comes after what the first gateways of all sites do.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, Protocol, TypeVar, final

from iris.cluster.directory import (
    IN_ONE_MESSAGE,
    MAX_EXPORTS,
    MAX_HOPS,
    MAX_ORIGINS,
    MAX_WEIGHT,
    UPDATE_RATE,
    UPDATES,
    Export,
    ExportIndex,
    ExportTable,
    Hop,
    RouteAdvertisement,
    SiteDirectory,
    TooManyChanges,
)
from iris.federation.own_exports import SharedRoom
from iris.federation.realm_names import outward_exports, outward_route
from iris.kernel.names import NodeId, realm_of_site
from iris.kernel.token_bucket import TokenBucket
from iris.kernel.wire import kinds

G = TypeVar("G")
T = TypeVar("T")


def fair_share(wanted: Mapping[G, Sequence[tuple[T, int]]], *, places: int, weight: int) -> set[T]:
    """Choose what fits into so many places and so much weight; a pure function.

    Whose part is the smallest so far, in places or in weight, whichever is the greater part of all, is next (dominant
    resource fairness, Ghodsi et al., NSDI 2011).  So an origin that wants very much gets what others leave.

    Args:
        wanted: the items that each origin wants, with their weight; the first ones first.  Nothing is wanted twice.
    """
    chosen: set[T] = set()
    queue = [(0.0, number, 0, 0, 0) for number in range(len(wanted))]
    lists = list(wanted.values())
    free = weight
    while queue and len(chosen) < places:
        _, number, at, count, used = heapq.heappop(queue)
        if at == len(lists[number]):
            continue
        item, weighs = lists[number][at]
        if weighs <= free:
            chosen.add(item)
            free -= weighs
            count, used = count + 1, used + weighs
        heapq.heappush(queue, (max(count / places, used / weight), number, at + 1, count, used))
    return chosen


_Sent = dict[Hop, tuple[tuple[Hop, ...], int]]
"""Path and version of each origin that a neighbour was sent; no path: a withdrawal."""

_LOST: Final = (Hop("", NodeId("")),)
"""The path of an origin of which it is unknown what the neighbour has received."""


class OutwardExports(Protocol):
    """Exports as other realms get them.  Asked while messages for a neighbour are made; must not block."""

    def outward(self, realm_id: str, export: Export) -> Export | None:
        """Return an export of a site as neighbours of a realm get it; None if they may not know of it."""
        ...


@final
class Advertiser:
    """The advertising side of a gateway: which origins each neighbour gets, and what has changed for it.

    Args:
        directory: the directory of other sites.
        transit: True if other sites may reach each other through this one.
        realm_id: fingerprint of this gateway's realm, for neighbours of other realms.
        outward: exports as neighbours of other realms get them; None: these get none.
        max_origins: gateways, this one among them, that are advertised to each neighbour.
        max_weight: limit on the weight of all that they export.
    """

    def __init__(
        self,
        directory: SiteDirectory,
        *,
        transit: bool = True,
        realm_id: str = "",
        outward: OutwardExports | None = None,
        max_origins: int = MAX_ORIGINS // 2,
        max_weight: int = MAX_WEIGHT // 2,
    ) -> None:
        self.left_out = 0
        """Gateways of other sites that are not advertised, for there are too many or they export too much."""
        self._leaving = False
        """True once this gateway advertises that nothing leads through it any more."""
        self._directory = directory
        self._own = directory.own
        self._transit = transit
        self._realm_id = realm_id
        self._outward = outward
        self._max_origins = max_origins
        self._max_weight = max_weight
        self._chosen: set[Hop] | None = None
        """Origins that may be advertised; None: all, as nearly always."""
        self._chosen_version = (-1, -1)
        self.exported: Final = ExportTable(self._own)
        """Exports of this gateway for its own site."""
        self.index: Final = ExportIndex()
        """Exports of this gateway for its own site, by node."""
        self._own_exports = SharedRoom(MAX_EXPORTS, max_weight)
        self._sites: dict[NodeId, str] = {}
        self._remote: dict[NodeId, None] = {}
        """The neighbours of other sites."""
        self._questions: dict[NodeId, TokenBucket] = {}
        self._pace: dict[NodeId, TokenBucket] = {}
        self._behind: dict[NodeId, tuple[Hop, ...]] = {}
        """Changes that wait for the sending rate, the longest waiting first."""
        self._sent: dict[NodeId, _Sent] = {}

    def _outward_export(self, realm_id: str, export: Export) -> Export | None:
        return None if self._outward is None else self._outward.outward(realm_id, export)

    def add(self, neighbour: NodeId, site: str) -> None:
        """Advertise to a neighbour from now on; nodes and gateways of this site are neighbours with its own name.

        Sites of another realm have its fingerprint before their name.
        """
        self._sites[neighbour] = site
        self._sent[neighbour] = {}
        if site != self._own.site:
            self._remote[neighbour] = None

    def remove(self, neighbour: NodeId) -> None:
        """Advertise to it no more."""
        self._sites.pop(neighbour, None)
        self._remote.pop(neighbour, None)
        self._questions.pop(neighbour, None)
        self._pace.pop(neighbour, None)
        self._behind.pop(neighbour, None)
        self._sent.pop(neighbour, None)

    def answer_untrusted(self, neighbour: NodeId, origin: Hop, now: float) -> None:
        """A neighbour asks for everything that an origin exports: it gets that with the next changes.

        Raises:
            TooManyChanges, a RemoteProtocolError: it has asked for more than anybody honest would.
        """
        contents = self.exported if origin == self._own else self._directory.contents(origin)
        known = self._questions.get(neighbour)
        if known is None:
            known = self._questions[neighbour] = TokenBucket(UPDATES, UPDATE_RATE, now)
        if not known.spend(now, 1 + (0 if contents is None else len(contents.entries) // IN_ONE_MESSAGE)):
            raise TooManyChanges(f"what it asks for takes more than {UPDATES} messages at once")
        self.repeat(neighbour, origin)

    def repeat(self, neighbour: NodeId, origin: Hop | None = None) -> None:
        """Advertisements to a neighbour may be lost: all of them, or the exports of one origin."""
        sent = self._sent.get(neighbour)
        if sent is None:
            return
        if origin is None:
            self._sent[neighbour] = dict.fromkeys(sent, (_LOST, 0))
        elif origin in sent:
            sent[origin] = (sent[origin][0], 0)

    @property
    def cut(self) -> int:
        """Entries of this site that are not exported, for there are too many."""
        return self._own_exports.cut

    @property
    def neighbours(self) -> tuple[NodeId, ...]:
        """The neighbours that get advertisements."""
        return tuple(self._sent)

    def concerned(self, changed: AbstractSet[Hop], stale: AbstractSet[NodeId]) -> Sequence[NodeId]:
        """Return the neighbours to which changes of these origins may matter, and those that are to be sent all.

        What this gateway exports is told to no node of its own site, and there may be thousands.
        """
        if changed - {self._own}:
            return tuple(self._sent)
        found = dict.fromkeys((*self._remote, *self._behind, *sorted(stale)))
        return [neighbour for neighbour in found if neighbour in self._sent]

    def export(self, added: Collection[Export], removed: Collection[Export] = ()) -> bool:
        """Export more of this gateway's own site, and less; return whether something has changed for others.

        Should it be too much, the nodes of the site share what there may be.
        """
        more, less = self._own_exports.change(added, removed)
        if not (more or less) and self.exported.version:
            return False
        self.exported.change(self.exported.version + 1, more, less)
        for exports, change in ((more, 1), (less, -1)):
            for export in exports:
                self.index.count(self._own.site, export, change)
        return True

    def _choose(self) -> None:
        """Choose the origins that may be advertised; if these are others than before, all are compared."""
        version = (self._directory.version, self.exported.version)
        if version == self._chosen_version:
            return
        self._chosen_version = version
        weights = {origin: self._weight(origin) for origin in self._directory.origins()}
        room = self._max_weight - self.exported.weight
        chosen = None
        if len(weights) >= self._max_origins or sum(weights.values()) > room:
            learned: dict[NodeId, list[tuple[Hop, int]]] = {}
            seen: Counter[str] = Counter()
            ranked: list[tuple[int, Hop]] = []
            for origin in sorted(weights):
                ranked.append((seen[origin.site], origin))
                seen[origin.site] += 1
            for _, origin in sorted(ranked):  # no site without any before another has two
                route = self._directory.best(origin)
                assert route is not None, "what is believed can be reached"
                learned.setdefault(route.neighbour, []).append((origin, weights[origin]))
            chosen = fair_share(learned, places=self._max_origins - 1, weight=max(room, 1))
        self.left_out = 0 if chosen is None else len(weights) - len(chosen)
        if chosen != self._chosen:
            self._chosen = chosen
            for neighbour, sent in self._sent.items():
                self._behind[neighbour] = tuple(dict.fromkeys((*self._behind.get(neighbour, ()), *sent, *weights)))

    def _weight(self, origin: Hop) -> int:
        contents = self._directory.contents(origin)
        return 0 if contents is None else contents.weight

    @property
    def is_behind(self) -> bool:
        """True if some neighbour is to get more as time goes on."""
        return bool(self._behind)

    def messages(
        self, neighbour: NodeId, origins: Iterable[Hop] | None = None, now: float | None = None
    ) -> Iterator[kinds.Route | kinds.Exports]:
        """Yield the advertisements for a neighbour now, of some origins or of all; they count as sent.

        With the time, only as much as the rate permits by then; the rest comes first the next time.
        """
        self._choose()
        sent = self._sent[neighbour]
        site = self._sites[neighbour]
        realm = realm_of_site(site)

        def matters(origin: Hop) -> bool:
            return origin in sent or origin == self._own or self._directory.is_accepted(origin)

        behind = list(filter(matters, self._behind.pop(neighbour, ())))
        everything = (*self._directory.origins(), *sent, self._own) if origins is None else origins
        fresh = set(filter(matters, everything))
        order = (*behind, *sorted(fresh.difference(behind)))
        for at, origin in enumerate(order):
            news: list[kinds.Route | kinds.Exports] = []
            path = self._path(origin, neighbour, site)
            known_path, known_version = sent.get(origin, ((), 0))
            if path != known_path:
                route = RouteAdvertisement(origin, path)
                news.append((outward_route(route, self._realm_id) if realm else route).message())
            contents = self.exported if origin == self._own else self._directory.contents(origin)
            if path:
                assert contents is not None, "an origin with a route has contents"
                for part in contents.since(known_version):
                    if realm:
                        part = outward_exports(part, self._realm_id, partial(self._outward_export, realm))  # noqa: PLW2901
                    news.append(part.message())
            if now is not None and not self._may_send(neighbour, len(news), now):
                self._behind[neighbour] = order[at:]
                return
            known = sent.pop(origin, None)
            if news:
                sent[origin] = (_LOST, 0)  # should it not be sent in the middle of this
            yield from news
            if path and contents is not None:
                sent[origin] = (path, contents.version)
            elif known is not None:
                sent[origin] = ((), 0)  # kept: should the withdrawal be lost, ``repeat`` sends it again
        if len(sent) > MAX_ORIGINS:
            gone = [origin for origin, (path, _) in sent.items() if not path]
            for origin in gone[:-MAX_ORIGINS]:
                del sent[origin]

    def leave(self) -> None:
        """Advertise from now on that nothing leads through this gateway any more."""
        self._leaving = True

    def _may_send(self, neighbour: NodeId, messages: int, now: float) -> bool:
        pace = self._pace.get(neighbour)
        if pace is None:
            pace = self._pace[neighbour] = TokenBucket(UPDATES / 2, UPDATE_RATE / 2, now)
        return pace.spend(now, min(messages, UPDATES / 2))

    def _path(self, origin: Hop, neighbour: NodeId, site: str) -> tuple[Hop, ...]:
        """Return the path that is advertised to a neighbour; empty for none."""
        if self._leaving:
            return ()
        local = site == self._own.site
        if origin == self._own:
            return () if local else (self._own,)
        if self._chosen is not None and origin not in self._chosen:
            return ()
        if not (local or self._transit) or not self._directory.is_accepted(origin):
            return ()
        route = self._directory.best(origin)
        if route is None or route.neighbour == neighbour or len(route.path) >= MAX_HOPS:
            return ()
        if local and self._directory.is_local(route.neighbour):
            return ()
        if not local and any(hop.site == site for hop in route.path):
            return ()
        if realm_of_site(site) and any(realm_of_site(hop.site) for hop in route.path):
            return ()  # realms do not reach each other through a third one
        return (self._own, *route.path)
