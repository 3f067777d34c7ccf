"""Events in the window in which a node, a gateway or a bridge opens: none of them is missed for good."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.gateway import open_gateway
from iris.kernel.errors import ConfigError
from iris.node.open import open_parts
from iris.security.authority.issuing import issue_cluster, revoke_cluster
from iris.security.files.credential_file import save_credential
from iris.security.files.realm_files import save_revocations
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, inspect, open_network
from tests.node.opening.test_opening_order import EVIL, HONEST, SHOP, SlowWires, Town, knock
from tests.node.opening.test_shortages import Threads
from tests.support.federations import EVERYTHING, echo, gateway_url
from tests.support.realms import WALL


@pytest.fixture
def town(tmp_path: Path, own_home: None) -> Town:
    return Town(tmp_path)


def delay_listening(network: Network, seconds: float) -> None:
    """Have every transport that is made from now on take its time to listen; others can dial it already."""
    real = network.memory.transport

    class Slow(SlowWires):
        async def listen(self, urls):  # type: ignore[no-untyped-def]
            bound = await self._inner.listen(urls)
            await trio.sleep(seconds)
            return bound

    network.memory.transport = lambda host: Slow(real(host))  # type: ignore[method-assign, assignment, misc]


@pytest.mark.long
@pytest.mark.parametrize("dials", [False, True])
async def test_a_node_that_only_dials_out_checks_whom_it_meets_while_it_opens(
    autojump_clock: MockClock, town: Town, dials: bool
) -> None:
    save_revocations(town.revocations, town.list)
    honest_url, evil_url = (url.replace("tcp", "ws") + "/iris" for url in (HONEST, EVIL))
    opening = partial(iris.open_node, environment=town.environment())
    async with (
        opening(credential=town.honest, listen=[honest_url]) as honest,
        opening(credential=town.evil, listen=[evil_url], seeds=[honest_url] if dials else ()),
        open_parts(
            credential=town.world.shop, seeds=[honest_url, evil_url], dial_only=True, environment=town.slow()
        ) as (shop, shop_parts),
        shop.subscribe("news.>") as events,
    ):
        await trio.sleep(5)
        assert {peer.identity.cluster for peer in shop_parts.mesh.peers.values()} == {"honest"}
        await honest.publish("news.today", "it rains")
        with trio.fail_after(5):
            assert (await anext(events)).payload == "it rains"


@pytest.mark.long
async def test_a_node_that_is_revoked_while_it_opens_opens_and_says_so(
    autojump_clock: MockClock, town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    realm, shop = issue_cluster(town.world.realm, "late", entropy=town.world.entropy, wall_now=WALL)
    _, list_ = revoke_cluster(realm, "late", wall_now=WALL)
    opening = partial(open_parts, environment=town.environment())
    async with opening(credential=town.honest, listen=[HONEST]) as (honest, parts), trio.open_nursery() as nursery:
        nursery.start_soon(knock, parts.mesh, SHOP)

        async def revoke() -> None:
            while not inspect(honest).peers:  # noqa: ASYNC110 -- on a virtual clock
                await trio.sleep(0.01)
            await honest.revoke(list_.signed)

        nursery.start_soon(revoke)
        with trio.fail_after(60):
            async with open_parts(credential=shop, listen=[SHOP], seeds=[HONEST], environment=town.slow()) as (
                _,
                node_parts,
            ):
                await trio.sleep(3)
                assert not any(peer.link.is_up for peer in node_parts.mesh.peers.values())
                assert "nobody talks to this node any more" in caplog.text
        nursery.cancel_scope.cancel()


async def test_a_credential_that_is_replaced_while_its_node_opens_is_taken(
    autojump_clock: MockClock, town: Town, threads: Threads, tmp_path: Path
) -> None:
    file = tmp_path / "shop.json"
    save_credential(file, town.world.shop)
    _, fresh = issue_cluster(town.world.realm, "shop", entropy=town.world.entropy, wall_now=WALL + 60)

    async def replace() -> None:
        while not town.steps:  # noqa: ASYNC110 -- on a virtual clock
            await trio.sleep(0.1)
        save_credential(file, fresh, replace=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(replace)
        async with open_parts(credential=file, listen=[SHOP], environment=town.slow()) as (_, shop_parts):
            await trio.sleep(5)
            assert shop_parts.mesh.identity.certificate == fresh.certificate


async def be_gateway(network: Network, site: str, other: str, opened: trio.Event) -> None:
    async with (
        network.open_node("gateway", host=f"{site}-gateway", site=site) as node,
        open_gateway(
            node, listen=[gateway_url(f"{site}-gateway")], peers=[gateway_url(f"{other}-gateway")], policy=EVERYTHING
        ),
    ):
        opened.set()
        await trio.sleep_forever()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.02, 1.0, 4.0])
async def test_gateways_that_open_slowly_and_dial_each_other_forward_requests_and_events(
    autojump_clock: MockClock, seconds: float
) -> None:
    async with open_network(seed=4) as network, trio.open_nursery() as nursery:
        delay_listening(network, seconds)
        opened = [trio.Event(), trio.Event()]
        async with (
            network.open_node("store", site="eu") as store,
            store.join("store", echo("store")),
            store.subscribe("news.>") as events,
            network.open_node("shop", site="us") as shop,
        ):
            nursery.start_soon(be_gateway, network, "eu", "us", opened[0])
            nursery.start_soon(be_gateway, network, "us", "eu", opened[1])
            for event in opened:
                await event.wait()
            with trio.fail_after(20):
                await shop.wait_for("store")
                assert await shop.request("store", 1) == 1
            await trio.sleep(3)
            await shop.publish("news.today", "it rains")
            with trio.fail_after(5):
                assert (await anext(events)).payload == "it rains"
        nursery.cancel_scope.cancel()


async def test_a_node_becomes_a_gateway_once_though_two_tasks_open_one(autojump_clock: MockClock) -> None:
    outcomes: list[str] = []
    async with open_network(seed=5) as network:
        delay_listening(network, 1.0)
        async with network.open_node("gateway", host="eu-gateway", site="eu") as node, trio.open_nursery() as nursery:

            async def be(url: str) -> None:
                try:
                    async with open_gateway(node, listen=[url], policy=EVERYTHING):
                        outcomes.append("open")
                        await trio.sleep(5)
                except ConfigError:
                    outcomes.append("refused")

            nursery.start_soon(be, gateway_url("eu-gateway"))
            nursery.start_soon(be, gateway_url("eu-other"))
    assert sorted(outcomes) == ["open", "refused"]


async def test_a_realm_that_is_trusted_while_a_node_opens_is_trusted_by_it(autojump_clock: MockClock) -> None:
    async with open_network(seed=6) as network, trio.open_nursery() as nursery:
        theirs = network.other_realm(7)
        delay_listening(network, 2.0)

        async def trust() -> None:
            await trio.sleep(1)
            network.trust(theirs.bundle("acme", "store"))

        nursery.start_soon(trust)
        async with network.open_parts("shop", host="shop") as (_, node_parts):
            await trio.sleep(1)
            assert len(node_parts.mesh.identity.trusted) == 1


async def test_whoever_waits_for_a_site_at_a_gateway_that_is_closed_is_told(autojump_clock: MockClock) -> None:
    ended: list[str] = []
    async with open_network(seed=8) as network, trio.open_nursery() as nursery:
        async with network.open_node("gateway", host="eu-gateway", site="eu") as node:
            async with open_gateway(node, listen=[gateway_url("eu-gateway")], policy=EVERYTHING) as gateway:

                async def wait(site: str) -> None:
                    try:
                        await gateway.wait_for_site(site)
                    except trio.ClosedResourceError:
                        ended.append(site)

                nursery.start_soon(wait, "us")
                await trio.sleep(1)
            await trio.sleep(2)
            assert ended == ["us"]
        nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_an_event_that_is_confirmed_while_its_bridge_opens_is_in_the_log(tmp_path: Path) -> None:
    confirmed: list[int] = []
    found: list[int] = []
    enough = trio.Event()
    with trio.fail_after(30):
        async with (
            open_network() as network,
            network.open_node("bridge") as node,
            network.open_node("desk") as desk,
            trio.open_nursery() as nursery,
        ):

            async def publish() -> None:
                for number in itertools.count():
                    try:
                        await desk.publish_confirmed("jobs", number, timeout=5)
                    except iris.IrisError:  # there is no bridge yet
                        await trio.sleep(0.002)
                    else:
                        confirmed.append(number)
                    if len(confirmed) == 30:
                        enough.set()
                        return

            nursery.start_soon(publish)
            async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
                await enough.wait()
                async with desk.bridge().consume("jobs", group="g", start="earliest") as log:
                    async for batch in log:
                        async with batch:
                            found += [event.payload for event in batch]
                        if confirmed[-1] in found:
                            break
        assert len(found) == len(set(found))
        assert set(confirmed) <= set(found)
