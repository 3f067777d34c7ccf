"""Links and sessions of one node: dial, handshake, read, dispatch, rekey, reconnect.

Promises: a peer is a node whose certificate was verified; what a peer sends costs that peer its link at most; a
session is
renewed before it is too old.  Not here: who is a member (iris.cluster.membership).
"""

from iris.cluster.mesh.control import let_flushers_run
from iris.cluster.mesh.dispatch import MessageReceiver
from iris.cluster.mesh.handshakes import TurnedAway
from iris.cluster.mesh.mesh import Mesh, open_mesh
from iris.cluster.mesh.peer import Peer
from iris.cluster.mesh.reader import InboxReader, InboxWaiter

__all__ = (
    "InboxReader", "InboxWaiter", "Mesh", "MessageReceiver", "Peer", "TurnedAway", "let_flushers_run", "open_mesh",
)  # fmt: skip
