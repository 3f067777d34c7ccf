"""Opening a node beside members that it cannot reach: it waits for the others."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.testing import Network, inspect, open_network

MEMBERS = [f"member-{number}" for number in range(6)]
REACHED, UNREACHED = MEMBERS[:3], MEMBERS[3:]


def linked(node: iris.Node, others: list[iris.Node]) -> list[bool]:
    return [other.id in inspect(node).peers for other in others]


@pytest.mark.parametrize("silent", ["both ways", "to the member", "back from it"])
async def test_members_that_say_nothing_are_waited_for_no_longer_than_a_handshake_may_well_take(
    autojump_clock: MockClock, silent: str
) -> None:
    async with open_network() as network, trio.open_nursery() as nursery:
        members = [await nursery.start(open_for_ever, network, host) for host in MEMBERS]
        await trio.sleep(3)
        sides = [UNREACHED, ["new"]] if silent == "back from it" else [["new"], UNREACHED]
        network.memory.partition(*sides, one_way=silent != "both ways")
        began = trio.current_time()
        async with network.open_node("new", host="new", seeds=["member-0"]) as node:
            assert 1.9 < trio.current_time() - began < 2.6, "and not the 5 s of Config.subscribe_timeout"
            assert linked(node, members) == [True] * 3 + [False] * 3
            network.memory.heal()
            await trio.sleep(15)
            assert linked(node, members) == [True] * 6
        nursery.cancel_scope.cancel()


async def test_a_member_that_cannot_be_dialled_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with (
        open_network() as network,
        network.open_node("a", host="10.0.0.1") as a,
        network.open_node("b", host="10.0.1.1", seeds=["10.0.0.1"]) as b,
    ):
        began = trio.current_time()
        async with network.open_node("new", host="10.0.0.2", seeds=["10.0.0.1"], dial_networks=["10.0.0.0/24"]) as node:
            assert trio.current_time() - began < 1.0
            assert linked(node, [a, b]) == [True, False]


async def test_members_far_away_are_all_linked_when_the_node_is_open(autojump_clock: MockClock) -> None:
    async with open_network(latency=(0.14, 0.15)) as network, trio.open_nursery() as nursery:
        members = [await nursery.start(open_for_ever, network, host) for host in MEMBERS]
        async with network.open_node("new", host="new", seeds=["member-0"]) as node:
            assert linked(node, members) == [True] * 6
        nursery.cancel_scope.cancel()


async def open_for_ever(network: Network, host: str, *, task_status: trio.TaskStatus[iris.Node]) -> None:
    async with network.open_node("member", host=host) as node:
        task_status.started(node)
        await trio.sleep_forever()
