"""Frames over connections: the SP framing of nanomsg over TCP, WebSocket and ipc, and a twin in memory.

Promises: a frame arrives whole or not at all, frames of one connection arrive in order, sizes are bounded before
anything is read into memory, strangers have time limits.  Not here: who the peer is (iris.security, iris.cluster.mesh).
"""

from iris.kernel.transport.memory import MemoryNetwork
from iris.kernel.transport.network import NetworkTransport, check_url
from iris.kernel.transport.port import IncomingConnection, OutgoingConnection, Permit, Refused, Transport

__all__ = (
    "IncomingConnection", "MemoryNetwork", "NetworkTransport", "OutgoingConnection", "Permit", "Refused",
    "Transport", "check_url",
)  # fmt: skip
