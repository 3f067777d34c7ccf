"""Record quota of each cluster's key: a holder of one can make up any number of nodes.  Sans-IO.

A record is counted from when its node is met until it is forgotten, alive or gone.  Where a key has all that it may
have, those go first that are gone already, the one met longest ago before the others.  For a node that sends its record
over a link of its own, one goes that nobody is linked to: a node that was made up has no link, for that takes a
process that completes handshakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from iris.kernel.names import NodeId


@final
class RecordQuota:
    """The number of records held of each cluster's key.

    Args:
        limit: records of one key.
    """

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._nodes: dict[bytes, dict[NodeId, None]] = {}
        """Nodes of each key, in the order in which they were met."""
        self._keys: dict[NodeId, bytes] = {}

    def __repr__(self) -> str:
        return f"<RecordQuota: {len(self._keys)} records of {len(self._nodes)} keys>"

    def is_full(self, key: bytes) -> bool:
        """Return whether a record has to go before another one of this key is taken."""
        return len(self._nodes.get(key, ())) >= self._limit

    def first(self, key: bytes, may_go: Callable[[NodeId], bool]) -> NodeId | None:
        """Return the node of this key that was met first, of those that may go; None if there is none."""
        return next(filter(may_go, self._nodes.get(key, ())), None)

    def add(self, node: NodeId, key: bytes) -> None:
        """Count a node that was met, and is not counted yet."""
        self._nodes.setdefault(key, {})[node] = None
        self._keys[node] = key

    def discard(self, node: NodeId) -> None:
        """Count a node no more.  One that was never counted is passed over."""
        key = self._keys.pop(node, None)
        if key is not None:
            del self._nodes[key][node]
            if not self._nodes[key]:
                del self._nodes[key]
