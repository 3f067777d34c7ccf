"""Gateways that die, links that are cut, and gateways that misbehave: what is lost, and how soon it is well again."""

from __future__ import annotations

import functools
import hashlib
import logging
import random
from collections.abc import Callable, Collection
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.directory.messages import CLUSTER, Export, Hop, RouteAdvertisement
from iris.federation.gateway import open_gateway
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError
from iris.kernel.wire import kinds
from iris.patterns.pubsub.sealed.receiver import PATIENCE
from iris.patterns.service import Role
from iris.security.channel.session import Session
from iris.testing import Rights
from tests.support.federations import (
    EVERYTHING,
    Federation,
    Heard,
    echo,
    gateway_url,
    open_federation,
    reports_of,
)
from tests.support.messages import raw


async def two_by_two(federation: Federation) -> iris.Node:
    """Bring up two gateways in each of two sites, a store in eu and a shop in us."""
    for name in ("one", "two"):
        await federation.gateway("eu", name=name)
    for name in ("one", "two"):
        await federation.gateway("us", name=name, to=["eu-one", "eu-two"])
    await federation.member("eu", echo("store"))
    shop = await federation.node("us", "shop")
    await shop.wait_for("store")
    await trio.sleep(1)
    return shop


@pytest.mark.parametrize(
    "victim", ["eu-one", "us-two", *(pytest.param(it, marks=pytest.mark.long) for it in ("eu-two", "us-one"))]
)
async def test_with_one_of_two_gateways_killed_no_idempotent_request_is_lost(
    autojump_clock: MockClock, victim: str
) -> None:
    async with open_federation() as federation:
        shop = await two_by_two(federation)
        slowest = 0.0
        answered = 0

        async def ask(number: int) -> None:
            nonlocal slowest, answered
            for step in range(60):
                started = trio.current_time()
                assert await shop.request(
                    "store", [number, step], timeout=10, options=iris.RequestOptions(idempotent=True)
                ) == [number, step]
                slowest = max(slowest, trio.current_time() - started)
                answered += 1
                await trio.sleep(0.03)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
            await trio.sleep(1)
            federation.crash(victim)
        assert answered == 600
        assert slowest <= 1.0


@pytest.mark.parametrize("ticks", range(3))
async def test_whoever_is_found_to_be_reachable_can_be_asked_at_once(autojump_clock: MockClock, ticks: int) -> None:
    """Its route may break again before another task runs; a caller released before that would find no member."""
    async with open_federation() as federation:
        shop = await two_by_two(federation)
        assert await shop.request("store", 0) == 0
        sites, mesh = federation.sites(shop), federation.parts[shop.id].mesh
        assert sites is not None
        found: list[bool] = []

        def break_way() -> None:
            for way in list(sites._routes):
                mesh.peers[way.target[1]].returning = True  # as when a route has gone and there is another one
                way.break_off()

        async def look() -> None:
            await sites.reach("store", 5, everybody=False)
            found.append(sites._can_be_asked("store"))

        break_way()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(look)
            while not sites._can_be_asked("store"):
                await sites._news.park()
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            break_way()
        assert found == [True] * 3


async def test_a_first_frame_that_is_lost_with_a_gateway_is_sent_again_soon(autojump_clock: MockClock) -> None:
    lost: list[bytes] = []

    def lose_one(frame: bytes) -> list[bytes]:
        if lost or frame[0] != wire.HANDSHAKE_INIT:
            return [frame]
        lost.append(frame)
        return []

    async with open_federation() as federation:
        shop = await two_by_two(federation)
        for gateway in federation.gateways.values():
            federation.alter_frames(gateway, lose_one)
        started = trio.current_time()
        assert await shop.request("store", 0) == 0
        assert len(lost) == 1
        assert trio.current_time() - started < 0.5


async def test_a_tunnel_goes_on_when_a_gateway_is_killed(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        shop = await two_by_two(federation)
        sent = [bytes([number % 256]) * 20_000 for number in range(300)]
        received: list[bytes] = []
        async with shop.open_tunnel("store") as tunnel, trio.open_nursery() as nursery:

            async def send() -> None:
                for number, payload in enumerate(sent):
                    if number == 100:
                        federation.crash("us-one")
                    if number == 200:
                        federation.crash("eu-two")
                    await tunnel.send(payload)
                await tunnel.send_eof()

            nursery.start_soon(send)
            received.extend([payload async for payload in tunnel])
        assert received == sent


async def run_gateway(
    federation: Federation,
    site: str,
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    **options: Any,
) -> None:
    """Be the only gateway of a site until cancelled; that of us dials the one of eu."""
    host = f"{site}-gateway"
    peers = [gateway_url("eu-gateway")] if site == "us" else []
    with scope:
        async with (
            federation.network.open_node("gateway", host=host, site=site, **options) as node,
            open_gateway(node, listen=[gateway_url(host)], peers=peers, policy=EVERYTHING),
        ):
            task_status.started()
            await trio.sleep_forever()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("options", [{}, {"seeds": ()}], ids=["finds its site", "is found by its site"])
@pytest.mark.parametrize("site", ["eu", "us"])
async def test_a_tunnel_goes_on_when_the_only_gateway_of_a_site_is_started_again(
    autojump_clock: MockClock, site: str, options: dict[str, Any], seed: int
) -> None:
    """A gateway that does not know yet who is at its site, or what the other one exports, has no tunnel given up."""
    chance = random.Random(seed)
    async with open_federation(seed=seed) as federation:
        scopes = {name: trio.CancelScope() for name in ("eu", "us")}
        for name, scope in scopes.items():
            await federation.nursery.start(run_gateway, federation, name, scope)
        await federation.member("eu", echo("store"))
        shop = await federation.shop("us", "store")

        async def restart() -> None:
            await trio.sleep(chance.uniform(0.5, 1.5))
            federation.network.memory.crash(f"{site}-gateway")
            scopes[site].cancel()
            await trio.sleep(3)
            start = functools.partial(run_gateway, federation, site, trio.CancelScope(), **options)
            await federation.nursery.start(start)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            async with shop.open_tunnel("store") as tunnel:
                for number in range(100):
                    await tunnel.send(number)
                    await trio.sleep(chance.uniform(0.0, 0.2))
                await tunnel.send_eof()
                assert [number async for number in tunnel] == list(range(100))


async def test_a_link_that_is_down_for_a_minute_ends_no_tunnel_and_fills_no_queue(autojump_clock: MockClock) -> None:
    config = Config(tunnel_silence=150.0)
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        await federation.member("eu", echo("store"), config=config)
        shop = await federation.node("us", "shop", config=config)
        await shop.wait_for("store")
        digest, received = hashlib.sha256(), hashlib.sha256()
        count = 400
        async with shop.open_tunnel("store") as tunnel, trio.open_nursery() as nursery:

            async def send() -> None:
                for number in range(count):
                    if number == 150:
                        federation.network.memory.partition(["eu-gateway", "eu-store"], ["us-gateway", "us-shop"])
                        nursery.start_soon(heal)
                    payload = bytes([number % 256]) * 32_768
                    digest.update(payload)
                    await tunnel.send(payload)
                await tunnel.send_eof()

            async def heal() -> None:
                await trio.sleep(60)
                for node in federation.nodes.values():
                    for link in node.statistics().links.values():
                        assert link.bytes_waiting <= 4 * 1024 * 1024
                federation.network.memory.heal()

            started = trio.current_time()
            nursery.start_soon(send)
            chunks = 0
            async for payload in tunnel:
                received.update(payload)
                chunks += 1
        assert trio.current_time() - started >= 60
        assert (chunks, received.digest()) == (count, digest.digest())


async def test_a_site_that_is_cut_off_is_known_to_be_and_comes_back_within_five_seconds(
    autojump_clock: MockClock,
) -> None:
    sites = ("s0", "s1", "s2", "s3")
    async with open_federation() as federation:
        await federation.ring(*sites)
        with trio.fail_after(5):
            await federation.wait_for_sites(*sites)
        for site in sites:
            await federation.member(site, echo("store", site), "store")
        shop = await federation.node("s0", "shop")
        await shop.wait_for("store", members=4)
        gateway = federation.gateways["s0-gateway"]
        others = [f"{site}-{name}" for site in ("s0", "s1", "s3") for name in ("gateway", "store")]
        federation.network.memory.partition(["s2-gateway", "s2-store"], [*others, "s0-shop"])
        await trio.sleep(5)
        assert gateway.statistics().sites == ("s1", "s3")
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("store@s2")
        federation.network.memory.heal()
        with trio.fail_after(10):
            await gateway.wait_for_site("s2")
        await trio.sleep(1)
        assert await shop.request("store@s2", timeout=10) == "s2"


async def test_a_cut_ring_is_used_the_other_way_round(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        await federation.ring("s0", "s1", "s2", "s3")
        await federation.member("s1", echo("store"))
        shop = await federation.node("s0", "shop")
        await shop.wait_for("store")
        assert await shop.request("store", 1) == 1
        federation.network.memory.partition(["s0-gateway"], ["s1-gateway"])
        await trio.sleep(5)
        assert await shop.request("store", 2, timeout=10) == 2
        assert federation.gateways["s3-gateway"].statistics().carried > 0


# -- gateways that misbehave --------------------------------------------------------------------------------


async def with_bad_gateway(
    federation: Federation, change: Callable[[bytes], list[bytes]]
) -> tuple[iris.Node, iris.Node, list[Heard]]:
    bad = await federation.gateway("eu")
    await federation.gateway("us", to=["eu-gateway"])
    heard: list[Heard] = []
    ear = await federation.listen("eu", "orders.>", heard)
    publisher = await federation.node("us", "publisher")
    await trio.sleep(1)
    await publisher.publish("orders.new", -1)
    await trio.sleep(1)
    federation.alter_frames(bad, change)
    return publisher, ear, heard


async def test_replayed_frames_are_dropped(autojump_clock: MockClock) -> None:
    async with open_federation() as federation:
        publisher, ear, heard = await with_bad_gateway(federation, lambda frame: [frame, frame, frame])
        for number in range(100):
            await publisher.publish("orders.new", number)
            await trio.sleep(0.01)
        await trio.sleep(1)
        assert [event.payload for event in heard] == list(range(-1, 100))
        assert federation.parts[ear.id].mesh.refusals["copy that repeats or comes late"] == 200
        assert not any(event.missed for event in heard)


async def test_dropped_frames_are_noticed_and_counted_at_the_subscriber(autojump_clock: MockClock) -> None:
    seen = 0

    def every_third(frame: bytes) -> list[bytes]:
        nonlocal seen
        seen += len(frame) < 200
        return [] if seen % 3 == 0 else [frame]

    async with open_federation() as federation:
        publisher, _, heard = await with_bad_gateway(federation, every_third)
        for number in range(99):
            await publisher.publish("orders.new", number)
            await trio.sleep(0.05)
        federation.alter_frames(federation.gateways["eu-gateway"], lambda frame: [frame])
        seen = 0
        await trio.sleep(1)
        numbers = [event.payload for event in heard]
        assert numbers == sorted(set(numbers))
        missed = sum(event.missed for event in heard)
        assert missed > 0
        assert len(numbers) + missed >= max(numbers) + 2


@pytest.mark.parametrize("place", [0, 5, 20, -1])
async def test_changed_frames_are_refused(autojump_clock: MockClock, place: int) -> None:
    def flip(frame: bytes) -> list[bytes]:
        changed = bytearray(frame)
        changed[place] ^= 1
        return [bytes(changed)]

    async with open_federation() as federation:
        publisher, ear, heard = await with_bad_gateway(federation, flip)
        await publisher.publish("orders.new", 1)
        await trio.sleep(0.5)
        await trio.sleep(PATIENCE)  # a changed number is that of a key which may still come
        await publisher.publish("orders.new", 2)
        await trio.sleep(0.5)
        assert [event.payload for event in heard] == [-1]
        assert sum(ear.statistics().refusals.values()) > 0


async def test_no_key_of_any_gateway_opens_what_it_carries(autojump_clock: MockClock) -> None:
    secret = b"the combination of the safe is 31-41-59"
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        captured: list[bytes] = []

        def keep(frame: bytes) -> list[bytes]:
            captured.append(frame)
            return [frame]

        for gateway in federation.gateways.values():
            federation.alter_frames(gateway, keep)
        for _ in range(5):
            assert await shop.request("store", secret) == secret
        assert len(captured) >= 20
        sessions: list[Session] = []
        for host in federation.gateways:
            node = federation.nodes[host]
            for mesh in (federation.parts[node.id].mesh, federation.between[federation.gateways[host]]):
                sessions += [peer.session for peer in mesh.peers.values() if peer.session is not None]
        assert len(sessions) >= 4
        for frame in captured:
            assert secret not in frame
            assert b"store" not in frame
            for session in sessions:
                # Its own keys and counters, with any claim about the session that the frame is of.
                for index in (int.from_bytes(frame[4:8]), session.local_index):
                    changed = frame[:4] + index.to_bytes(4) + frame[8:]
                    with pytest.raises(AuthenticationError):
                        session.open_untrusted(changed)


async def test_a_gateway_may_not_speak_for_another_site(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        # Another site that calls itself eu, whose gateway knows nothing of the first one.
        impostor = await federation.node("eu", "impostor", seeds=[])
        stack = federation.network.memory
        stack.partition(["eu-impostor"], ["eu-gateway", "eu-store"])
        with caplog.at_level(logging.WARNING, "iris"):
            await federation.enter(
                open_gateway(impostor, listen=["mem://eu-impostor/between"], peers=["mem://us-gateway/between"])
            )
            await trio.sleep(15)
        (report,) = reports_of(caplog, "another site has that name")
        assert impostor.id in report
        assert await shop.request("store", b"still there") == b"still there"


async def test_gateways_of_another_realm_are_not_let_in(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation(seed=1) as ours:
        await ours.gateway("eu")
        await ours.member("eu", echo("store"))
        await ours.gateway("ap", to=["eu-gateway"])
        shop = await ours.node("ap", "shop")
        await shop.wait_for("store")
        gateway = ours.gateways["eu-gateway"]
        neighbours = gateway.statistics().neighbours
        async with open_federation(seed=2) as theirs:
            theirs.network.memory = ours.network.memory  # type: ignore[misc]
            await theirs.gateway("us", to=["eu-gateway"])
            await trio.sleep(60)
            assert gateway.statistics().neighbours == neighbours
            assert theirs.gateways["us-gateway"].statistics().sites == ()
        assert len(reports_of(caplog, "trying again")) == 1
        assert sum(gateway.statistics().rejected.values()) > 0
        assert await shop.request("store", 1) == 1


async def test_a_gateway_that_was_reported_as_not_reached_is_reported_as_back(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with open_federation() as federation:
        await federation.gateway("ap", to=["eu-gateway"])
        await trio.sleep(5)
        assert len(reports_of(caplog, "trying again")) == 1
        await federation.gateway("eu")
        await trio.sleep(60)
        assert [record.getMessage() for record in caplog.records if "is back" in record.getMessage()] != []


async def test_a_gateway_that_tells_what_cannot_be_is_refused_and_reported_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation() as federation:
        shop, liar = await federation.three_sites()
        own, us = federation.nodes["ap-gateway"].id, federation.gateways["us-gateway"]
        link = federation.between[liar].peers[federation.nodes["us-gateway"].id].link
        eu = Hop("eu", federation.nodes["eu-gateway"].id)
        before = federation.between[us].refusals.copy()
        for number in range(10):
            link.post(
                RouteAdvertisement(eu, (Hop("us", own), eu)).message(), 50
            )  # as if it were a gateway of that site
            link.post(
                RouteAdvertisement(eu, (Hop("ap", own), Hop(f"x{number}", own))).message(), 50
            )  # a way to somewhere else
            await trio.sleep(0.1)
            link.post(raw(kinds.Exports, "eu", bytes(16), 0, "junk", (), (), 0), 50)
            await trio.sleep(0.1)
        await trio.sleep(2)
        assert (federation.between[us].refusals - before).total() == 30
        (report,) = reports_of(caplog, "tells what cannot be")
        assert own in report
        assert us.statistics().sites == ("ap", "eu")
        assert await shop.request("store", 1) == 1


async def test_a_member_that_a_site_has_no_right_to_export_is_not_asked_and_reported_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_federation() as federation:
        for cluster in ("store", "other"):
            federation.network.credential(cluster, Rights())
        await federation.gateway("eu")
        await federation.member("eu", echo("store"))
        liar = await federation.gateway("ap", to=["eu-gateway"])
        thief = await federation.member("ap", echo("other"))
        await federation.enter(
            federation.parts[thief.id].patterns.serving.serve("store", Role(echo("store", "stolen"), iris.Limits()))
        )
        shop = await federation.node("eu", "shop")
        await shop.wait_for("other")
        assert await shop.request("other", 1) == 1
        honest = federation.gateway_parts[liar].advertising.export

        lies = [Export(CLUSTER, "store", thief.id), Export(CLUSTER, "safe", thief.id)]

        def lie(added: Collection[Export], removed: Collection[Export] = ()) -> bool:
            return honest([*added, *lies], [export for export in removed if export not in lies])

        federation.gateway_parts[liar].advertising.export = lie  # type: ignore[method-assign]
        for _ in range(5):
            liar.news()
            await trio.sleep(1)
        assert "safe" in shop.clusters(), "its gateway cannot know better"
        for _ in range(20):
            assert await shop.request("store", 2) == 2
        for address in ("store@ap", "safe"):
            with pytest.raises(iris.IrisError):
                await shop.request(address, 3, timeout=1)
        assert await shop.request("other", 4) == 4
        (report,) = reports_of(caplog, "which it has no right to be")
        assert thief.id in report
        assert federation.parts[shop.id].mesh.refusals["member that has no right to be one"] == 2
