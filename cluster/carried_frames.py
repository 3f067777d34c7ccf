"""Frames that gateways bring to a node: taken out of what they travel in, without decoding that each time."""

from __future__ import annotations

from typing import final

from iris.cluster.mesh import Mesh
from iris.cluster.peer import Peer
from iris.cluster.site_envelopes import Flows, open_envelope
from iris.kernel import kinds


@final
class CarriedFrames:
    """What a node is brought from nodes of other sites."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._flows: Flows[Peer] = Flows()

    def take(self, peer: Peer, batch: bytes | memoryview) -> bool:
        """Take a batch that is a single carried frame for this node; tell whether it is one."""
        found = self._flows.look(batch)
        if found is None or not peer.identity.certificate.rights.gateway:
            return False
        envelope, known, begin = found
        if known is not peer:
            told = open_envelope(envelope)
            here = (self._mesh.tag.site, bytes.fromhex(self._mesh.node))
            if told is None or peer.foreign or (told.site, told.target) != here:
                return False
            self._flows.remember(envelope, peer)
        self._mesh.receive_carried(batch[begin:], kinds.CARRY)
        return True
