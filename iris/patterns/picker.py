"""Interface of the patterns to the cluster layer: the members of a cluster, and the one to ask.

``iris.cluster.membership.Membership`` is the directory, and has an ``iris.cluster.balancing.Balancer`` as the picker of
each cluster.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

import trio

from iris.cluster.balancing import AtSite
from iris.cluster.mesh import Mesh
from iris.kernel.errors import NoSuchCluster
from iris.kernel.names import OWN, NodeId, split_address

_MOST_COMPARED: Final = 256
"""Names that a mistyped one is compared with, about 1 us each; a program may ask in a loop."""
_MOST_NAMED: Final = 5
_MOST_LISTED: Final = 1024
"""Clusters of other sites that an error looks through: these decide how many they export."""

_AGAIN: Final = 0.25
"""Seconds after which it is looked again whether a member may still come in the place of one that has left."""

_NOT_LINKED: Final = (
    "if no cluster of that realm can be reached, its gateways and those of this site are not linked: the logs of both, "
    "and 'iris gateway --status', say why; the clocks of the two may differ by more than 300 s"
)


class Picker(Protocol):
    """Picks among the members of one cluster, by the outcomes of earlier requests."""

    def pick(
        self,
        *,
        exclude: Collection[NodeId] = (),
        key: str | None = None,
        prefer: NodeId | AtSite | None = None,
        now: float = ...,
    ) -> NodeId | None:
        """Return the member to ask next, or None if there is none outside ``exclude``."""
        ...

    def has_other(self, exclude: Collection[NodeId]) -> bool:
        """Return whether there is a member outside ``exclude`` to ask."""
        ...

    def started(self, node: NodeId) -> None:
        """Count a request as outstanding at ``node``."""
        ...

    def finished(
        self, node: NodeId, latency: float, *, ok: bool, answered: bool | None = ..., now: float = ...
    ) -> None:
        """Count it as ended after ``latency`` seconds; see ``Balancer.finished``."""
        ...

    def may_repeat(self, now: float, *, forced: bool = ...) -> bool:
        """Return whether a request may be made once more, and count it."""
        ...


class MemberDirectory(Protocol):
    """Directory: from the name of a cluster to its picker."""

    def picker(self, cluster: str) -> Picker | None:
        """Return the picker of a cluster, or None if nobody serves it."""
        ...

    def had_members(self, cluster: str) -> bool:
        """Return whether a cluster had members a moment ago, see ``Config.absence_patience``, if it has none now."""
        ...

    def awaits_successor(self, cluster: str) -> bool:
        """Return whether the last member of a cluster has just left in order, so that another may come in its place."""
        ...

    def is_silent(self, cluster: str) -> bool:
        """Return whether a member of a cluster gets no work only because it has said nothing for a while."""
        ...

    async def wait_news(self) -> None:
        """Wait until the members of some cluster may have changed."""
        ...

    def clusters(self, at_most: int | None = None) -> Sequence[str]:
        """Return the name of every cluster that this node may ask and that has members, sorted.

        Args:
            at_most: clusters of other sites; None: all.
        """
        ...

    def member_ids(self, cluster: str) -> Sequence[NodeId]:
        """Return every member of a cluster that is not known to be dead, in no particular order."""
        ...

    def weight(self, cluster: str, node: NodeId) -> int:
        """Return for how many members of a cluster a node stands, as far as it has said so; 1 for itself alone."""
        ...


class MemberHealth(Protocol):
    """State of the nodes of this site, as ``iris.cluster.membership.Membership`` knows it."""

    def is_suspected(self, node: NodeId) -> bool:
        """Return whether a node is to get no new work for now.  Called for each event and broadcast; does not block."""
        ...


async def wait_reachable(directory: MemberDirectory, cluster: str, deadline: float) -> Picker | None:
    """Return the picker of a cluster, once a member can be asked if all are suspected; None if it has none.

    It does not wait for members to which connections broke.  Others live perhaps, and are too slow to say so.  It waits
    a moment for who comes in the place of the last member that has left in order.
    """
    with trio.move_on_at(deadline):
        while directory.awaits_successor(cluster):
            with trio.move_on_after(_AGAIN):
                await directory.wait_news()
        while (picker := directory.picker(cluster)) is not None and not picker.has_other(()):
            if not directory.is_silent(cluster):
                break
            await directory.wait_news()
    return directory.picker(cluster)


def nobody_serves(cluster: str, mesh: Mesh, directory: MemberDirectory) -> NoSuchCluster:
    """Return the error for a request to a cluster without members, as seen by the node of that mesh.

    What there is in its place is a note of the error, which tracebacks and the command show.  It is no part of the
    text, because handlers and doors pass that on to those who may not know what this node knows.
    """
    alias, name, _ = split_address(cluster)
    realm = mesh.identity.alias(alias) if alias else None
    if alias and realm is None:
        return NoSuchCluster(f"no realm is trusted here by the name of {alias!r}: nobody serves {cluster!r}")
    if realm is not None and not realm.may_use(name):
        return NoSuchCluster(f"realm {alias!r} does not export the cluster {name!r}, or it is not imported here")
    trouble = mesh.trouble()
    error = NoSuchCluster(f"no reachable member serves the cluster {cluster!r}{trouble}")
    if realm is not None:
        error.add_note(_NOT_LINKED)
        return error
    hint = "" if trouble else known_instead(cluster.partition("@")[0], directory.clusters(_MOST_LISTED))
    if hint:
        error.add_note(hint)
    return error


def known_instead(cluster: str, clusters: Iterable[str]) -> str:
    """Return the text about the clusters that there are, for a caller of another one; "" if that one is there."""
    names = [name for name in clusters if not name.startswith(OWN)]
    if cluster in names:
        return ""  # it has members, of which none can be asked now
    if not names:
        return "this node knows of no cluster: 'iris doctor' says whether it is linked to others"
    alike = islice((name for name in names if abs(len(name) - len(cluster)) <= 2), _MOST_COMPARED)
    close = difflib.get_close_matches(cluster, alike, n=_MOST_NAMED)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}? 'iris clusters' shows all"
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"this node knows of {', '.join(map(repr, names[:_MOST_NAMED]))}{rest}: see 'iris clusters'"
