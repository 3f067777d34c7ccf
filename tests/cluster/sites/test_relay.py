"""The relay of a node: closed until a gateway serves it, and served once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from iris.cluster.directory.messages import Hop
from iris.cluster.mesh.peer import Peer, PeerTable
from iris.cluster.routes.envelope import Envelope, begin_batch, end_batch
from iris.cluster.sites.relay import Relay
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.link.link import Link
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.security.identity.permissions import Rights
from tests.support.realms import TestRealm

OWN, OTHER = (NodeId(f"{number:032x}") for number in (1, 2))
HERE = kinds.Carry(16, "eu", bytes.fromhex(OWN), "us", bytes.fromhex(OTHER), b"frame")
ON = kinds.Carry(16, "us", bytes.fromhex(OTHER), "eu", bytes.fromhex(OWN), b"frame")


def peer(*, gateway: bool) -> Peer:
    rights = Rights(gateway=gateway)
    return Peer(TestRealm().identity("store", rights).public(), None, ("mem://store",), Config())


def batch(site: str, target: NodeId) -> bytes:
    return bytes(
        end_batch(begin_batch(Envelope(site, bytes.fromhex(target), "us", bytes.fromhex(OTHER)), 16), b"frame")
    )


class Forwarding:
    """A gateway's forwarding, and what it got."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def examine(self, peer: Peer, batch: bytes | memoryview) -> bool:
        self.got.append(bytes(batch))
        return True

    def forward(self, peer: Peer, message: kinds.Carried) -> None:
        self.got.append(message)

    def divide(self, peer: Peer, message: kinds.Copy) -> None:
        self.got.append(message)

    def routes_changed(self) -> None:
        self.got.append("routes changed")

    def link_to(self, neighbour: NodeId) -> Link | None:
        self.got.append(neighbour)
        return None


def test_what_is_for_others_is_refused_as_long_as_the_node_is_no_gateway() -> None:
    relay = Relay(Hop("eu", OWN), PeerTable())
    gateway = peer(gateway=True)
    with pytest.raises(RemoteProtocolError, match="no gateway"):
        relay.forward(gateway, ON)
    copies = kinds.Copy(16, "us", bytes.fromhex(OTHER), (("eu", bytes.fromhex(OWN) + bytes(16)),), b"")
    with pytest.raises(RemoteProtocolError, match="no gateway"):
        relay.receive_copy(gateway, copies)
    assert relay.examine(gateway, batch("us", OTHER)) is False
    assert relay.link_to(OTHER) is None


@pytest.mark.parametrize("gateway", [True, False])
def test_a_frame_for_the_node_is_found_in_what_a_gateway_brings_and_in_nothing_else(gateway: bool) -> None:
    relay, sent = Relay(Hop("eu", OWN), PeerTable()), batch("eu", OWN)
    assert relay.is_here(HERE)
    assert not relay.is_here(ON)
    found = relay.examine(peer(gateway=gateway), sent)
    if gateway:
        begin, carrier = cast("tuple[int, str | None]", found)
        assert (sent[begin:], carrier) == (b"frame", None)
    else:
        assert found is False


def test_events_for_the_node_alone_are_its_own_if_a_gateway_brings_them() -> None:
    relay = Relay(Hop("eu", OWN), PeerTable())
    copy = kinds.Copy(16, "us", bytes.fromhex(OTHER), (("eu", bytes.fromhex(OWN)),), b"")
    assert relay.receive_copy(peer(gateway=True), copy)
    with pytest.raises(RemoteProtocolError):
        relay.receive_copy(peer(gateway=False), copy)


def test_a_gateway_serves_it_once_and_for_the_life_of_the_node() -> None:
    relay, forwarding, gateway = Relay(Hop("eu", OWN), PeerTable()), Forwarding(), peer(gateway=True)
    relay.check_unserved()
    relay.serve(forwarding)
    copy = kinds.Copy(16, "us", bytes.fromhex(OTHER), (("eu", bytes.fromhex(OWN)),), b"")
    assert relay.examine(gateway, batch("us", OTHER)) is True
    relay.forward(gateway, ON)
    assert not relay.receive_copy(gateway, copy), "it delivers them by itself"
    relay.link_to(OTHER)
    assert forwarding.got == [batch("us", OTHER), ON, copy, OTHER]
    for again in (relay.check_unserved, lambda: relay.serve(Forwarding())):
        with pytest.raises(ConfigError, match="open another node"):
            again()
