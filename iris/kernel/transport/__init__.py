"""Transport: frames over connections.  SP framing (nanomsg) over TCP, WebSocket and ipc, and a network in memory.

It promises that a frame arrives whole or not at all, that frames of one connection arrive in order, that a size is
checked before memory is reserved for it, and that strangers have time limits.  It does not know who the peer is
(iris.security, iris.cluster.mesh): its frames are opaque, and a connection proves nothing.
"""

from iris.kernel.transport.inherited import keep_from_children
from iris.kernel.transport.memory import LinkFault, MemoryNetwork
from iris.kernel.transport.network import NetworkTransport, check_not_forked, check_url
from iris.kernel.transport.port import (
    ConnectionUser,
    IncomingConnection,
    OutgoingConnection,
    Permit,
    Refused,
    SocketAddress,
    Transport,
)
from iris.kernel.transport.writer import is_acknowledged

__all__ = (
    "ConnectionUser", "IncomingConnection", "LinkFault", "MemoryNetwork", "NetworkTransport", "OutgoingConnection",
    "Permit", "Refused", "SocketAddress", "Transport", "check_not_forked", "check_url", "is_acknowledged",
    "keep_from_children",
)  # fmt: skip
