"""Permissions: rights to call each operation of a bridge.  One table has them; docs/reference/spark.md prints it.

Four things are checked, in this order: whether the bridge was started for certain readers only; what the certificate
of the caller's cluster permits at all; whether the caller may have the events of the topics, or of the queue, that it
names; and whether the named group or query belongs to the caller's cluster.  It belongs to the cluster that has named
it first, and the log remembers that: so a caller that is refused for its rights has claimed nothing.  An operation
without a row is refused to all.

A reader has to be permitted to subscribe to what it reads.  The option ``--reader`` of a bridge overrides that:
clusters that are named so get all that is in its log.  The numbers, sizes and times of events are for every reader, as
writers and monitoring need them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, cast, final

from iris.cluster.mesh import Peer
from iris.kernel.errors import NotAllowed, RemoteError
from iris.kernel.names import NodeId, is_known_cluster
from iris.node.node import Node
from iris.patterns.messages import Sender
from iris.patterns.pubsub.interest import is_pattern
from iris.patterns.pubsub.queues import GROUP
from iris.security.identity import MAX_PATTERNS
from iris.spark_bridge.server.sink_commits import Writer

Kind = Literal["group", "query"]
"""Kinds of names that belong to a cluster; also the field of an operation's payload with the name."""

Caller = Literal["reader", "subscriber", "writer", "bridge", "member"]

Topics = Literal["none", "named", "wanted", "queue", "written"]
"""Topics that a caller needs rights to.

- none: the operation moves no events.
- named: topics that the payload names, to subscribe; without any the answer has numbers alone.
- wanted: the same, and without any all topics.
- queue: topic of the queue that the payload names, to subscribe.
- written: topics of the rows that the caller writes, to publish.

An operation that owns a group needs the right to the topic of a queue besides, if the group is a queue's
(``queue/NAME``).
"""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Permission:
    """Permission for one operation: the rights that its caller needs."""

    caller: Caller
    topics: Topics = "none"
    owns: Kind | None = None
    """Kind of a name in the payload that must belong to the caller's cluster; a free name belongs to it from now on."""


PERMISSIONS: Final[Mapping[str, Permission]] = {
    "shards": Permission("reader"),
    "offsets": Permission("reader", "named"),
    "gaps": Permission("subscriber", "named"),
    "damage": Permission("reader", "named"),
    "times": Permission("reader"),
    "status": Permission("reader"),
    "copies": Permission("reader"),
    "tier": Permission("reader"),
    "cursors": Permission("reader"),
    "read": Permission("subscriber", "wanted"),
    "locate": Permission("subscriber"),  # a caller that may not have all events gets no file
    "pin": Permission("subscriber", owns="group"),
    "move": Permission("subscriber", owns="group"),
    "consume": Permission("subscriber", "wanted", owns="group"),
    "take": Permission("subscriber", "queue", owns="group"),
    "queue": Permission("subscriber", "queue"),
    "peek": Permission("subscriber", "queue", owns="group"),
    "purge": Permission("subscriber", "queue", owns="group"),
    "stage": Permission("writer", "written", owns="query"),
    "commit": Permission("writer", "written", owns="query"),
    "abort": Permission("writer", owns="query"),
    "drop": Permission("bridge"),
    "transfer": Permission("bridge"),
    "trim": Permission("bridge"),
    "divide": Permission("bridge"),
    "windows": Permission("bridge"),
    "position": Permission("bridge"),
    "lease": Permission("member"),
    "renew": Permission("member"),
    "release": Permission("member"),
    "key.claim": Permission("member"),
    "key.note": Permission("member"),
    "key.record": Permission("member", "written"),
    "key.release": Permission("member"),
}
"""Every operation that a member of a bridge answers at the bridge's cluster and at its own."""


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

    def check(self, operation: str, sender: Sender) -> Permission:
        """Return the row of an operation, if a node may call it as far as that does not depend on what it names.

        Raises:
            NotAllowed: it may not, or nobody may, as there is no row.
        """
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
        return permission

    def check_named(self, permission: Permission, sender: Sender, payload: object) -> None:
        """Make sure that a node may have to do with what the payload of an operation names.

        Raises:
            NotAllowed: it may not.
            RemoteError: topics are no patterns, or a member's payload names no cluster.
        """
        fields = cast("dict[str, object]", payload) if isinstance(payload, dict) else {}
        if permission.caller == "member":
            cluster = fields.get("cluster")
            if not isinstance(cluster, str) or not is_known_cluster(cluster):
                raise RemoteError("bad_request", f"cluster is {cluster!r:.100}: use a name")
            if not self.speaks_for(sender, cluster):
                what = "key" if "key" in fields else "lease"
                raise NotAllowed(
                    f"node {sender.node} of cluster {sender.cluster!r} asks for a {what} of {cluster!r:.100}, and is no"
                    " member"
                )
        if permission.topics in ("named", "wanted"):
            is_wanted = permission.topics == "wanted" or fields.get("topics") is not None
            topics = patterns_untrusted(fields) if is_wanted else []
            if topics or permission.topics == "wanted" or fields.get("regex") is not None:
                self.check_topics(sender, topics)
        group = fields.get("group") if permission.owns == "group" or permission.topics == "queue" else None
        if isinstance(group, str) and group.startswith(GROUP):
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
        """Return whether a subscriber may have the events of all topics.

        Raises:
            NotAllowed: it is not linked any more.
        """
        return self._is_named(sender) or self._peer(sender).may_receive(">")

    def may_read(self, sender: Sender, topic: str) -> bool:
        """Return whether a subscriber may have the events of a topic.

        Raises:
            NotAllowed: it is not linked any more.
        """
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
        """Return what a node may write.

        Raises:
            NotAllowed: it may write nothing.
        """
        self._check_reader(sender)
        return Writer(sender, self._find_peer)


def patterns_untrusted(fields: Mapping[str, object]) -> list[str]:
    """Return the patterns of topics that a payload names.

    Raises:
        RemoteError: they are none, or too many.
    """
    value = fields.get("topics")
    patterns = cast("list[object]", value) if isinstance(value, list) else None
    if patterns is None or len(patterns) > MAX_PATTERNS or not all(map(is_pattern, patterns)):
        raise RemoteError("bad_request", f"topics: use a list of topic patterns, {MAX_PATTERNS} at most")
    return cast("list[str]", patterns)


def check_owner(kind: Kind, name: str, *, owner: str, caller: str) -> None:
    """Make sure that a group or query belongs to the node that names it.

    Raises:
        NotAllowed: it belongs to another cluster.
    """
    if owner != caller:
        raise NotAllowed(
            f"{kind} {name!r} belongs to cluster {owner!r}, and this node speaks for {caller!r}: take another name, or "
            f"have it given to that cluster by 'iris bridge transfer --{kind} {name} --to {caller}'"
        )
