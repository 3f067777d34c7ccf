"""Relayed connection (circuit relay): frames travel through one other node of the site, because neither end can dial.

A frame leaves as a message over the link to a node that both ends are linked to, which hands it on as it is.  The
session is between the two ends, and the relay cannot read it.  To the mesh it is a connection like any other
(``OutgoingConnection``).  Its address is ``via://NODE``, which a node that can only dial out announces in its record.
"""

from __future__ import annotations

from typing import Final, Protocol, final

import trio

from iris.kernel.buffer_pool import give_back
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.link import Link
from iris.kernel.names import NodeId, is_node_id
from iris.kernel.transport import ConnectionUser
from iris.kernel.wire import carried_by, kinds


class RelayedObserver:
    """The lifetime of a connection that has no socket: frames leave over the link to another node.

    Args:
        user: see ``Transport.dial``.
    """

    def __init__(self, user: ConnectionUser) -> None:
        self.closed = False
        self._user = user

    def _link(self) -> Link | None:
        """Return the link that frames leave over, if there still is one."""
        raise NotImplementedError

    def _ended(self) -> None:
        """The connection has ended: its maker keeps it no more."""
        raise NotImplementedError

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
            self._user.connection_broken()

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""
        if not self.closed:
            self.closed = True
            self._ended()


SCHEME: Final = "via://"


def via_url(node: NodeId) -> str:
    """Return the address of a node that is reached through others."""
    return SCHEME + node


def is_via_url(url: str) -> bool:
    """Return whether an address leads through another node."""
    return url.startswith(SCHEME)


def parse_via_url(url: str) -> NodeId:
    """Return the node of an address, perhaps a peer's; raise ConfigError if it is not of that form."""
    node = url.removeprefix(SCHEME)
    if not is_via_url(url) or not is_node_id(node):
        raise ConfigError(f"{url!r} is not the address of a node that is reached through others: {SCHEME}NODE")
    return NodeId(node)


class RelayedMaker(Protocol):
    """The maker of relayed connections."""

    def link_to(self, helper: NodeId) -> Link | None:
        """Return the link to a helper, if there still is one.  Asked with each frame."""
        ...

    def route_closed(self, route: RelayedConnection) -> None:
        """A connection has ended.  Called once."""
        ...


@final
class RelayedConnection(RelayedObserver):
    """A connection to one node through another one, the helper.

    Args:
        maker: the maker of this connection.
        user: see ``Transport.dial``.
    """

    def __init__(self, target: NodeId, helper: NodeId, maker: RelayedMaker, user: ConnectionUser) -> None:
        super().__init__(user)
        self._maker = maker
        self.target: Final = target
        self.helper: Final = helper
        self._target = bytes.fromhex(target)

    def _link(self) -> Link | None:
        return self._maker.link_to(self.helper)

    def _ended(self) -> None:
        self._maker.route_closed(self)

    def __repr__(self) -> str:
        return f"<RelayedConnection to {self.target[:8]} through {self.helper[:8]}>"

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        link = self.open_link()
        if not link.has_room():
            return False
        try:
            link.post_carrying(kinds.Forward(self._target, bytes(frame)), len(frame), carried_by(len(frame)))
        except NotSent:
            return False
        give_back(frame)
        return True

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``."""
        link = self.open_link()
        if link.has_room():
            await trio.lowlevel.checkpoint()
        else:
            await link.wait_room()
        self.open_link()
