"""``iris.testing`` keeps what it promises to those who test their own services with it."""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.testing import Network
from tests.support.scheduling import seed_scheduler


def naming(host: str, cluster: str = "store") -> iris.Service:
    """Return a service that answers with the name of its host."""
    service = iris.Service(cluster)

    async def reply(_: iris.Request) -> object:
        await trio.sleep(0.001)
        return host

    service.request(reply)
    return service


async def open_members(stack: AsyncExitStack, network: Network, *hosts: str, **options: Any) -> dict[str, iris.Node]:
    nodes: dict[str, iris.Node] = {}
    for host in hosts:
        nodes[host] = await stack.enter_async_context(network.open_node("store", host=host, **options))
        await stack.enter_async_context(nodes[host].join("store", naming(host)))
    return nodes


def hosts_known(node: iris.Node, nodes: dict[str, iris.Node]) -> set[str]:
    names = {other.id: host for host, other in nodes.items()}
    return {names[member.node] for member in node.members("store")}


async def test_the_example_in_its_docstring_runs_as_it_stands(autojump_clock: MockClock) -> None:
    """People copy it."""
    lines = (inspect.getdoc(iris.testing) or "").partition("::\n\n")[2].splitlines()
    end = next(number for number, line in enumerate(lines) if line and not line.startswith(" "))
    service = iris.Service("orders")

    async def state(request: iris.Request) -> bytes:
        assert request.payload == b"status"
        await trio.lowlevel.checkpoint()
        return b"open"

    service.request(state)
    names: dict[str, Any] = {"iris": iris, "service": service}
    exec(textwrap.dedent("\n".join(lines[:end])), names)
    example: Callable[[object], Awaitable[None]] = names["test_orders"]
    await example(autojump_clock)


# -- seeds ---------------------------------------------------------------------------------------------------


def run_of(seed: int, *, loss: float = 0.0) -> list[object]:
    """Return everything that a small world does: who is who, who answers, and when."""
    seen: list[object] = []

    async def main() -> None:
        async with (
            iris.testing.open_network(seed=seed, loss=loss, latency=(0.001, 0.02)) as network,
            AsyncExitStack() as stack,
        ):
            nodes = await open_members(stack, network, "one", "two", "three")
            shop = await stack.enter_async_context(network.open_node("shop"))
            seen.extend([network.root.public, shop.id, *(node.id for node in nodes.values())])
            await shop.wait_for("store", members=3, timeout=20)
            for _ in range(20):
                reply = await shop.request("store", timeout=20, options=iris.RequestOptions(idempotent=True))
                seen.append((round(trio.current_time(), 9), reply))
            network.memory.crash("two")
            async with shop.watch("store") as changes:
                async for change in changes:
                    seen.append((round(trio.current_time(), 9), change.kind, change.member.node))
                    if change.kind == "lost":
                        break

    seed_scheduler(seed)
    trio.run(main, clock=MockClock(autojump_threshold=0))
    return seen


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_the_same_seed_gives_the_same_run_to_the_nanosecond(loss: float) -> None:
    assert run_of(11, loss=loss) == run_of(11, loss=loss)


def test_another_seed_gives_other_keys_other_nodes_and_other_times() -> None:
    one, other = run_of(1), run_of(2)
    assert not set(map(str, one)) & set(map(str, other))


# -- hosts ---------------------------------------------------------------------------------------------------


async def test_a_host_has_one_node_at_a_time(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network:
        async with network.open_node("a", host="x") as first:
            with pytest.raises(iris.ConfigError, match="a node on host 'x' already"):
                async with network.open_node("b", host="x"):
                    pass
        async with network.open_node("b", host="x") as second:
            assert second.id != first.id


async def test_nodes_without_a_host_get_one_that_is_free_whoever_has_come_and_gone(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as rest:
        first = trio.Event()

        async def come_and_go() -> None:
            async with network.open_node():
                await first.wait()

        nursery = await rest.enter_async_context(trio.open_nursery())
        nursery.start_soon(come_and_go)
        await trio.sleep(1)
        await rest.enter_async_context(network.open_node())
        first.set()
        await trio.sleep(5)
        await rest.enter_async_context(network.open_node(host="host-5"))
        nodes = [await rest.enter_async_context(network.open_node()) for _ in range(4)]
        assert len({address for node in nodes for address in node.addresses}) == 4


async def test_a_node_that_cannot_be_opened_leaves_its_host_free(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network:
        for _ in range(2):
            with pytest.raises(iris.ConfigError, match="no site"):
                async with network.open_node("a", host="x", site="no site"):
                    pass
        async with network.open_node("a", host="x") as node:
            assert node.addresses == ("mem://x",)


async def test_what_the_block_of_a_node_raises_comes_out_and_the_network_goes_on(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        await open_members(stack, network, "one")
        with pytest.raises(KeyError, match="mine"):
            async with network.open_node("shop", host="x"):
                raise KeyError("mine")
        async with network.open_node("shop", host="x") as shop:
            await shop.wait_for("store")
            assert await shop.request("store") == "one"


# -- faults --------------------------------------------------------------------------------------------------


async def test_a_partition_lets_nothing_through_and_ends_when_it_is_healed(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = await open_members(stack, network, "one", "two")
        shop = await stack.enter_async_context(network.open_node("shop", host="shop"))
        await shop.wait_for("store", members=2)
        network.memory.partition(["shop"], ["one", "two"])
        with pytest.raises((iris.RequestTimeout, iris.Unknown)):
            await shop.request("store", timeout=0.4)
        await trio.sleep(30)
        assert shop.members("store") == ()
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("store")
        assert len(nodes["one"].members("store")) == 2, "the other side is whole"
        network.memory.heal()
        await shop.wait_for("store", members=2, timeout=10)
        assert await shop.request("store") in {"one", "two"}


async def test_hosts_that_stand_in_no_group_hear_both_sides_and_keep_them_together(autojump_clock: MockClock) -> None:
    """Whom one member cannot reach is not dead while another one can: nobody is dropped for half a partition."""
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = await open_members(stack, network, "one", "two", "three")
        for node in nodes.values():
            await node.wait_for("store", members=3)
        network.memory.partition(["one"], ["two"])
        await trio.sleep(0.5)
        assert hosts_known(nodes["three"], nodes) == {"one", "two", "three"}
        network.memory.heal()
        await trio.sleep(10)
        for node in nodes.values():
            await node.wait_for("store", members=3)


async def test_of_three_groups_each_is_alone(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        nodes = await open_members(stack, network, "one", "two", "three")
        for node in nodes.values():
            await node.wait_for("store", members=3)
        network.memory.partition(*([host] for host in nodes))
        await trio.sleep(60)
        for host, node in nodes.items():
            assert hosts_known(node, nodes) == {host}
            assert await node.request("store") == host
        network.memory.heal()
        for node in nodes.values():
            await node.wait_for("store", members=3, timeout=20)


async def test_a_member_whose_replies_are_cut_off_answers_nobody(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        await open_members(stack, network, "one")
        shop = await stack.enter_async_context(network.open_node("shop", host="shop"))
        await shop.wait_for("store")
        network.memory.partition(["one"], ["shop"], one_way=True)
        with pytest.raises((iris.RequestTimeout, iris.Unknown)):
            await shop.request("store", timeout=0.4)


async def test_a_crash_is_felt_at_once_and_the_host_can_be_used_again(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        shop = await stack.enter_async_context(network.open_node("shop", host="shop"))
        async with AsyncExitStack() as first:
            await open_members(first, network, "one")
            await shop.wait_for("store")
            network.memory.crash("one")
            began = trio.current_time()
            with pytest.raises(iris.DeliveryError):
                await shop.request("store", timeout=30)
            assert trio.current_time() - began < 3
        await open_members(stack, network, "one")
        await shop.wait_for("store", timeout=10)
        assert await shop.request("store", timeout=5) == "one"


async def test_a_crash_of_a_host_that_does_not_exist_is_nothing(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("shop", host="shop") as shop:
        network.memory.crash("nobody")
        network.memory.partition(["nobody"], ["shop"])
        assert shop.members("shop") == ()


async def test_latency_is_what_a_round_trip_takes_and_can_be_changed(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network(latency=(0.05, 0.05)) as network, AsyncExitStack() as stack:
        await open_members(stack, network, "one")
        shop = await stack.enter_async_context(network.open_node("shop"))
        await shop.wait_for("store", timeout=20)
        for latency in (0.05, 0.001, 0.2):
            network.memory.latency = (latency, latency)
            await trio.sleep(1)  # what is in progress keeps the order, and so holds up what follows
            began = trio.current_time()
            assert await shop.request("store", timeout=20) == "one"
            assert 2 * latency <= trio.current_time() - began < 2 * latency + 0.01


# -- realm, sites, files -------------------------------------------------------------------------------------


async def test_the_date_goes_on_with_the_clock(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network:
        began = network.wall_clock()
        await trio.sleep(3600)
        assert network.wall_clock() - began == pytest.approx(3600)


async def test_a_cluster_has_one_credential_and_every_node_is_of_the_networks_realm(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network(seed=1) as network, network.open_node("shop") as node:
        credential = network.credential("shop")
        assert credential is network.credential("shop")
        assert network.credential("other").certificate.public_key != credential.certificate.public_key
        assert (node.name, node.realm) == ("shop", credential.realm_id)
        assert credential.realm == network.root.public


async def test_two_networks_in_one_run_know_nothing_of_each_other(autojump_clock: MockClock) -> None:
    async with (
        iris.testing.open_network(seed=1) as one,
        iris.testing.open_network(seed=1) as two,
        AsyncExitStack() as stack,
    ):
        await open_members(stack, one, "x")
        shop = await stack.enter_async_context(two.open_node("shop", host="shop"))
        await trio.sleep(10)
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("store")
        two.memory.crash("x")
        assert one.memory.find("mem://x") is not None


async def test_a_node_joins_through_the_seeds_it_is_given_and_without_any_is_alone(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        await open_members(stack, network, "one", "two")
        alone = await stack.enter_async_context(network.open_node("shop", seeds=[]))
        assert alone.members("store") == ()
        through = await stack.enter_async_context(network.open_node("shop", seeds=["two"]))
        await through.wait_for("store", members=2)
        assert len(through.members("store")) == 2


async def test_nothing_is_left_on_disk(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IRIS_HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    async with iris.testing.open_network() as network, AsyncExitStack() as stack:
        await open_members(stack, network, "one")
        shop = await stack.enter_async_context(network.open_node("shop"))
        await shop.wait_for("store")
        await trio.sleep(120)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 -- nothing here takes time
