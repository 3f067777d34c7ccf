"""What one origin exports, with the last changes, so that others are told the difference and not everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, final

from iris.cluster.site_messages import CLUSTER, COMPANION, TOPIC, Export, Exports, Hop, split_exports
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.ids import NodeId

MAX_EXPORTS: Final = 65_536
"""Entries of one origin.  At 100 bytes they are 6 MiB here."""

_HISTORY: Final = 64
"""Changes that are remembered.  Whoever is further behind is told everything."""


@final
class Contents:
    """The exports of one origin at one version; version 0 is empty."""

    __slots__ = ("_history", "clusters", "companions", "entries", "origin", "topics", "version")

    def __init__(self, origin: Hop) -> None:
        self.origin: Final = origin
        self.version = 0
        self.entries: set[Export] = set()
        self.clusters: dict[str, dict[NodeId, bytes]] = {}
        """For each cluster its members, each with its proof."""
        self.companions: set[NodeId] = set()
        self.topics: dict[str, set[NodeId]] = {}
        """For each pattern of topics who wants it."""
        self._history: deque[tuple[int, int, tuple[Export, ...], tuple[Export, ...]]] = deque(maxlen=_HISTORY)

    def __repr__(self) -> str:
        return f"<Contents of {self.origin.site} version {self.version}: {len(self.entries)} entries>"

    def change(self, version: int, added: Iterable[Export], removed: Iterable[Export]) -> None:
        """Go to another version.

        Raises:
            RemoteProtocolError: there are more than ``MAX_EXPORTS`` then; nothing has changed.
        """
        less = tuple(export for export in removed if export in self.entries)
        more = tuple(export for export in dict.fromkeys(added) if export not in self.entries)
        if len(self.entries) - len(less) + len(more) > MAX_EXPORTS:
            raise RemoteProtocolError(f"site {self.origin.site} exports more than {MAX_EXPORTS} entries")
        self._history.append((self.version, version, more, less))
        self.version = version
        for export in less:
            self._remove(export)
        for export in more:
            self._add(export)

    def replace(self, version: int, entries: Iterable[Export]) -> None:
        """Go to another version, of which all entries are known.

        Raises:
            RemoteProtocolError: they are more than ``MAX_EXPORTS``; nothing has changed.
        """
        wanted = set(entries)
        self.change(version, wanted - self.entries, self.entries - wanted)

    def since(self, version: int) -> Iterator[Exports]:
        """Yield what somebody at ``version`` has to be told."""
        if version == self.version:
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
        self.entries.add(export)
        if export.kind == CLUSTER:
            self.clusters.setdefault(export.name, {})[NodeId(export.node)] = export.proof
        elif export.kind == COMPANION:
            self.companions.add(NodeId(export.node))
        elif export.kind == TOPIC:
            self.topics.setdefault(export.name, set()).add(NodeId(export.node))

    def _remove(self, export: Export) -> None:
        self.entries.discard(export)
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
