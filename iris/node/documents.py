"""Documents: the shared documents that are open on a node, and the flags in them that pause services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId
from iris.node.parts import NodeParts
from iris.patterns import state


@final
class Documents(dict[str, "state.SharedState"]):
    """The documents that are open on a node, by cluster."""

    def __init__(self, parts: NodeParts) -> None:
        super().__init__()
        self.random: Final[Random] = parts.environment.random
        self._parts = parts

    def make(
        self, cluster: str, settings: state.DocumentSettings, others: Callable[[], list[NodeId]]
    ) -> state.SharedState:
        """Return a document that is not open yet.

        Args:
            cluster: cluster of the document.
            settings: its settings.
            others: returns the members of the cluster.
        """
        parts, patterns = self._parts, self._parts.patterns
        members = state.StateMembers(
            cluster,
            parts.mesh.node,
            parts.membership,
            patterns.broadcasts,
            patterns.surveys,
            patterns.tunnels,
            parts.reach,
            others,
        )
        return state.SharedState(members, settings, self)

    def wall_time(self) -> float:
        """See ``DocumentNode.wall_time``."""
        return self._parts.environment.wall_clock()

    def check_open(self) -> None:
        """See ``DocumentNode.check_open``."""
        self._parts.patterns.guard.check()

    def flag(self, paused_by: str | None) -> DocumentFlag | None:
        """Return the flag that pauses a service; None if it is never paused.

        Raises:
            ConfigError: the document is not open here.
        """
        if paused_by is None:
            return None
        document, _, key = paused_by.rpartition(".")
        first = self.get(document)
        if first is None:
            raise ConfigError(
                f"the service is paused by {paused_by!r}, and the document {document!r} is not open here: "
                f"open node.state({document!r}) and join within its block"
            )
        return DocumentFlag(self, document, key, first)

    @asynccontextmanager
    async def running(self, cluster: str, document: state.SharedState, timeout: float) -> AsyncIterator[None]:
        """Keep a document in step with other members, which have to give it within ``timeout`` seconds."""
        self[cluster] = document
        try:
            with self._parts.patterns.guard.waiting() as entered:
                async with document._running(timeout):
                    entered()
                    yield
        finally:
            del self[cluster]

    def end_watches(self) -> None:
        """End the iterations over changes, as the node is closed."""
        for document in self.values():
            document._end_watches()


@final
class DocumentFlag:
    """A value of a document that pauses a service while it is true.

    Args:
        first: the document when the service began.  It is looked at while the document is not open.
    """

    def __init__(self, documents: Documents, document: str, key: str, first: state.SharedState) -> None:
        self._documents = documents
        self._document = document
        self._key = key
        self._first = first

    def is_set(self) -> bool:
        """See ``PauseFlag``."""
        return bool(self._documents.get(self._document, self._first).get(self._key))
