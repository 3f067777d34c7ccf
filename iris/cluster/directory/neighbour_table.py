"""Neighbour table (BGP's Adj-RIB-In): what one neighbour advertises, within its share of messages, entries and memory.

It is a part of the directory.  Each neighbour's advertisements are kept beside those of the others, as BGP keeps them
for each peer (RFC 4271): what one says of an origin changes nothing of what another one says of it, and goes when that
one goes.  What does not fit into a neighbour's share is an error of that neighbour, and takes no room of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, final

from iris.cluster.directory.messages import Export, ExportsUpdate, Hop
from iris.kernel.config import MIB
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.token_bucket import TokenBucket

MAX_ORIGINS: Final = 1024
"""Gateways of all sites together that one neighbour may advertise."""

MAX_EXPORTS: Final = 65_536
"""Entries of one origin."""

MAX_WEIGHT: Final = 128 * MIB
"""Memory in bytes that the exports which one neighbour advertises may take, by ``Export.weight``."""

SHARES: Final = 8
ORIGIN_SHARES: Final = 64
"""So many of these shares of memory, and of these gateways, all the neighbours of one owner have together: a cluster of
this realm, or another realm.  The holder of a cluster's key can come as any number of gateways.  Each honest one tells
half of a share at most; in a full mesh of 200 sites all of them tell of 40,000."""

UPDATES: Final = 2_000
UPDATE_RATE: Final = 200.0
"""Messages that one neighbour may send at once, and for each second in the long run.  Honest ones gather changes."""


class ExportsChange(NamedTuple):
    """The difference between what a neighbour advertised of an origin before and now."""

    added: tuple[Export, ...]
    removed: tuple[Export, ...]


@final
class _Parts:
    """An exports update of which further parts follow."""

    __slots__ = ("added", "base", "removed", "version", "weight")

    def __init__(self, base: int, version: int) -> None:
        self.base: Final = base
        self.version: Final = version
        self.added: dict[Export, None] = {}
        self.removed: dict[Export, None] = {}
        self.weight = 0


@final
class Advertised:
    """Exports of one origin, as one neighbour advertises them."""

    __slots__ = ("entries", "parts", "path", "version", "weight")

    def __init__(self, path: tuple[Hop, ...]) -> None:
        self.path = path
        self.version = 0
        """The neighbour's count of versions.  0: it has advertised no exports yet."""
        self.entries: set[Export] = set()
        self.parts: _Parts | None = None
        self.weight = 0


@final
class Owner:
    """The owner of one key who vouches for some neighbours, and what they advertise together."""

    __slots__ = ("neighbours", "origins", "weight")

    def __init__(self) -> None:
        self.neighbours = self.origins = self.weight = 0


@final
class NeighbourTable:
    """The advertisements of one neighbour, within its share.

    Args:
        local: it is a gateway of this very site.
        owner: the owner that vouches for it; by default nobody else has the same one.
        max_origins: gateways of all sites together that it may advertise.
        max_weight: limit on the weight of the exports that it advertises.
    """

    def __init__(
        self,
        now: float,
        *,
        local: bool,
        owner: Owner | None = None,
        max_origins: int = MAX_ORIGINS,
        max_weight: int = MAX_WEIGHT,
    ) -> None:
        self.local: Final = local
        self.owner: Final = owner or Owner()
        self.owner.neighbours += 1
        self.exports: Final[dict[Hop, Advertised]] = {}
        self.tokens: Final = TokenBucket(UPDATES, UPDATE_RATE, now)
        self.weight = 0
        self._max_origins = max_origins
        self._max_weight = max_weight

    def __repr__(self) -> str:
        return f"<NeighbourTable of {len(self.exports)} origins, {self.weight} bytes>"

    def route(self, origin: Hop, path: tuple[Hop, ...]) -> bool:
        """Receive a route to an origin; return whether it is another one than before.

        Raises:
            RemoteProtocolError: there are too many, of this one or of all of its owner; nothing has changed.
        """
        known = self.exports.get(origin)
        if known is None:
            if len(self.exports) >= self._max_origins:
                raise RemoteProtocolError(f"a neighbour tells of more than {self._max_origins} gateways")
            if self.owner.origins >= ORIGIN_SHARES * self._max_origins:
                most = ORIGIN_SHARES * self._max_origins
                raise RemoteProtocolError(f"the {self.owner.neighbours} of its owner tell of more than {most} gateways")
            self.exports[origin] = Advertised(path)
            self.owner.origins += 1
            return True
        changed = known.path != path
        known.path = path
        return changed

    def withdraw(self, origin: Hop) -> bool:
        """Forget an origin and all its advertisements; return True if there was any."""
        known = self.exports.pop(origin, None)
        if known is None:
            return False
        self.owner.origins -= 1
        self._grow(-known.weight - (known.parts.weight if known.parts else 0))
        return True

    def forget(self) -> None:
        """The neighbour is ignored from now on: its advertisements take no room of others of its owner."""
        self.owner.neighbours -= 1
        self.owner.origins -= len(self.exports)
        self.owner.weight -= self.weight

    def _grow(self, weight: int) -> None:
        self.weight += weight
        self.owner.weight += weight

    def receive_exports(
        self, news: ExportsUpdate, permits: Callable[[Export], bool], same: Callable[[Export], Export]
    ) -> ExportsChange | None:
        """Accept exports of an origin that it has advertised a route to; return the change when the last part is there.

        Args:
            permits: tells what is permitted; the rest is passed over.
            same: returns the object that is held for an equal export already, so that there are not several.

        Raises:
            StaleUpdate: the change is one of something that was not advertised.
            RemoteProtocolError: it is beyond this neighbour's share, or its owner's.  The origin is forgotten as if it
                had been withdrawn, and further news of it ignored until there is a route again.
        """
        known = self.exports[news.origin]
        parts = known.parts
        if parts is None or (parts.base, parts.version) != (news.base, news.version):
            self._drop_parts(known)
            if news.base not in (0, known.version):
                raise StaleUpdate
            parts = known.parts = _Parts(news.base, news.version)
        before = parts.weight
        for export in filter(permits, news.added):
            if export not in parts.added:
                held = export in known.entries
                parts.weight += 0 if held else export.weight
                if not held or not news.base:
                    parts.added[same(export)] = None
        for export in news.removed:
            if news.base and export in known.entries and export not in parts.removed:
                parts.removed[same(export)] = None
        self._grow(parts.weight - before)
        if self.weight > self._max_weight or self.owner.weight > SHARES * self._max_weight:
            alone = self.weight > self._max_weight
            who, most = ("it tells", 1) if alone else (f"the {self.owner.neighbours} of its owner tell", SHARES)
            self.withdraw(news.origin)
            raise RemoteProtocolError(
                f"with what site {news.origin.site} exports {who} of more than {most * self._max_weight} bytes"
            )
        return None if news.more else self._apply(news.origin, known, parts)

    def _apply(self, origin: Hop, known: Advertised, parts: _Parts) -> ExportsChange:
        added = tuple(export for export in parts.added if export not in known.entries)
        gone = parts.removed if parts.base else known.entries.difference(parts.added)
        removed = tuple(export for export in gone if export not in parts.added)
        self._drop_parts(known)
        if len(known.entries) + len(added) - len(removed) > MAX_EXPORTS:
            self.withdraw(origin)
            raise RemoteProtocolError(f"site {origin.site} exports more than {MAX_EXPORTS} entries")
        known.version = parts.version
        known.entries.difference_update(removed)
        known.entries.update(added)
        change = sum(export.weight for export in added) - sum(export.weight for export in removed)
        known.weight += change
        self._grow(change)
        return ExportsChange(added, removed)

    def _drop_parts(self, known: Advertised) -> None:
        if known.parts is not None:
            self._grow(-known.parts.weight)
            known.parts = None


@final
class StaleUpdate(Exception):
    """An update of another version than was advertised before: messages have crossed, and nobody is to blame."""
