"""Events between sites are sealed once for all who want them; a node that has gone opens nothing that comes after."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.cluster.routes.copies import copy_message, targets_untrusted
from iris.federation.policy import Policy
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.wire import COPY, HEADER, MAX_MESSAGES, VERSION, encode_batch, kinds
from iris.patterns.pubsub import PubSub, SealedReceiver
from iris.patterns.pubsub.sealed import receiver as opening
from iris.patterns.pubsub.sealed import sender as casting
from iris.patterns.pubsub.sealed.receiver import PATIENCE
from iris.patterns.pubsub.sealed.sender import SealedSender
from iris.security.channel.sender_key import read_copy_header_untrusted
from iris.security.identity.revocation import issue_revocations
from tests.support.attacks import Attacker
from tests.support.federations import EVERYTHING, Federation, Heard, open_federation
from tests.support.messages import arrived, fields_of


def _ignore(*_: object) -> None:
    pass


def copies_of(federation: Federation, node: iris.Node) -> SealedSender:
    remote_sites = federation.parts[node.id].patterns.pubsub.publishing.remote_sites
    assert remote_sites is not None
    return remote_sites


def receiver_of(pubsub: PubSub) -> SealedReceiver:
    assert pubsub.sealed_receiver is not None
    return pubsub.sealed_receiver


def unknown_frame(size: int) -> bytes:
    """Return a frame under a key that nobody has."""
    return (HEADER.pack(COPY, VERSION, 0, 2**31, 2**31) + bytes(size))[:size]


def copies_opened(federation: Federation, ear: iris.Node, publisher: iris.Node) -> int:
    """Return the number of the last copy of a publisher's that a node has opened."""
    return receiver_of(federation.parts[ear.id].patterns.pubsub)._publishers[publisher.id].last


def capture(federation: Federation, host: str) -> list[kinds.Copy]:
    """Return the copies that a gateway is handed from now on."""
    captured: list[kinds.Copy] = []

    def keep(message: kinds.Carry | kinds.Copy, _: bool) -> None:
        if isinstance(message, kinds.Copy):
            captured.append(message)

    federation.watch_frames(federation.gateways[host], keep)
    return captured


@asynccontextmanager
async def publisher_and_ears(
    count: int = 3,
) -> AsyncIterator[tuple[Federation, iris.Node, list[iris.Node], list[Heard]]]:
    """Bring up a publisher in us and subscribers of ``orders.>`` in eu."""
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        heard: list[Heard] = []
        ears = [await federation.listen("eu", "orders.>", heard) for _ in range(count)]
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        await publisher.publish("orders.first", "first")
        await trio.sleep(1)
        assert len(heard) == count
        heard.clear()
        yield federation, publisher, ears, heard


@pytest.mark.parametrize("count", [1, 5])
async def test_an_event_crosses_a_link_between_sites_once_for_all(autojump_clock: MockClock, count: int) -> None:
    async with publisher_and_ears(count) as (federation, publisher, _, heard):
        captured = capture(federation, "us-gateway")
        frames = copies_of(federation, publisher).frames
        for number in range(20):
            await publisher.publish("orders.new", number)
            await trio.sleep(0.01)
        await trio.sleep(1)
        assert copies_of(federation, publisher).frames - frames == 20
        assert len(captured) == 20
        assert sorted(event.payload for event in heard) == sorted([*range(20)] * count)
        statistics = publisher.statistics().publishing
        assert statistics.sent == statistics.handed_over == 21 * count


async def test_in_a_chain_of_sites_each_link_carries_one_copy(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("a")
        await federation.gateway("b", to=["a-gateway"])
        await federation.gateway("c", to=["b-gateway"])
        await federation.gateway("d", to=["b-gateway"])
        heard: list[Heard] = []
        for site in ("b", "c", "c", "d", "d"):
            await federation.listen(site, "orders.>", heard)
        publisher = await federation.node("a", "publisher")
        await trio.sleep(1)
        await publisher.publish("orders.new", 1)
        await trio.sleep(1)
        captured = {host: capture(federation, host) for host in federation.gateways}
        await publisher.publish("orders.new", 2)
        await trio.sleep(1)
        assert {host: len(copies) for host, copies in captured.items()} == dict.fromkeys(captured, 1)
        assert sorted(event.payload for event in heard) == [1] * 5 + [2] * 5


async def test_no_gateway_opens_a_copy(autojump_clock: MockClock) -> None:
    secret = b"the combination of the safe is 31-41-59"
    async with publisher_and_ears() as (federation, publisher, _, heard):
        captured = [capture(federation, host) for host in federation.gateways]
        for _ in range(5):
            await publisher.publish("orders.new", secret)
            await trio.sleep(0.1)
        assert [event.payload for event in heard] == [secret] * 15
        for messages in captured:
            assert len(messages) == 5
            for frame in (message.frame for message in messages):
                assert secret not in frame
                assert b"orders" not in frame
                for host in federation.gateways:
                    parts = federation.parts[federation.nodes[host].id]
                    assert receiver_of(parts.patterns.pubsub).keys == 0
                    for session in (peer.session for peer in parts.mesh.peers.values()):
                        assert session is not None
                        with pytest.raises(AuthenticationError):
                            session.open_untrusted(frame)


@pytest.mark.parametrize("how", ["leaves", "dies", "unsubscribes", "is revoked"])
async def test_whoever_has_gone_does_not_open_what_comes_after(autojump_clock: MockClock, how: str) -> None:
    async with publisher_and_ears(2) as (federation, publisher, ears, heard):
        node = await federation.node("eu", "third")
        done = trio.Event()

        async def listen() -> None:
            async with node.subscribe("orders.>") as events:
                federation.nursery.start_soon(count, events)
                await done.wait()

        async def count(events: iris.Subscription) -> None:
            async for event in events:
                heard.append(Heard("third", event.topic, event.payload, event.missed))

        federation.nursery.start_soon(listen)
        await trio.sleep(1)
        await publisher.publish("orders.new", "before")
        await trio.sleep(1)
        assert sum(event.site == "third" for event in heard) == 1
        frames = copies_of(federation, publisher).frames
        former = dict(receiver_of(federation.parts[node.id].patterns.pubsub)._publishers[publisher.id].keys)
        assert former
        captured = capture(federation, "us-gateway")
        if how == "dies":
            federation.crash("eu-third")
        elif how == "is revoked":
            wall = federation.network.wall_clock()
            nodes = {str(node.id): int(wall) + 86_400}
            listed = issue_revocations(federation.network.root, number=1, issued=wall, clusters={}, nodes=nodes)
            assert await publisher.revoke(listed.signed)
        else:
            done.set()
            if how == "leaves":
                await federation.parts[node.id].mesh.disconnect_all("leaving", 1)
        await trio.sleep(30)
        await publisher.publish("orders.new", "after")
        await trio.sleep(1)
        assert copies_of(federation, publisher).frames == frames + 1
        assert [event.payload for event in heard if event.site == "eu"][-2:] == ["after"] * 2
        assert sum(event.site == "third" for event in heard) == 1
        (message,) = captured
        assert read_copy_header_untrusted(message.frame).key not in former
        ((site, named),) = message.targets
        assert site == "eu"
        assert bytes.fromhex(node.id) not in named
        for key in former.values():
            with pytest.raises(AuthenticationError, match="not genuine"):
                key.open_untrusted(message.frame, _ignore)
        assert {ear.id for ear in ears} <= federation.parts[publisher.id].mesh.peers.keys()


async def test_a_node_gets_the_events_of_several_audiences_in_order(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, publisher, _, heard):
        others: list[Heard] = []
        for pattern in ("orders.1", "orders.2", "orders.*"):
            await federation.listen("eu", pattern, others)
        await trio.sleep(1)
        made = copies_of(federation, publisher).keys
        for number in range(300):
            await publisher.publish(f"orders.{number % 4}", number)
        await trio.sleep(2)
        assert [event.payload for event in heard] == list(range(300))
        assert not any(event.missed for event in heard)
        assert copies_of(federation, publisher).keys - made == 3
        assert len(others) == 300 + 75 + 75


async def test_a_key_that_is_used_up_is_replaced(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casting, "_KEY_FRAMES", 10)
    async with publisher_and_ears() as (federation, publisher, __, heard):
        for number in range(45):
            await publisher.publish("orders.new", number)
            await trio.sleep(0.01)
        await trio.sleep(1)
        assert [event.payload for event in heard[::3]] == list(range(45))
        assert copies_of(federation, publisher).keys == 5


async def test_a_frame_waits_for_a_key_that_is_late_and_asks_for_one_that_is_lost(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, publisher, (ear,), heard):
        known = receiver_of(federation.parts[ear.id].patterns.pubsub)._publishers[publisher.id]
        for first in (0, 3):  # twice within a second: that it was asked for and came is no reason not to ask again
            known.keys.clear()
            for number in range(first, first + 3):
                await publisher.publish("orders.new", number)
                await trio.lowlevel.checkpoint()
            await trio.sleep(0.4)
            assert [event.payload for event in heard] == [*range(first + 3)]
        assert not known.waiting
        assert known.size == 0


async def test_a_key_that_never_comes_holds_up_the_others_for_a_moment(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, publisher, (ear,), heard):
        known = receiver_of(federation.parts[ear.id].patterns.pubsub)._publishers[publisher.id]
        known.keys.clear()
        copies = copies_of(federation, publisher)
        copies._audiences.clear()  # so that it cannot say which key it was
        await publisher.publish("orders.first", "without its key")
        await trio.sleep(PATIENCE + 1)
        assert heard == []
        copies._addressed = None
        federation.parts[publisher.id].patterns.pubsub.publishing.routes_changed()
        await publisher.publish("orders.new", "with another")
        await trio.sleep(1)
        assert [(event.payload, event.missed) for event in heard] == [("with another", 0)]
        assert federation.parts[ear.id].mesh.refusals["copy without its key"] == 1


async def test_frames_under_a_key_that_never_comes_go_though_nothing_follows(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, publisher, (ear,), __):
        heard = receiver_of(federation.parts[ear.id].patterns.pubsub)
        heard.receive("us", publisher.id, unknown_frame(size=1000))
        assert heard.waiting_bytes >= 1000
        await trio.sleep(PATIENCE + 1.5)
        assert heard.waiting_bytes == 0
        assert federation.parts[ear.id].mesh.refusals["copy without its key"] == 1


async def test_what_waits_for_keys_is_bounded_for_all_publishers_of_one_owner(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MAX_OF_OWNER", 30_000)
    async with publisher_and_ears(1) as (federation, _, (ear,), __):
        heard = receiver_of(federation.parts[ear.id].patterns.pubsub)
        publishers: list[iris.Node] = []
        for number in range(4):
            host = f"us-many-{number}"
            publishers.append(await federation.enter(federation.network.open_node("many", host=host, site="us")))
        await trio.sleep(1)
        for publisher in publishers:
            await publisher.publish("orders.new", 1)
            await trio.sleep(1)
        for publisher in publishers:
            for _ in range(20):
                heard.receive("us", publisher.id, unknown_frame(size=1000))
        assert 20_000 < heard.waiting_bytes <= 30_000
        assert federation.parts[ear.id].mesh.refusals["copy without its key"] > 50
        await trio.sleep(PATIENCE + 1.5)
        assert heard.waiting_bytes == 0
        assert federation.parts[ear.id].mesh.refusals["copy without its key"] == 80


async def test_a_copy_that_is_lost_shows_as_missed_and_is_repeated_where_that_was_promised(
    autojump_clock: MockClock,
) -> None:
    async with publisher_and_ears(1) as (federation, publisher, _, heard):
        store = await federation.node("eu", "store")
        kept: list[object] = []
        events = await federation.enter(store.subscribe_durable("orders.>"))

        async def keep() -> None:
            async for event in events:
                kept.append(event.payload)
                await events.confirm([event])

        federation.nursery.start_soon(keep)
        await trio.sleep(1)
        await publisher.publish_confirmed("orders.new", "warm")
        carrying = federation.gateway_parts[federation.gateways["us-gateway"]].carrying
        divide, carrying.divide = carrying.divide, _ignore  # type: ignore[assignment,method-assign]

        async def confirmed() -> None:
            await publisher.publish_confirmed("orders.new", "lost on its way")

        federation.nursery.start_soon(confirmed)
        await trio.sleep(0.1)
        carrying.divide = divide  # type: ignore[method-assign]
        await publisher.publish("orders.new", "next")
        await trio.sleep(1)
        assert sorted(map(str, kept)) == ["lost on its way", "next", "warm"]
        assert [(event.payload, event.missed) for event in heard] == [("warm", 0), ("next", 1)]


async def test_a_gateway_hands_on_only_what_is_on_the_lists(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.gateway("eu", policy=EVERYTHING)
        await federation.gateway("us", to=["eu-gateway"], policy=Policy(export_topics=("orders.>",)))
        heard: list[Heard] = []
        ear = await federation.listen("eu", "orders.>", heard)
        deaf = await federation.node("eu", "deaf")
        publisher = await federation.node("us", "publisher")
        await trio.sleep(1)
        await publisher.publish("orders.new", 1)
        await trio.sleep(1)
        captured = capture(federation, "us-gateway")
        await publisher.publish("orders.new", 2)
        await trio.sleep(1)
        (message,) = captured
        gateway = federation.gateways["us-gateway"]
        before = gateway.statistics()
        link = federation.parts[publisher.id].mesh.peers[federation.nodes["us-gateway"].id].link
        targets = {"eu": bytes.fromhex(deaf.id + ear.id), "nowhere": bytes.fromhex(deaf.id)}
        again, size = copy_message(16, "us", fields_of(message)[2], targets, message.frame)
        link.post(again, size)
        await trio.sleep(1)
        after = gateway.statistics()
        assert after.refused.get("not exported", 0) - before.refused.get("not exported", 0) == 2
        assert after.carried - before.carried == 1
        assert federation.parts[ear.id].mesh.refusals["copy that repeats or comes late"] == 1
        # Nobody speaks for others.
        another, size = copy_message(16, "us", bytes.fromhex(deaf.id), targets, message.frame)
        link.post(another, size)
        await trio.sleep(1)
        assert gateway.statistics().carried == after.carried
        assert federation.parts[federation.nodes["us-gateway"].id].mesh.refusals["message of kind Copy"] == 1


async def test_a_subscriber_cannot_speak_for_the_publisher(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(2) as (federation, publisher, ears, heard):
        captured = capture(federation, "eu-gateway")
        await publisher.publish("orders.new", "genuine")
        await trio.sleep(1)
        frame = fields_of(captured[-1])[4]
        heard.clear()
        forged = frame[:-64] + bytes(64)
        receiver_of(federation.parts[ears[0].id].patterns.pubsub).receive("us", publisher.id, forged)
        receiver_of(federation.parts[ears[0].id].patterns.pubsub).receive("us", ears[1].id, frame)
        receiver_of(federation.parts[ears[0].id].patterns.pubsub).receive("us", publisher.id, b"short")
        await trio.sleep(1)
        assert heard == []
        refusals = federation.parts[ears[0].id].mesh.refusals
        assert refusals["copy that repeats or comes late"] == 1
        assert refusals["copy from a node that is not linked"] == 1
        assert refusals["AuthenticationError"] >= 1


async def test_large_copies_in_a_frame_take_no_room_of_what_is_carried_beside_them(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, publisher, (ear,), _):
        pings: list[int] = []
        victim, source = federation.parts[ear.id].mesh, federation.parts[publisher.id].mesh
        victim.receivers.own[kinds.Ping] = lambda _, ping: pings.append(fields_of(ping)[0])
        gateway = Attacker(federation.parts[federation.nodes["eu-gateway"].id].mesh, victim)
        captured = capture(federation, "us-gateway")
        for number in range(3):
            await publisher.publish("orders.new", bytes([number]) * 10_000)
            await trio.sleep(1)
        # What the publisher sends next, in one frame of the gateway's: three copies, and a frame of the session.
        (_, _, addressed, _, _), *_ = map(fields_of, captured)
        sender = copies_of(federation, publisher)
        event = kinds.Events("orders.new", 5, 0, None, None, None, (bytes(10_000),), ())
        targets = {"eu": bytes.fromhex(ear.id)}
        copies = [copy_message(16, "us", addressed, targets, sender.seal(encode_batch([event])))[0] for _ in range(3)]
        session = source.peers[ear.id].session
        assert session is not None
        frame = bytes(session.seal(encode_batch([kinds.Ping(7)] * MAX_MESSAGES)))
        around = kinds.Carry(16, "eu", bytes.fromhex(ear.id), "us", addressed, frame)
        await gateway.send(gateway.seal(*copies, around))
        await trio.sleep(1)
        assert pings == [7] * MAX_MESSAGES
        assert not victim.refusals
        assert copies_opened(federation, ear, publisher) == sender.frames


async def test_a_large_audience_is_several(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casting, "MAX_AUDIENCE", 2)
    async with publisher_and_ears(5) as (federation, publisher, __, heard):
        await publisher.publish("orders.new", 1)
        await trio.sleep(1)
        assert len(heard) == 5
        assert copies_of(federation, publisher).keys == 3


async def test_events_leave_before_the_publisher_does(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, _, __, heard):
        async with federation.network.open_node("brief", host="us-brief", site="us") as brief:
            await trio.sleep(1)
            for number in range(1000):
                await brief.publish("orders.new", [number] * 50)
        await trio.sleep(1)
        assert [event.payload[0] for event in heard] == list(range(1000))


@pytest.mark.parametrize(
    "field",
    [
        (),
        (("eu",),),
        (("eu", b""),),
        (("eu", b"short"),),
        (("eu", "x" * 16),),
        ((b"eu", bytes(16)),),
        (("not a site!", bytes(16)),),
        None,
    ],
)
def test_a_copy_says_to_whom_it_goes(field: object) -> None:
    with pytest.raises(RemoteProtocolError):
        targets_untrusted(arrived(kinds.Copy, 1, "us", bytes(16), field, b"").targets)


def test_a_node_that_is_named_twice_gets_it_once() -> None:
    one, two = bytes(16), bytes(range(16))
    assert targets_untrusted((("eu", one + two + one), ("us", two), ("eu", two))) == {"eu": one + two, "us": two}
    many = b"".join(number.to_bytes(16) for number in range(50_000))
    began = time.thread_time()
    assert targets_untrusted([("eu", many)] + [("eu", one)] * 511) == {"eu": many}
    assert time.thread_time() - began < 1, "nodes that are named before cost nothing again"


async def test_a_publisher_waits_while_a_gateway_has_it_pause_and_loses_nothing(autojump_clock: MockClock) -> None:
    async with publisher_and_ears(1) as (federation, publisher, __, heard):
        sites = federation.sites(publisher)
        sites.copies.pause()
        began = trio.current_time()
        for number in range(600):
            await publisher.publish("orders.new", number.to_bytes(2) * 10_000)
        assert trio.current_time() - began >= 0.9
        await trio.sleep(1)
        assert len(heard) == 600
        assert not any(event.missed for event in heard)
        assert publisher.statistics().publishing.lost == {}


async def test_what_a_slow_link_does_not_take_is_counted_for_each_node(autojump_clock: MockClock) -> None:
    config = structs.replace(Config(), link_bytes=2 * 1024 * 1024)
    async with open_federation() as federation:
        await federation.mesh("eu", "us")
        heard: list[Heard] = []
        for _ in range(3):
            await federation.listen("eu", "orders.>", heard)
        publisher = await federation.node("us", "publisher", config=config)
        await trio.sleep(1)
        await publisher.publish("orders.new", 1)
        copies_of(federation, publisher)._route._paused_until = trio.current_time() + 1000
        for number in range(100):
            await publisher.publish("orders.new", bytes([number]) * 50_000)
        statistics = publisher.statistics().publishing
        assert statistics.lost["subscriber stalled"] > 0
        assert statistics.lost["subscriber stalled"] % 3 == 0
        assert statistics.sent == statistics.handed_over + sum(statistics.lost.values()) == 303
