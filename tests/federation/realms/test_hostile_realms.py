"""Between two realms: gateways and nodes of the other one that say more than was agreed on, and what they can read."""

from __future__ import annotations

import pytest
import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from trio.testing import MockClock

import iris
from iris.cluster.directory.messages import CLUSTER, TOPIC
from iris.cluster.routes.copies import ANYBODY
from iris.cluster.routes.gateway import BUSY, GONE
from iris.kernel import wire
from iris.kernel.errors import AuthenticationError
from iris.kernel.wire import kinds
from tests.support.federations import echo
from tests.support.messages import raw
from tests.support.two_realms import open_realms


async def test_realms_do_not_reach_each_other_through_a_third_one(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        third = realms.ours.other_realm("third-", seed=99)
        realms.theirs.network.trust(third.network.bundle("third", ">"), callers=(">",))
        third.network.trust(realms.theirs.network.bundle("acme", ">"))
        realms.ours.network.trust(realms.theirs.network.bundle("acme", ">"))
        third.network.trust(realms.theirs.network.bundle("acme", ">"))
        await realms.link()
        await third.gateway("eu", to=["acme/acme-eu-gateway"])
        await third.member("eu", echo("databases"))
        shop = await realms.shop(echo("store"))
        neighbour = await realms.theirs.node("eu", "neighbour")
        await neighbour.wait_for("third/databases")
        assert realms.ours.gateways["eu-gateway"].statistics().sites == ("acme/eu",)
        assert [name for name in shop.clusters() if "/" in name] == ["acme/store"]


async def test_no_key_of_any_gateway_of_either_realm_opens_what_it_carries(autojump_clock: MockClock) -> None:
    secret = b"the combination of the safe is 31-41-59"
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("store"))
        captured: list[bytes] = []
        gateways = [
            (federation.nodes[host], gateway)
            for federation in (realms.ours, realms.theirs)
            for host, gateway in federation.gateways.items()
        ]
        for _, gateway in gateways:
            realms.ours.watch_frames(gateway, lambda message, _: captured.append(message.frame))
        for _ in range(5):
            assert await shop.request("acme/store", secret) == secret
        assert len(captured) >= 20
        sessions = [
            peer.session
            for node, gateway in gateways
            for mesh in (realms.parts[node.id].mesh, realms.between[gateway])
            for peer in mesh.peers.values()
            if peer.session is not None
        ]
        assert len(sessions) >= 4
        secrets = [secret for node, _ in gateways for secret in realms.parts[node.id].mesh.identity.gate_secrets]
        secrets += [known.pair_secret for node, _ in gateways for known in realms.parts[node.id].mesh.identity.trusted]
        secrets += [realms.parts[node.id].mesh.identity.static.private_bytes() for node, _ in gateways]
        for frame in captured:
            assert secret not in frame
            assert b"store" not in frame
            header = wire.parse_header_untrusted(frame)
            for session in sessions:
                with pytest.raises(AuthenticationError):
                    session.open_untrusted(frame[:4] + session.local_index.to_bytes(4) + frame[8:])
            for key in secrets:
                assert not opens(bytes(key), header.counter, frame)


def opens(key: bytes, counter: int, frame: bytes) -> bool:
    """Return whether a key opens a data frame, with whatever is used as nonce in Iris."""
    for nonce in (counter.to_bytes(12), bytes(4) + counter.to_bytes(8), bytes(12)):
        for cipher in (AESGCM(key), ChaCha20Poly1305(key)):
            try:
                cipher.decrypt(nonce, frame[16:], frame[:16])
            except InvalidTag:
                continue
            return True
    return False


async def test_a_gateway_of_another_realm_that_speaks_for_others_is_refused(autojump_clock: MockClock) -> None:
    """It announces routes to our own site, a third realm, clusters that it does not export, and carries for them."""
    async with open_realms() as realms:
        realms.introduce(theirs=("databases",))
        await realms.link()
        shop = await realms.shop(echo("databases"))
        secrets = await realms.ours.member("eu", echo("secrets"))
        ours, theirs = realms.ours.gateways["eu-gateway"], realms.theirs.gateways["acme-eu-gateway"]
        (ours_there,) = realms.between[theirs].peers.values()
        their_id = realms.theirs.nodes["acme-eu-gateway"].id
        our_realm, their_realm = shop.realm, realms.theirs.nodes["acme-eu-gateway"].realm
        gateway = bytes.fromhex(their_id)
        for site in ("eu", "ap", f"{our_realm}/ap", f"{'0c' * 16}/ap"):
            path = ((f"{their_realm}/eu", gateway), (site, bytes.fromhex(secrets.id)))
            ours_there.link.post(kinds.Route(site, bytes.fromhex(secrets.id), path), 64)
            ours_there.link.post(kinds.Exports(site, bytes.fromhex(secrets.id), 0, 1, (), (), False), 64)
            frame = kinds.Carry(5, f"{our_realm}/eu", bytes.fromhex(shop.id), site, gateway, b"frame")
            ours_there.link.post(frame, 64)
        for source in (
            "ap",
            "eu",
        ):  # as if from another site of our realm, and in a form that could be passed on unread
            content = bytes((wire.DATA,)) + bytes(40)
            carried = kinds.Carry(5, "eu", bytes.fromhex(shop.id), source, bytes.fromhex(secrets.id), content)
            ours_there.link.post(carried, 64)
            await trio.sleep(1)
        lie = kinds.Exported(CLUSTER, "payroll", gateway, b"")
        topic = kinds.Exported(TOPIC, ">", gateway, b"")
        ours_there.link.post(kinds.Exports(f"{their_realm}/eu", gateway, 0, 1000, (lie, topic), (), False), 64)
        await trio.sleep(2)
        refusals = realms.between[ours].refusals
        assert refusals["message of kind Route"] == 4
        assert refusals["message of kind Exports"] == 4
        assert refusals["message of kind Carry"] == 6
        assert shop.statistics().refusals.get("unknown session", 0) == 0, "no frame of it arrived"
        assert ours.statistics().sites == ("acme/eu",)
        assert realms.ours.sites(shop).directory.subscribers() == set()
        assert [name for name in shop.clusters() if "/" in name] == []


async def test_a_node_of_another_realm_is_heard_in_what_crosses_and_in_nothing_else(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        shop = await realms.shop(echo("databases"))
        assert await shop.request("acme/databases", 1) == 1
        member = realms.theirs.nodes["acme-eu-databases"]
        link = realms.parts[shop.id].mesh.peers[member.id].link
        forbidden = [
            kinds.Events("orders.new", 1, 0, None, None, None, (b"x",), ()),
            kinds.InterestKnown(1, 1),
            kinds.RetainedWanted(">"),
            kinds.Hold(">", True),
            kinds.Confirmed(((1, 2),)),
            kinds.Revocations(b"x"),
            kinds.Sync(bytes(2048)),
            kinds.Gossip(()),
            kinds.Forward(bytes(16), b"x"),
            kinds.Relay(bytes(16), 1, 1, b"", b"", bytes(64)),
            kinds.Allowed((">",), (">",), (">",)),
        ]
        for message in forbidden:
            link.post(message, 64)
        assert await shop.request("acme/databases", 2) == 2, "the rest goes on"
        assert member.statistics().refusals["message of a kind that is not taken"] == len(forbidden)
        link.post(kinds.Received(3, 0, False, (5, 0, 0, 0, 0, 5, 0), ()), 64)  # it hands nothing on for us
        assert await shop.request("acme/databases", 3) == 3
        assert member.statistics().refusals["message of kind Received"] == 1


async def test_a_gateway_of_another_realm_cannot_have_us_give_up_nodes_of_our_own_or_hold_back_our_events(
    autojump_clock: MockClock,
) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.ours.gateway("ap", to=["eu-gateway"])
        store = await realms.ours.member("ap", echo("store"))
        shop = await realms.shop(echo("databases"))
        await shop.wait_for("store")
        assert await shop.request("store", 1) == 1
        linked = realms.parts[shop.id].mesh.peers[store.id]
        sites = realms.ours.sites(shop)
        theirs = realms.theirs.gateways["acme-eu-gateway"]
        (ours_there,) = realms.between[theirs].peers.values()
        target = (f"{shop.realm}/eu", bytes.fromhex(shop.id))
        source = f"{realms.theirs.nodes['acme-eu-gateway'].realm}/eu"
        remembered = sites._links._put_off
        known = len(remembered)
        for node, reason in (
            (bytes.fromhex(store.id), GONE),
            (ANYBODY, BUSY),
            *((number.to_bytes(16), GONE) for number in range(1, 100)),
        ):
            ours_there.link.post(raw(kinds.CarryRefused, 5, *target, source, node, reason), 0)
        await trio.sleep(0.5)
        assert shop.statistics().refusals["not carried: its site does not know the node"] == 100, "all have come"
        assert realms.parts[shop.id].mesh.peers.get(store.id) is linked
        assert linked.link.is_up
        assert sites.copies.pause_end < trio.current_time()
        assert len(remembered) == known, "what is remembered of it does not grow"


async def test_a_node_of_another_realm_that_knocks_directly_learns_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the pair secret.  No gateway sees whom it dials, so it could ask nodes that serve nothing exported."""
    async with open_realms() as realms:
        realms.introduce(ours=())
        payroll = await realms.ours.member("eu", echo("payroll"))
        spy = await realms.theirs.node("eu", "spy")
        learned: list[str] = []

        def learn(peer: iris.PeerIdentity) -> None:
            learned.append(peer.cluster)

        monkeypatch.setattr(realms.parts[spy.id].mesh, "check_peer", learn)
        with pytest.raises(iris.IrisError):
            await realms.parts[spy.id].mesh.connect(list(payroll.addresses), realm_id=payroll.realm)
        assert learned == []
