"""Mesh: links and sessions of one node.  Dial, handshake, read, dispatch, rekey, reconnect.

It promises that a peer is a node whose certificate was verified, that what a peer sends costs that peer its link at
most, and that a session is renewed before it is too old.  It does not know who is a member (iris.cluster.membership) or
what a message means: each kind has one registered handler.
"""

from iris.cluster.mesh.control import let_flushers_run
from iris.cluster.mesh.dialer import HeldOff
from iris.cluster.mesh.dispatch import Dispatcher, MessageReceiver
from iris.cluster.mesh.handshakes import NoWayBack, TurnedAway
from iris.cluster.mesh.mesh import Mesh, open_mesh, own_addresses
from iris.cluster.mesh.peer import Peer, PeerObserver
from iris.cluster.mesh.peer import PeerTable
from iris.cluster.mesh.ports import FrameFilter, Inner, MeshPorts, MeshSetting, PeerAdmission
from iris.cluster.mesh.reader import InboxReader, InboxWaiter

__all__ = (
    "Dispatcher", "FrameFilter", "HeldOff", "InboxReader", "InboxWaiter", "Inner", "Mesh", "MeshPorts", "MeshSetting",
    "MessageReceiver", "NoWayBack", "Peer", "PeerAdmission", "PeerObserver", "PeerTable", "TurnedAway",
    "let_flushers_run", "open_mesh", "own_addresses",
)  # fmt: skip
