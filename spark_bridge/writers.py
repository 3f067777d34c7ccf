"""Who may write into a bridge's log by way of Spark: whoever may publish the same topics, and nobody else.

The bridge publishes what Spark commits, with its own rights.  A reader's credential, which may publish nothing, must
not reach through it what it cannot reach itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import pyarrow as pa

from iris.cluster.peer import Peer
from iris.kernel.errors import NotAllowed
from iris.kernel.ids import NodeId
from iris.patterns.values import Sender


@final
class Writer:
    """What one node may have written.

    Args:
        sender: the node.
        find_peer: returns what is known of a node that has just asked for something.

    Raises:
        NotAllowed: it may publish nothing here.
    """

    def __init__(self, sender: Sender, find_peer: Callable[[NodeId], Peer | None]) -> None:
        self.cluster = sender.cluster
        peer = find_peer(sender.node)
        if peer is None or peer.other_realm:
            raise NotAllowed(f"only nodes of the bridge's own realm may write to it, not those of {sender.cluster!r}")
        self._rights = peer.identity.certificate.rights
        self._border = peer.border
        self._known: set[str] = set()
        if self._rights.publishes == ():
            raise self._refused("publish, and what Spark writes is published: the sink needs a credential that may")

    def _refused(self, what: str) -> NotAllowed:
        return NotAllowed(f"the certificate of cluster {self.cluster!r} does not permit to {what}")

    def check(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows of SINK_SCHEMA on.

        Raises:
            NotAllowed: one of them is on a topic that the node may not publish on.
        """
        for batch in rows:
            for topic in set(batch.column("topic").to_pylist()) - self._known:
                if not self._rights.may_publish(topic):
                    raise self._refused(f"publish on {topic!r}")
                if self._border is not None and not self._border.may_enter(topic):
                    raise NotAllowed(f"events on {topic!r} from other sites are not let in")
                self._known.add(topic)
            yield batch
