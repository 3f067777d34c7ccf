"""Roster: which member serves what, as users see it, with a queue of changes for each watcher.  Sans-IO.

It is made from the changes that the membership machine reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, Literal, final

import trio
from msgspec import Struct, structs

from iris.cluster.swim import Changed, MemberState, NodeRecord
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup, checkpointed

MemberStatus = Literal["alive", "suspected", "draining"]
ChangeKind = Literal["joined", "left", "suspected", "recovered", "draining", "lost", "load"]


@final
class Member(Struct, frozen=True, kw_only=True):
    """One member of a cluster, as this node sees it.

    Attributes:
        node: id of the node: one boot of one process.
        speaks_for: the cluster that the node's credential is of.
        site: site of the node.  Empty if it is at none.
        addresses: URLs at which it listens.
        status: ``alive``, ``suspected`` (it answers nobody just now) or ``draining`` (it takes no new work).
        queue_delay: seconds that work waited there, by its last report.
    """

    node: NodeId
    speaks_for: str
    site: str
    addresses: tuple[str, ...]
    status: MemberStatus
    queue_delay: float = 0.0


@final
class NodeInfo(Struct, frozen=True, kw_only=True):
    """One node of this node's site, whether it serves a cluster or none."""

    node: NodeId
    speaks_for: str
    """The cluster that the node's credential is of."""
    site: str
    addresses: tuple[str, ...]
    status: Literal["alive", "suspected"]
    clusters: tuple[str, ...]
    """The clusters that it serves, sorted."""


@final
class Departure(Struct, frozen=True, kw_only=True):
    """A node that was here and is no more."""

    node: NodeInfo
    """The node as it was seen last."""
    reason: str
    """``left``: it said goodbye; ``refused``: nobody listens where it did; ``silent``: it answers nobody; ``expelled``:
    its certificates do not hold any more."""
    at: float
    """Time at which this node noticed, on ``trio.current_time()``'s clock."""


@final
class Change(Struct, frozen=True, kw_only=True):
    """Something that happened to a member of a cluster."""

    kind: ChangeKind
    cluster: str
    member: Member


@final
class Roster:
    """The members of every cluster, as users see them."""

    def __init__(self) -> None:
        self._clusters: dict[str, dict[NodeId, Member]] = {}
        self._serves: dict[NodeId, frozenset[str]] = {}
        self._nodes: dict[NodeId, NodeInfo] = {}

    def __repr__(self) -> str:
        return f"<Roster: {len(self._serves)} nodes, {len(self._clusters)} clusters>"

    def clusters(self) -> tuple[str, ...]:
        """Return the names that somebody serves, sorted."""
        return tuple(sorted(self._clusters))

    def members(self, cluster: str) -> tuple[Member, ...]:
        """Return the members of a cluster, the suspected and the draining ones included, by node id."""
        return tuple(member for _, member in sorted(self._clusters.get(cluster, {}).items()))

    def nodes(self) -> tuple[NodeInfo, ...]:
        """Return every node, the suspected ones included, by id."""
        return tuple(node for _, node in sorted(self._nodes.items()))

    def node(self, node: NodeId) -> NodeInfo | None:
        """Return one node; None if it is not here."""
        return self._nodes.get(node)

    def apply(self, changed: Changed) -> list[Change]:
        """Receive a change of a node's state or record; return what it means for each cluster."""
        gone = changed.state in (MemberState.DEAD, MemberState.LEFT)
        before = self._serves.get(changed.node, frozenset())
        now: frozenset[str] = frozenset() if gone else frozenset(entry.name for entry in changed.record.clusters)
        changes: list[Change] = []
        for cluster in sorted(before - now):
            member = self._clusters[cluster].pop(changed.node)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
            kind: ChangeKind = "lost" if changed.state is MemberState.DEAD else "left"
            changes.append(Change(kind=kind, cluster=cluster, member=member))
        for cluster in sorted(now):
            changes += self._update(cluster, _member(changed, cluster))
        if gone:
            self._serves.pop(changed.node, None)
            self._nodes.pop(changed.node, None)
        else:
            self._serves[changed.node] = now
            self._nodes[changed.node] = _node(changed)
        return changes

    def load(self, node: NodeId, queue_delay: float) -> list[Change]:
        """Note a node's queue delay; return the changes, where it is another one by more than a tenth of a second."""
        changes: list[Change] = []
        for cluster in sorted(self._serves.get(node, ())):
            held = self._clusters[cluster][node]
            if abs(held.queue_delay - queue_delay) > 0.1:
                member = self._clusters[cluster][node] = structs.replace(held, queue_delay=queue_delay)
                changes.append(Change(kind="load", cluster=cluster, member=member))
        return changes

    def _update(self, cluster: str, member: Member) -> list[Change]:
        members = self._clusters.setdefault(cluster, {})
        held = members.get(member.node)
        if held is not None:
            member = structs.replace(member, queue_delay=held.queue_delay)
        members[member.node] = member
        if held is None:
            return [Change(kind="joined", cluster=cluster, member=member)]
        if held.status == member.status:
            return []
        kind: ChangeKind = "recovered" if member.status == "alive" else member.status
        return [Change(kind=kind, cluster=cluster, member=member)]


def _member(changed: Changed, cluster: str) -> Member:
    record: NodeRecord = changed.record
    draining = any(entry.draining for entry in record.clusters if entry.name == cluster)
    status: MemberStatus = "suspected" if changed.state is MemberState.SUSPECT else "draining" if draining else "alive"
    return Member(node=record.node, speaks_for=record.name, site=record.site, addresses=record.addresses, status=status)


def _node(changed: Changed) -> NodeInfo:
    record = changed.record
    return NodeInfo(
        node=record.node,
        speaks_for=record.name,
        site=record.site,
        addresses=record.addresses,
        status="suspected" if changed.state is MemberState.SUSPECT else "alive",
        clusters=tuple(sorted(entry.name for entry in record.clusters)),
    )


_MAX_WAITING: Final = 65_536


@final
class WatchedChanges:
    """Changes of one cluster that wait for the reader of a watch: the membership's end of it."""

    def __init__(self, cluster: str, present: Iterable[Change]) -> None:
        self.cluster: Final = cluster
        self.missed = 0
        self._changes: deque[Change] = deque(maxlen=_MAX_WAITING)
        self._news = Wakeup()
        self._ended = False
        for change in present:
            self.add(change)

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change) -> None:
        """Queue a change."""
        self.missed += len(self._changes) == _MAX_WAITING
        self._changes.append(change)
        self._news.wake()

    def end(self) -> None:
        """Let the reader take what waits, and end its iteration then."""
        self._ended = True
        self._news.wake()

    async def pop(self) -> Change:
        """Wait for a change.  Cancelling loses none.

        Raises:
            StopAsyncIteration: none waits, and no more will come.
        """
        if self._changes:
            await trio.lowlevel.checkpoint()  # changes are rare: each may let others run, and be cancelled
        while not self._changes:
            if self._ended:
                raise StopAsyncIteration
            await self._news.wait()
        return self._changes.popleft()


@final
class Watch:
    """Changes of one cluster, as an async iterator for one task.  Made by ``node.watch``.

    It shows members at the node's own site only.  Gateways tell which others can be asked now, as ``node.members``
    returns them, and not what happens to each.  Changes come in the order in which this node saw them; other nodes may
    see another one.

    It ends when the node is closed.

    Cancelling a wait loses no change.  A reader that leaves 65,536 changes waiting loses the oldest, counted in
    ``missed``; ``node.members`` always has the present state.
    """

    def __init__(self, changes: WatchedChanges) -> None:
        self.cluster: Final = changes.cluster
        self._changes = changes

    def __repr__(self) -> str:
        return f"<Watch of {self.cluster}: {len(self._changes)} changes waiting>"

    @property
    def missed(self) -> int:
        """Changes that the reader has lost."""
        return self._changes.missed

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    @checkpointed
    async def __anext__(self) -> Change:
        return await self._changes.pop()
