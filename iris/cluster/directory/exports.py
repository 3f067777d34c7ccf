"""Export table: what one origin exports, with the last changes, so that neighbours get differences only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, KeysView
from typing import Final, final

from iris.cluster.directory.messages import CLUSTER, COMPANION, TOPIC, Export, ExportsUpdate, Hop, split_exports
from iris.kernel.names import NodeId

_HISTORY: Final = 64
"""Changes that are remembered, and entries in them, or as many as there are now: a node that is further behind is told
everything, which is no more."""


Change = tuple[tuple[Export, ...], tuple[Export, ...]]


@final
class ExportTable:
    """The exports of one origin at one version; version 0 is empty."""

    __slots__ = (
        "_entries",
        "_history",
        "_remembered",
        "clusters",
        "companions",
        "origin",
        "topics",
        "version",
        "weight",
    )

    def __init__(self, origin: Hop) -> None:
        self.origin: Final = origin
        self.version = 0
        self.weight = 0
        """Weight of all entries in bytes of memory."""
        self._entries: dict[Export, Export] = {}
        self.clusters: dict[str, dict[NodeId, bytes]] = {}
        """Members of each cluster, each with its proof."""
        self.companions: set[NodeId] = set()
        self.topics: dict[str, set[NodeId]] = {}
        """Nodes that want events, by pattern of topics."""
        self._history: deque[tuple[int, int, tuple[Export, ...], tuple[Export, ...]]] = deque()
        self._remembered = 0

    def __repr__(self) -> str:
        return f"<ExportTable of {self.origin.site} version {self.version}: {len(self.entries)} entries>"

    @property
    def entries(self) -> KeysView[Export]:
        """All that is exported."""
        return self._entries.keys()

    def same(self, export: Export) -> Export:
        """Return the entry that equals an export if there is one, else the export: it need not be kept twice."""
        return self._entries.get(export, export)

    def change(self, version: int, added: Iterable[Export], removed: Iterable[Export]) -> Change:
        """Go to another version; return what is there now and was not before, and what no longer is."""
        less = tuple(export for export in removed if export in self._entries)
        more = tuple(export for export in dict.fromkeys(added) if export not in self._entries)
        self._remember(version, more, less)
        self.version = version
        for export in less:
            self._remove(export)
        for export in more:
            self._add(export)
        self.weight += sum(export.weight for export in more) - sum(export.weight for export in less)
        return more, less

    def replace(self, version: int, entries: Iterable[Export]) -> Change:
        """Go to another version, of which all entries are known; returns what ``change`` does."""
        wanted = set(entries)
        return self.change(version, wanted - self.entries, self.entries - wanted)

    def _remember(self, version: int, more: tuple[Export, ...], less: tuple[Export, ...]) -> None:
        history = self._history
        history.append((self.version, version, more, less))
        self._remembered += len(more) + len(less)
        most = max(_HISTORY, len(self._entries) + len(more) - len(less))
        while len(history) > _HISTORY or self._remembered > most:
            _, _, former_more, former_less = history.popleft()
            self._remembered -= len(former_more) + len(former_less)

    def since(self, version: int) -> Iterator[ExportsUpdate]:
        """Yield the changes since ``version``, to be sent to a node that has that."""
        if version == self.version or not self.version:  # nothing is known of it yet
            return
        added: dict[Export, bool] = {}
        reached = version
        for base, result, more, less in self._history:
            if base != reached:
                continue
            reached = result
            added.update(dict.fromkeys(less, False))
            added.update(dict.fromkeys(more, True))
        if version and reached == self.version:
            yield from split_exports(
                self.origin,
                version,
                self.version,
                [export for export, present in added.items() if present],
                [export for export, present in added.items() if not present],
            )
        else:
            yield from split_exports(self.origin, 0, self.version, self.entries, ())

    def _add(self, export: Export) -> None:
        self._entries[export] = export
        if export.kind == CLUSTER:
            self.clusters.setdefault(export.name, {})[NodeId(export.node)] = export.proof
        elif export.kind == COMPANION:
            self.companions.add(NodeId(export.node))
        elif export.kind == TOPIC:
            self.topics.setdefault(export.name, set()).add(NodeId(export.node))

    def _remove(self, export: Export) -> None:
        del self._entries[export]
        if export.kind == CLUSTER:
            members = self.clusters.get(export.name, {})
            if members.get(NodeId(export.node)) == export.proof:
                del members[NodeId(export.node)]
            if not members:
                self.clusters.pop(export.name, None)
        elif export.kind == COMPANION:
            self.companions.discard(NodeId(export.node))
        elif export.kind == TOPIC:
            self.topics[export.name].discard(NodeId(export.node))
            if not self.topics[export.name]:
                del self.topics[export.name]
