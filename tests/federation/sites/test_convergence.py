"""After any change every gateway knows within five seconds which sites there are and what they export."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from tests.support.federations import Federation, echo, open_federation
from tests.support.site_worlds import World

WITHIN = 5.0


async def agree(federation: Federation, clusters: dict[str, str], *, without: str | None = None) -> None:
    """Wait until all gateways reach all others, and know each cluster at its site, but for a site that is gone."""
    there = {gateway.site for gateway in federation.gateways.values()} - {without}
    with trio.fail_after(WITHIN):
        for gateway in federation.gateways.values():
            if gateway.site == without:
                continue
            directory = gateway._directory
            others = tuple(sorted(there - {gateway.site}))
            wanted = {name for name, site in clusters.items() if site in others}
            while directory.sites() != others or directory.clusters() != wanted:  # noqa: ASYNC110 -- of many
                await trio.sleep(0.02)


@pytest.mark.parametrize("shape", ["ring", "mesh"])
async def test_after_any_change_all_gateways_agree_within_five_seconds(autojump_clock: MockClock, shape: str) -> None:
    sites = tuple(f"s{number}" for number in range(4 if shape == "ring" else 6))
    async with open_federation() as federation, AsyncExitStack() as stack:
        await (federation.ring(*sites) if shape == "ring" else federation.mesh(*sites))
        await agree(federation, {})
        store = await federation.node("s1", "store")
        await stack.enter_async_context(store.join("store", echo("store")))
        await agree(federation, {"store": "s1"})
        network = federation.network.memory
        # A link that carries nothing, with a route round it.
        network.partition(["s0-gateway"], ["s1-gateway"])
        await agree(federation, {"store": "s1"})
        await trio.sleep(10)
        await agree(federation, {"store": "s1"})
        network.heal()
        await trio.sleep(10)
        await agree(federation, {"store": "s1"})
        # A site that falls silent, and comes back.
        network.partition(["s1-gateway", "s1-store"], [f"{site}-gateway" for site in sites if site != "s1"])
        await agree(federation, {}, without="s1")
        network.heal()
        await trio.sleep(10)  # neighbours dial it every five seconds
        await agree(federation, {"store": "s1"})
        await stack.aclose()
        await agree(federation, {})
        # A gateway that dies.
        federation.crash("s1-gateway")
        await agree(federation, {})


@pytest.mark.parametrize("shape", ["one more cluster", "one more site"])
def test_what_the_directory_costs_grows_in_proportion(shape: str) -> None:
    """Twice as much of either costs at most twice as much, to bring up and for each change."""

    def bring_up(sites: int, clusters: int) -> tuple[int, int, int]:
        world = World()
        made = [
            world.add(f"site-{number}", clusters=[f"c-{number}-{cluster}" for cluster in range(clusters)])
            for number in range(sites)
        ]
        for one, other in itertools.pairwise(made):
            world.link(one, other)
        world.settle()
        messages, size = world.messages, world.bytes
        made[0].members["one-more"] = {world.node(): b""}
        world.settle()
        return messages, size, world.bytes - size

    if shape == "one more cluster":
        costs = [bring_up(8, clusters) for clusters in (20, 40, 80)]
        assert len({messages for messages, _, _ in costs}) == 1
        (_, one, _), (_, two, _), (_, three, _) = costs
        assert 2 * (two - one) == pytest.approx(three - two, rel=0.02)
        assert len({change for _, _, change in costs}) == 1
    else:
        changes = [bring_up(sites, 5)[2] for sites in (4, 8, 16)]
        assert changes[1] - changes[0] == pytest.approx((changes[2] - changes[1]) / 2, rel=0.05)
