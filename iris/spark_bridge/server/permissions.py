"""Permissions: rights to call each operation of a bridge, as ``iris.spark_bridge.protocol`` has them.

Four things are checked, in this order: whether the bridge was started for certain readers only; what the certificate
of the caller's cluster permits at all; whether the caller may have the events of the topics, or of the queue, that it
names; and whether the named group or query belongs to the caller's cluster.  It belongs to the cluster that has named
it first, and the log remembers that: so a caller that is refused for its rights has claimed nothing.  An operation
without a row is refused to all.  A request that is malformed names nothing, and is answered so.

A reader has to be permitted to subscribe to what it reads.  The option ``--reader`` of a bridge overrides that:
clusters that are named so get all that is in its log.  The numbers, sizes and times of events are for every reader, as
writers and monitoring need them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from iris.cluster.mesh import Peer
from iris.kernel.errors import NotAllowed
from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.patterns.bridge_protocol import GROUP, Ask, KeyAsk, Kind, MemberAsk
from iris.patterns.messages import Sender
from iris.spark_bridge.protocol import PERMISSIONS
from iris.spark_bridge.server.sink_commits import Writer


@final
class Permissions:
    """The permissions of one bridge: applies the table.

    Args:
        bridge: name of the bridge's cluster.
        readers: clusters that may read; None: every node that may use the bridge's cluster.
        node: node of the bridge.
    """

    def __init__(self, *, bridge: str, readers: Collection[str] | None, node: Node) -> None:
        self._bridge = bridge
        self._readers = None if readers is None else frozenset((bridge, *readers))
        self._node = node
        self._find_peer = node._parts.mesh.peer

    def check(self, operation: str, sender: Sender) -> None:
        """Raise NotAllowed unless a node may call an operation, whatever it names; without a row nobody may."""
        permission = PERMISSIONS.get(operation)
        if permission is None:
            raise NotAllowed(f"nobody may call {operation!r} at a bridge: it is not said who")
        match permission.caller:
            case "member":
                pass  # of the cluster that the payload names
            case "reader":
                self._check_reader(sender)
            case "subscriber":
                self._check_subscriber(sender)
            case "writer":
                self.writer(sender)
            case "bridge":
                if sender.cluster != self._bridge:
                    raise NotAllowed(
                        f"only nodes of cluster {self._bridge!r} may change its log, and this one speaks for "
                        f"{sender.cluster!r}"
                    )

    def check_named(self, request: Ask[object], sender: Sender) -> None:
        """Raise NotAllowed unless a node may have to do with what its request names."""
        permission = request.permission
        if isinstance(request, MemberAsk) and not self.speaks_for(sender, request.cluster):
            what = "key" if isinstance(request, KeyAsk) else "lease"
            raise NotAllowed(
                f"node {sender.node} of cluster {sender.cluster!r} asks for a {what} of {request.cluster!r:.100}, and "
                "is no member"
            )
        topics: Sequence[str] = getattr(request, "topics", ())
        is_named = bool(topics) or getattr(request, "regex", None) is not None
        if permission.topics == "wanted" or (permission.topics == "named" and is_named):
            self.check_topics(sender, topics)
        group: str | None = getattr(request, "group", None)
        is_theirs = permission.owns == "group" or permission.topics == "queue"
        if is_theirs and group is not None and group.startswith(GROUP):
            queue = group.removeprefix(GROUP)
            if not self.may_read(sender, queue):
                raise NotAllowed(
                    f"nodes of cluster {sender.cluster!r} may not subscribe to {queue!r}, and so have nothing to do "
                    f"with the queue of that name at the bridge {self._bridge!r}"
                )

    def _check_reader(self, sender: Sender) -> None:
        if self._readers is not None and sender.cluster not in self._readers:
            raise NotAllowed(f"nodes of cluster {sender.cluster!r} may not read from the bridge {self._bridge!r}")

    def _check_subscriber(self, sender: Sender) -> None:
        self._check_reader(sender)
        if not self._is_named(sender):
            peer = self._peer(sender)
            if not peer.other_realm and peer.identity.certificate.rights.subscribes == ():
                raise self._refused(sender, "any topic")

    def _is_named(self, sender: Sender) -> bool:
        """Return whether a node may have all that is in the log, because the bridge was started so."""
        return self._readers is not None or sender.cluster == self._bridge

    def _peer(self, sender: Sender) -> Peer:
        peer = self._find_peer(sender.node)
        if peer is None:
            raise NotAllowed(f"what node {sender.node} may do is not known any more: it is not linked")
        return peer

    def _refused(self, sender: Sender, topics: str) -> NotAllowed:
        return NotAllowed(
            f"nodes of cluster {sender.cluster!r} may not subscribe to {topics}, and so not read that from the bridge "
            f"{self._bridge!r}: name topics that they may, by the option subscribe or --topic, or have the bridge "
            f"started with --reader {sender.cluster}"
        )

    def may_read_all(self, sender: Sender) -> bool:
        """Return whether a subscriber may read all topics; raise NotAllowed if it is not linked any more."""
        return self._is_named(sender) or self._peer(sender).may_receive(">")

    def may_read(self, sender: Sender, topic: str) -> bool:
        """Return whether a subscriber may read a topic; raise NotAllowed if it is not linked any more."""
        return self._is_named(sender) or self._peer(sender).may_receive(topic)

    def check_topics(self, sender: Sender, topics: Sequence[str]) -> None:
        """Make sure that a subscriber may have the events of topics.

        Args:
            sender: the subscriber.
            topics: patterns; none for all topics.

        Raises:
            NotAllowed: it may not have the events of one of them.
        """
        if self.may_read_all(sender):
            return
        if not topics:
            raise self._refused(sender, "all topics")
        peer = self._peer(sender)
        for pattern in topics:
            if not peer.may_receive(pattern):
                raise self._refused(sender, repr(pattern))

    def may_publish(self, sender: Sender, topic: str) -> bool:
        """Return whether a node of this realm may publish on a topic."""
        peer = self._find_peer(sender.node)
        return peer is not None and not peer.other_realm and peer.identity.certificate.rights.may_publish(topic)

    def speaks_for(self, sender: Sender, cluster: str) -> bool:
        """Return whether a node speaks for a cluster, or is a member of it."""
        return sender.cluster == cluster or any(sender.node == member.node for member in self._node.members(cluster))

    def is_there(self, cluster: str, node: str) -> bool:
        """Return whether a node of this site is linked, or one of another site a member of a cluster.

        A node that has died is linked for another second, one that is cut off or frozen for some seconds.
        """
        return self._find_peer(NodeId(node)) is not None or any(
            node == member.node and member.site != self._node.site for member in self._node.members(cluster)
        )

    def writer(self, sender: Sender) -> Writer:
        """Return what a node may write; raise NotAllowed if that is nothing."""
        self._check_reader(sender)
        return Writer(sender, self._find_peer(sender.node))


def check_owner(kind: Kind, name: str, *, owner: str, caller: str) -> None:
    """Raise NotAllowed if a group or query belongs to another cluster than that of the node that names it."""
    if owner != caller:
        raise NotAllowed(
            f"{kind} {name!r} belongs to cluster {owner!r}, and this node speaks for {caller!r}: take another name, or "
            f"have it given to that cluster by 'iris bridge transfer --{kind} {name} --to {caller}'"
        )
