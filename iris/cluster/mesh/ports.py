"""Ports of a mesh: what the parts above it decide for it.  Each of them is there before the mesh is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from msgspec import Struct, field

from iris.cluster.address_rules import AddressRules
from iris.cluster.directory import Border, SiteTag
from iris.cluster.mesh.peer import Peer, PeerTable
from iris.cluster.routes import NO_CARRIERS, Carriers
from iris.cluster.work import Work
from iris.kernel.config import Config
from iris.kernel.names import Entropy
from iris.kernel.wire import Message
from iris.security.identity import PeerIdentity


class PeerAdmission(Protocol):
    """The checks of a mesh on every node whose certificates are in order.  A mesh cannot be made without one.

    The methods are called while a frame is handled, with each handshake; none of them may block.
    """

    def check(self, peer: PeerIdentity) -> None:
        """Raise AuthenticationError for a node that is not to be linked."""
        ...

    def reason(self, peer: PeerIdentity) -> str | None:
        """Return why nobody of the realm talks to a node any more; None if they do."""
        ...

    def final_messages(self, peer: PeerIdentity) -> Sequence[Message]:
        """Return what to send to a node of this realm that ``check`` has refused."""
        ...


Inner = tuple[int, str | None]
"""A frame within a batch: where it begins, and whose limits count for it (see ``Mesh.receive_carried``)."""


class FrameFilter(Protocol):
    """The first look at each batch, before it is decoded: frames that are carried for others pass a gateway so."""

    def examine(self, peer: Peer, batch: bytes | memoryview) -> bool | Inner:
        """Return True if the batch was used up, False if it is to be decoded, and else the frame for this node in it.

        Called by the task that reads, with each frame of a session that is genuine and did not come within a Carry.  It
        must not block.  The buffer is the mesh's, and is used again after the call; the bytes may be changed if the
        batch is used up.  An error that it raises costs the peer its link.
        """
        ...


class Punctuality(Protocol):
    """The part that measures how late this node does what is due."""

    @property
    def lateness(self) -> float:
        """Seconds by which it is late: it, or its machine, has too much to do.  Read with each handshake."""
        ...


@final
class Punctual:
    """Stands for a part that measures no lateness: a mesh without a membership, as between gateways."""

    @property
    def lateness(self) -> float:
        """See ``Punctuality.lateness``."""
        return 0.0


_PUNCTUAL: Final = Punctual()
_NO_TAG: Final = SiteTag()


@final
class MeshPorts(Struct, frozen=True, kw_only=True):
    """The parts that a mesh needs."""

    admission: PeerAdmission
    peers: PeerTable = field(default_factory=PeerTable)
    frames: FrameFilter | None = None
    """None: every batch is decoded."""
    punctuality: Punctuality = _PUNCTUAL
    carriers: Carriers = NO_CARRIERS
    """None in it: such nodes cannot be reached."""
    border: Border = field(default_factory=Border)
    """Rules for peers of other sites; by default they may nothing."""
    work: Work = field(default_factory=Work)
    """Work limit of the frame that is handled: one for two meshes of which the one's frames travel in the other's."""


@final
class MeshSetting(Struct, frozen=True, kw_only=True):
    """The values that a mesh is opened with."""

    config: Config
    entropy: Entropy
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    tag: SiteTag = _NO_TAG
    dials_both: bool = False
    """True if this node dials both directions of the links that it begins, but by ipc: nobody has to connect to it."""
    rules: AddressRules = field(default_factory=AddressRules)
    """Rules for the addresses that this node dials; by default others may name any host."""
