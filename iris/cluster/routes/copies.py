"""Copy route: one sealed copy of an event for all nodes behind the same gateway, who divide it among them.

A copy is sealed for a set of nodes (``iris.security.channel.sender_key``) and names them by site.  A gateway that hands
it on sends one message over each link that leads to some of them, so it crosses a link between sites once.  To the
publisher's queue this is a connection like any other; it has no end, and finds the best route anew for each frame.

A site can be without a route for a moment, while gateways replace each other.  Its copies are set aside until there is
one, as a link to one of its nodes waits for a route, and copies for other sites go on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, final

import trio

from iris.cluster.routes.copies_aside import CopiesAside, Waiting
from iris.cluster.routes.gateway import AHEAD, HOPS, PAUSE, CopyPaths
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.link import Link
from iris.kernel.names import NodeId, is_site
from iris.kernel.wire import ELEMENT, kinds, node_of

NODE: Final = 16

ANYBODY: Final = bytes(NODE)
"""Stands for the receivers of a copy where one node is named."""

STALLED: Final = 0.25
"""Seconds without progress after which a link holds up no copies that go over others."""

Targets = Mapping[str, bytes]
"""Ids of nodes by site, one after the other."""


def targets_untrusted(field: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Read to whom a copy goes, each node once; raise RemoteProtocolError if it does not say so."""
    targets: dict[str, dict[bytes, None]] = {}
    for site, nodes in field:
        if not is_site(site) or len(nodes) % NODE:
            raise RemoteProtocolError("a copy names a site and nodes of 16 bytes")
        targets.setdefault(site, {}).update(dict.fromkeys(split_nodes(nodes)))
    return {site: b"".join(nodes) for site, nodes in targets.items()}


def split_nodes(nodes: bytes) -> Iterable[bytes]:
    """Yield the ids in a row of them."""
    return (nodes[at : at + NODE] for at in range(0, len(nodes), NODE))


def copy_message(hops: int, source_site: str, source: bytes, targets: Targets, frame: bytes) -> tuple[kinds.Copy, int]:
    """Return the form on the wire, and its size."""
    size = len(frame) + sum(3 * ELEMENT + len(nodes) for nodes in targets.values())
    return kinds.Copy(hops, source_site, source, tuple(targets.items()), frame), size


@final
class CopyRoute:
    """The connection by which the copies of one node leave.

    Args:
        own: this node and its site.
        paths: the routes that lead to other sites.
    """

    def __init__(self, own: tuple[str, NodeId], paths: CopyPaths) -> None:
        self._targets: Targets = {}
        """Receivers of the frame that is offered next."""
        self.lost: Counter[str] = Counter()
        """Copies that did not leave, one for each node, by reason."""
        self._aside: Final = CopiesAside()
        self._own = (own[0], bytes.fromhex(own[1]))
        self._paths = paths
        self._full: Link | None = None
        self._paused_until = -math.inf
        self.pause_end = -math.inf
        """Time at which the last pause ends, or would have ended: a queue that waits until then has not stalled."""
        self._resumed = trio.lowlevel.ParkingLot()
        self._emptied = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<CopyRoute from {self._own[0]}>"

    def address(self, targets: Targets) -> None:
        """Name the receivers of the frame that is offered next, and of those after it."""
        self._targets = targets

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``.  What no route leads to is set aside, or counted in ``lost``."""
        if self._paused_until > trio.current_time():
            return False
        hops: dict[Link, dict[str, bytes]] = {}
        homeless: list[str] = []
        for site, nodes in self._targets.items():
            link = self._link_to(site)
            if link is None:
                homeless.append(site)
            else:
                hops.setdefault(link, {})[site] = nodes
        for link in hops:
            if link.waiting_bytes > AHEAD and not link.is_stalled(STALLED):
                self._full = link
                return False
        for site in homeless:
            self._set_aside(site, self._targets[site], bytes(frame))
        if self._aside.sites:
            self.routes_changed()  # those before this one go first
        for link, targets in hops.items():
            self._post(link, targets, bytes(frame))
        return True

    def _link_to(self, site: str) -> Link | None:
        route = self._paths.path(site)
        return None if route is None else self._paths.link_to(route.neighbour)

    def _post(self, link: Link, targets: Targets, frame: bytes) -> None:
        message, size = copy_message(HOPS, *self._own, targets, frame)
        try:
            link.post(message, size)
        except NotSent:
            self.lost["link full"] += sum(len(nodes) // NODE for nodes in targets.values())

    def _set_aside(self, site: str, nodes: bytes, frame: bytes) -> None:
        # A frame of before may be sealed for a node that was given up since: nobody would say again that it is gone.
        wanted = b"".join(one for one in split_nodes(nodes) if self._paths.is_peer(node_of(one)))
        copy, _ = copy_message(HOPS, *self._own, {site: wanted}, frame)
        lost = len(nodes) - len(wanted)
        if wanted and not self._aside.add(site, Waiting(trio.current_time(), "", wanted, copy)):
            lost = len(nodes)
        if lost:
            self.lost["no route"] += lost // NODE

    def routes_changed(self) -> None:
        """Send what was set aside for sites to which there is a route again."""
        for site in self._aside.sites:
            link = self._link_to(site)
            if link is not None:
                for waiting in self._aside.pop(site, math.inf):
                    self._post(link, {site: waiting.nodes}, waiting.copy.frame)
        self._none_aside()

    def forget(self, site: str, node: NodeId) -> None:
        """Count as lost what was set aside for a node: it is given up."""
        gone = bytes.fromhex(node)
        for waiting in self._aside.pop(site, math.inf):
            others = b"".join(one for one in split_nodes(waiting.nodes) if one != gone)
            if len(others) != len(waiting.nodes):
                self.lost["no route"] += 1
            if others:
                self._aside.add(site, waiting._replace(nodes=others))
        self._none_aside()

    def _none_aside(self) -> None:
        if not self._aside.sites:
            self._emptied.unpark_all()

    async def wait_sent(self) -> None:
        """Wait until nothing is set aside."""
        while self._aside.sites:
            await self._emptied.park()

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``."""
        full, self._full = self._full, None
        if self._paused_until > trio.current_time():
            with trio.move_on_at(self._paused_until):
                await self._resumed.park()
        elif full is not None:
            with trio.move_on_after(STALLED):
                await full.wait_drained(AHEAD // 2)
        else:
            await trio.lowlevel.checkpoint()

    def pause(self) -> None:
        """A gateway on the path has much waiting: send nothing until ``resume``, for ``PAUSE`` seconds at most."""
        self._paused_until = self.pause_end = trio.current_time() + PAUSE

    def resume(self) -> None:
        """Resume sending."""
        self._paused_until = -math.inf
        self._resumed.unpark_all()

    def close(self) -> None:
        """See ``OutgoingConnection.close``: the routes are not its own, and stay."""
