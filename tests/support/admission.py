"""Meshes without a node around them: whom they admit is for the test to say, and they read from the start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, final

from iris.cluster.mesh.mesh import Mesh, open_mesh
from iris.cluster.mesh.ports import MeshPorts, MeshSetting, PeerAdmission
from iris.kernel.transport.port import Transport
from iris.kernel.wire import Message
from iris.security.identity.identity import NodeIdentity, PeerIdentity


@final
class TestAdmission:
    """Admits everybody, until the test says otherwise."""

    __test__ = False

    def __init__(self) -> None:
        self.refuse: Callable[[PeerIdentity], None] = lambda _: None
        """Raises AuthenticationError for whom the test wants refused."""
        self.revoked: Callable[[PeerIdentity], str | None] = lambda _: None

    def check(self, peer: PeerIdentity) -> None:
        self.refuse(peer)

    def reason(self, peer: PeerIdentity) -> str | None:
        return self.revoked(peer)

    def final_messages(self, peer: PeerIdentity) -> Sequence[Message]:
        return ()


@asynccontextmanager
async def open_reading_mesh(
    identity: NodeIdentity,
    transport: Transport,
    listening: tuple[str, ...],
    *,
    admission: PeerAdmission | None = None,
    **options: Any,
) -> AsyncIterator[Mesh]:
    """Run a mesh that reads at once; it admits everybody if no admission is given; see ``MeshSetting``."""
    ports = MeshPorts(admission=admission or TestAdmission())
    async with open_mesh(identity, transport, listening, ports, MeshSetting(**options)) as mesh:
        mesh.begin_reading()
        yield mesh
