"""The exports of a gateway's own site, change by change.  Sans-IO.

Nodes of the site subscribe and serve as often as they like, and there may be 65,536 exports.  So each change is worked
out from what has changed: it costs the same however much is exported.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Protocol, TypeVar, final

from iris.cluster.directory import CLUSTER, COMPANION, TOPIC, Change, Export
from iris.kernel.names import NodeId

K = TypeVar("K")

_PASSED: Final = 8
"""Nodes whose next entry does not fit, until nobody else is asked."""

_SLACK: Final = 64
"""Former places in the queues that may stay, besides one for each node."""


class ExportRules(Protocol):
    """Rules for what other sites may know.  Asked as services and subscriptions change; must not block."""

    def may_export(self, cluster: str) -> bool:
        """Return whether other sites may use a cluster."""
        ...

    def wanted(self, pattern: str) -> str | None:
        """Return a pattern as other sites get it; None if they do not."""
        ...


@final
class SiteContents:
    """Services and subscriptions of the nodes of a site, as far as other sites may know of them.

    Args:
        rules: rules for what other sites may know of them.
    """

    def __init__(self, rules: ExportRules) -> None:
        self._rules = rules
        self._members: dict[NodeId, frozenset[Export]] = {}
        self._patterns: dict[tuple[NodeId, str], int] = {}
        """Number of a node's terms that have a pattern, by node and pattern."""
        self._shown: dict[tuple[NodeId, str], Export] = {}
        """Exports that stand for these, if other sites get them."""
        self._companions: frozenset[Export] = frozenset()
        self._entries: dict[Export, int] = {}
        """Each export as often as something stands for it: a realm's topics may be subscribed to by two names."""
        self._changed: dict[Export, bool] = {}
        """Exports that came (True) or went since changes were taken."""

    def __repr__(self) -> str:
        return f"<SiteContents: {len(self._entries)} exports>"

    def place(self, node: NodeId, serves: Mapping[str, bytes]) -> None:
        """Set which clusters a node serves, each with its proof."""
        exports = frozenset(
            Export(CLUSTER, name, node, proof) for name, proof in serves.items() if self._rules.may_export(name)
        )
        self._replace(self._members.pop(node, frozenset()), exports)
        if exports:
            self._members[node] = exports

    def subscribe(self, node: NodeId, pattern: str, change: int) -> None:
        """Count terms of a node with a pattern in (1) or out (-1)."""
        wanted = (node, pattern)
        if (change > 0 or wanted in self._patterns) and _count(self._patterns, wanted, change):
            self._show(wanted)

    def accompany(self, gateways: Iterable[NodeId]) -> None:
        """Set which other gateways the site has."""
        exports = frozenset(Export(COMPANION, "", node) for node in gateways)
        self._replace(self._companions, exports)
        self._companions = exports

    def examine(self) -> None:
        """Look at every subscription again: another realm is trusted, or one no more."""
        for wanted in self._patterns:
            self._show(wanted)

    def pop_changes(self) -> Change:
        """Return the exports that have come since this was asked last, and those that have gone."""
        changed, self._changed = self._changed, {}
        return _split(changed)

    def _show(self, wanted: tuple[NodeId, str]) -> None:
        before = self._shown.pop(wanted, None)
        named = self._rules.wanted(wanted[1]) if wanted in self._patterns else None
        after = None if named is None else Export(TOPIC, named, wanted[0])
        if after is not None:
            self._shown[wanted] = after
        self._replace(_one(before), _one(after))

    def _replace(self, before: AbstractSet[Export], after: AbstractSet[Export]) -> None:
        for export in sorted(before - after):
            self._add(export, -1)
        for export in sorted(after - before):
            self._add(export, 1)

    def _add(self, export: Export, change: int) -> None:
        if _count(self._entries, export, change):
            _note(self._changed, export, came=change > 0)


@final
class _Part:
    """The part of one node.

    Attributes:
        exported: entries of the node that are exported, the first ones first.
        waiting: entries for which there is no room.
        weight: weight of the exported entries.
    """

    __slots__ = ("exported", "waiting", "weight")

    def __init__(self) -> None:
        self.exported: dict[Export, None] = {}
        self.waiting: dict[Export, None] = {}
        self.weight = 0


@final
class SharedRoom:
    """The exports that go out when there are more than may be: then the nodes of the site share the room.

    Whose part is the smallest, in places or in weight, whichever is the greater part of all, is next (dominant resource
    fairness, Ghodsi et al., NSDI 2011); it takes the place of an entry of whose part is the greatest.

    Args:
        places: entries that may be exported.
        weight: limit on their weight together.
    """

    def __init__(self, places: int, weight: int) -> None:
        self._places = places
        self._room = weight
        self._parts: dict[str, _Part] = {}
        self._count = self._weight = 0
        self.cut = 0
        """Entries that wait."""
        self._least: list[tuple[float, str]] = []
        """The parts of nodes of which entries wait, the smallest first (a heap); former ones are passed over."""
        self._most: list[tuple[float, str]] = []
        """The parts of all nodes while entries wait, the greatest first, negative."""

    def __repr__(self) -> str:
        return f"<SharedRoom: {self._count} exports, {self.cut} wait>"

    def change(self, added: Collection[Export], removed: Collection[Export]) -> Change:
        """Take what is there now and was not before, and what no longer is; return that of what is exported."""
        changed: dict[Export, bool] = {}
        for export in removed:
            self._remove(export, changed)
        for export in added:
            part = self._parts.setdefault(export.node, _Part())
            if export in part.exported or export in part.waiting:
                continue
            if not self.cut and self._fits(export):
                self._export(part, export, changed)
            else:
                if not self.cut:
                    self._most = [(-self._share(one), node) for node, one in self._parts.items()]
                    heapq.heapify(self._most)
                part.waiting[export] = None
                self.cut += 1
                self._rank(export.node, part)
        self._fill(changed, 2 * (len(added) + len(removed)))
        return _split(changed)

    def _fill(self, changed: dict[Export, bool], moves: int) -> None:
        """Export what waits, as far as there is room or it has a better claim to it.

        Args:
            moves: entries that may be taken back for others: entries differ in weight, so that not all come to rest.
        """
        passed: list[tuple[float, str]] = []
        while len(passed) < _PASSED:
            least = self._first(self._least, 1)
            if least is None:
                break
            part = self._parts[least]
            export = next(iter(part.waiting))
            while moves and not self._fits(export) and self._withdraw_largest(self._share(part, export), changed):
                moves -= 1
            if self._fits(export):
                del part.waiting[export]
                self.cut -= 1
                self._export(part, export, changed)
                self._rank(least, part)
            else:
                passed.append(heapq.heappop(self._least))
        for place in passed:
            heapq.heappush(self._least, place)
        if not self.cut:
            self._least.clear()
            self._most.clear()

    def _withdraw_largest(self, share: float, changed: dict[Export, bool]) -> bool:
        """Have an entry of whose part is the greatest wait, if that part is greater than this; return True if so."""
        greatest = self._first(self._most, -1)
        if greatest is None or self._share(self._parts[greatest]) <= share:
            return False
        part = self._parts[greatest]
        last = next(reversed(part.exported))
        self._withdraw(part, last, changed)
        part.waiting[last] = None
        self.cut += 1
        self._rank(greatest, part)
        return True

    def _first(self, queue: list[tuple[float, str]], sign: int) -> str | None:
        """Return the node with the smallest part that has entries that wait (1), or with the greatest (-1)."""
        while queue:
            share, node = queue[0]
            part = self._parts.get(node)
            if part is not None and share == sign * self._share(part) and (part.waiting or sign < 0):
                return node
            heapq.heappop(queue)
        return None

    def _rank(self, node: str, part: _Part) -> None:
        """Put a node in its places in the queues; where it was before is passed over."""
        share = self._share(part)
        if part.waiting:
            heapq.heappush(self._least, (share, node))
        heapq.heappush(self._most, (-share, node))
        if len(self._least) + len(self._most) > 4 * len(self._parts) + _SLACK:
            self._least = [(self._share(one), name) for name, one in self._parts.items() if one.waiting]
            self._most = [(-self._share(one), name) for name, one in self._parts.items()]
            heapq.heapify(self._least)
            heapq.heapify(self._most)

    def _share(self, part: _Part, more: Export | None = None) -> float:
        """Return how great a node's part is of all that there may be, perhaps with one entry more."""
        count, weight = len(part.exported), part.weight
        if more is not None:
            count, weight = count + 1, weight + more.weight
        return max(count / self._places, weight / self._room)

    def _fits(self, export: Export) -> bool:
        return self._count < self._places and self._weight + export.weight <= self._room

    def _export(self, part: _Part, export: Export, changed: dict[Export, bool]) -> None:
        part.exported[export] = None
        part.weight += export.weight
        self._count += 1
        self._weight += export.weight
        _note(changed, export, came=True)

    def _withdraw(self, part: _Part, export: Export, changed: dict[Export, bool]) -> None:
        del part.exported[export]
        part.weight -= export.weight
        self._count -= 1
        self._weight -= export.weight
        _note(changed, export, came=False)

    def _remove(self, export: Export, changed: dict[Export, bool]) -> None:
        part = self._parts.get(export.node)
        if part is None:
            return
        if export in part.waiting:
            del part.waiting[export]
            self.cut -= 1
        elif export in part.exported:
            self._withdraw(part, export, changed)
        if not (part.exported or part.waiting):
            del self._parts[export.node]
        elif self.cut:
            self._rank(export.node, part)


def _count(counts: dict[K, int], key: K, change: int) -> bool:
    """Count an export in or out; return True if it has come or gone."""
    before = counts.get(key, 0)
    after = counts[key] = before + change
    if not after:
        del counts[key]
    return not (before and after)


def _one(export: Export | None) -> frozenset[Export]:
    return frozenset() if export is None else frozenset((export,))


def _note(changed: dict[Export, bool], export: Export, *, came: bool) -> None:
    """Note that an export has come or gone; what is as it was has not changed."""
    if export in changed:
        del changed[export]
    else:
        changed[export] = came


def _split(changed: dict[Export, bool]) -> Change:
    return tuple(one for one, came in changed.items() if came), tuple(one for one, came in changed.items() if not came)
