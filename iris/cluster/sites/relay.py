"""Relay: what passes a node on the way between sites, before anything of it is decoded and after.

Every node at a named site has one from before its mesh on.  By itself it takes frames for this node out of the messages
that carry them, and refuses whatever is for others: the node is no gateway.  A gateway that is opened on the node
serves the relay with its forwarding, once in the life of the node.
"""

from __future__ import annotations

from typing import Final, Protocol, final

from iris.cluster.directory import Hop
from iris.cluster.mesh import Inner, Peer, PeerTable
from iris.cluster.routes import Flows, carrier_of, open_envelope, targets_untrusted
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.link import Link
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds, node_of


class SiteForwarder(Protocol):
    """The forwarding of a gateway, for what the nodes of its own site send and for what is sent to them.

    Plain calls in the task that reads; none may block.
    """

    def examine(self, peer: Peer, batch: bytes | memoryview) -> bool:
        """Forward a batch as it is, if it may be; see ``FrameFilter.examine``."""
        ...

    def forward(self, peer: Peer, message: kinds.Carried) -> None:
        """Forward what is for another node.  Raises RemoteProtocolError."""
        ...

    def divide(self, peer: Peer, message: kinds.Copy) -> None:
        """Forward events for several nodes, and deliver those for this one.  Raises RemoteProtocolError."""
        ...

    def routes_changed(self) -> None:
        """Send on what waits for a route, as far as there is one.  Called when the directory has changed."""
        ...

    def link_to(self, neighbour: NodeId) -> Link | None:
        """Return the link over which frames of this node itself leave for a neighbour; None if there is no way."""
        ...


@final
class Relay:
    """The relay of one node.

    Args:
        own: the node and its site.
        peers: the linked nodes; gateways of this site among them.
    """

    def __init__(self, own: Hop, peers: PeerTable) -> None:
        self._own: Final = own
        self._here: Final = (own.site, bytes.fromhex(own.gateway))
        self._peers: Final = peers
        self._forwarder: SiteForwarder | None = None
        self._flows: Flows[tuple[Peer, str | None]] = Flows()
        """Known flows: the gateway that each comes from, and the carrier whose limits count (see ``carrier_of``)."""

    def __repr__(self) -> str:
        return f"<Relay of {self._own.site} {'without' if self._forwarder is None else 'with'} a gateway>"

    def serve(self, forwarder: SiteForwarder) -> None:
        """Forward for others from now on, for the life of the node: a gateway was opened on it.

        Raises:
            ConfigError: see ``check_unserved``.
        """
        self.check_unserved()
        self._forwarder = forwarder

    def check_unserved(self) -> None:
        """Raise ConfigError if the node is a gateway, or has been one."""
        if self._forwarder is not None:
            raise ConfigError("this node is a gateway already, or has been one: open another node")

    def is_here(self, message: kinds.Carried) -> bool:
        """Return whether a message is for this very node."""
        return message.site == self._own.site and node_of(message.target) == self._own.gateway

    def examine(self, peer: Peer, batch: bytes | memoryview) -> bool | Inner:
        """See ``FrameFilter.examine``: a batch that is a single carried frame, for this node or for another."""
        if self._forwarder is not None:
            return self._forwarder.examine(peer, batch)
        found = self._flows.look(batch)
        if found is None or not peer.identity.certificate.rights.gateway:
            return False
        envelope, known, begin = found
        if known is None or known[0] is not peer:
            told = open_envelope(envelope)
            if told is None or peer.at_remote_site or (told.site, told.target) != self._here:
                return False
            known = peer, carrier_of(told.source_site)
            self._flows.remember(envelope, known)
        return begin, known[1]

    def forward(self, peer: Peer, message: kinds.Carried) -> None:
        """Forward for another node; raise RemoteProtocolError if this is no gateway, or the peer may not send it."""
        if self._forwarder is None:
            raise RemoteProtocolError("this node is no gateway")
        self._forwarder.forward(peer, message)

    def receive_copy(self, peer: Peer, message: kinds.Copy) -> bool:
        """Return True if events are for this node alone; forward them if they are for others as well.

        Raises:
            RemoteProtocolError: this node is no gateway, or the peer may not send them.
        """
        if peer.at_remote_site:
            raise RemoteProtocolError("a copy comes from a gateway")
        if self._forwarder is not None:
            self._forwarder.divide(peer, message)
            return False
        site, node = self._here
        if targets_untrusted(message.targets) != {site: node}:
            raise RemoteProtocolError("this node is no gateway")
        peer.check_gateway()
        return True

    def routes_changed(self) -> None:
        """Send on what waits for a route; see ``SiteForwarder``."""
        if self._forwarder is not None:
            self._forwarder.routes_changed()

    def link_to(self, neighbour: NodeId) -> Link | None:
        """Return the link to the first gateway of a route; None if frames cannot leave there."""
        return self._peers.link_to(neighbour) if self._forwarder is None else self._forwarder.link_to(neighbour)
