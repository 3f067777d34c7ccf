"""Relayed connection (circuit relay): frames travel through one other node of the site, because neither end can dial.

A frame leaves as a message over the link to a node that both ends are linked to, which hands it on as it is.  The
session is between the two ends, and the relay cannot read it.  To the mesh it is a connection like any other
(``OutgoingConnection``).  Its address is ``via://NODE``, which a node that can only dial out announces in its record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.link import Link
from iris.kernel.names import NodeId, is_node_id
from iris.kernel.wire import carried_by, kinds


class RelayedObserver:
    """The lifetime of a connection that has no socket: frames leave over the link to another node.

    Args:
        link: returns the link that frames leave over, if there still is one.
        on_broken: called when the connection breaks, for its user.
        on_closed: called when it ends, for its maker.
    """

    def __init__(
        self, link: Callable[[], Link | None], on_broken: Callable[[], None], on_closed: Callable[[], None]
    ) -> None:
        self.closed = False
        self._link = link
        self._on_broken = on_broken
        self._on_closed = on_closed

    def open_link(self) -> Link:
        """Return the link that frames leave over.

        Raises:
            trio.ClosedResourceError: the connection has ended, or that link.
        """
        link = None if self.closed else self._link()
        if link is None:
            raise trio.ClosedResourceError("this way out is closed")
        return link

    def break_off(self) -> None:
        """Close the connection, and notify its user: the nodes between are gone, or do not reach the node."""
        if not self.closed:
            self.close()
            self._on_broken()

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""
        if not self.closed:
            self.closed = True
            self._on_closed()


SCHEME: Final = "via://"


def via_url(node: NodeId) -> str:
    """Return the address of a node that is reached through others."""
    return SCHEME + node


def is_via_url(url: str) -> bool:
    """Return whether an address leads through another node."""
    return url.startswith(SCHEME)


def parse_via_url(url: str) -> NodeId:
    """Return the node of an address, which may come from a peer.

    Raises:
        ConfigError: it is not of that form.
    """
    node = url.removeprefix(SCHEME)
    if not is_via_url(url) or not is_node_id(node):
        raise ConfigError(f"{url!r} is not the address of a node that is reached through others: {SCHEME}NODE")
    return NodeId(node)


@final
class RelayedConnection(RelayedObserver):
    """A connection to one node through another one, the helper.

    Args:
        link: returns the link to the helper, if there still is one.
    """

    def __init__(
        self,
        target: NodeId,
        helper: NodeId,
        link: Callable[[], Link | None],
        on_broken: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        super().__init__(link, on_broken, on_closed)
        self.target: Final = target
        self.helper: Final = helper
        self._target = bytes.fromhex(target)

    def __repr__(self) -> str:
        return f"<RelayedConnection to {self.target[:8]} through {self.helper[:8]}>"

    def send_nowait(self, frame: bytes) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        link = self.open_link()
        if not link.has_room():
            return False
        try:
            link.post_carrying(kinds.Forward(self._target, frame), len(frame), carried_by(len(frame)))
        except NotSent:
            return False
        return True

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``."""
        link = self.open_link()
        if link.has_room():
            await trio.lowlevel.checkpoint()
        else:
            await link.wait_room()
        self.open_link()
