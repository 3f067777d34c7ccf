"""Documents: the shared documents that are open on a node, and the flags in them that pause services."""

from __future__ import annotations

from typing import final

from iris.kernel.errors import ConfigError
from iris.patterns.state import SharedState


@final
class Documents(dict[str, SharedState]):
    """The documents that are open on a node, by cluster."""

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

    def end_watches(self) -> None:
        """End the iterations over changes, as the node is closed."""
        for state in self.values():
            state._end_watches()


@final
class DocumentFlag:
    """A value of a document that pauses a service while it is true.

    Args:
        first: the document when the service began.  It is looked at while the document is not open.
    """

    def __init__(self, documents: Documents, document: str, key: str, first: SharedState) -> None:
        self._documents = documents
        self._document = document
        self._key = key
        self._first = first

    def is_set(self) -> bool:
        """See ``PauseFlag``."""
        return bool(self._documents.get(self._document, self._first).get(self._key))
