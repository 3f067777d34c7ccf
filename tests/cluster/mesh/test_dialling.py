"""Linking by several addresses, some of which lead nowhere, and to a node that breaks its links."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.dialer import AT_A_TIME, _groups
from iris.cluster.mesh.reconnect import EVERY, FREE
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.transport.memory import MemoryOutgoing
from iris.kernel.transport.port import ConnectionUser, Permit, Refused
from iris.security.channel.handshake import Initiator
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.realms import WALL
from tests.support.transports import ignore


async def add_dead(fleet: Fleet, *names: str) -> list[str]:
    """Return addresses from which no packet comes back to anybody."""
    urls = [f"mem://{name}" for name in names]
    for name, url in zip(names, urls, strict=True):
        await fleet.network.transport(name).listen([url])
    fleet.network.partition(list(fleet.nodes), names)
    return urls


def count_dials(node: MeshNode) -> list[tuple[float, str]]:
    """Return a list that gets the moment and the address of each dial from now on."""
    dials: list[tuple[float, str]] = []
    plain, began = node.transport.dial, trio.current_time()

    async def dial(url: str, user: ConnectionUser, permit: Permit | None = None) -> MemoryOutgoing:
        dials.append((trio.current_time() - began, url))
        return await plain(url, user, permit)

    node.transport.dial = dial  # type: ignore[method-assign]
    return dials


async def test_dead_addresses_before_the_good_one_cost_a_moment_each(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        dead = await add_dead(fleet, "one", "two", "three")
        began = trio.current_time()
        peer = await a.mesh.connect([*dead, b.url], expected=b.id)
        assert trio.current_time() - began < 0.8
        assert peer.reached == b.url


async def test_if_all_addresses_are_dead_a_handshakes_time_is_all_that_they_take(autojump_clock: MockClock) -> None:
    async with open_meshes("a", linked=False) as fleet:
        dead = await add_dead(fleet, *(f"dead-{number}" for number in range(16)))
        began = trio.current_time()
        with pytest.raises(NotSent, match="no answer from mem://dead-0 within 5 s") as caught:
            await fleet["a"].mesh.connect(dead)
        assert not isinstance(caught.value, Refused)
        assert trio.current_time() - began == pytest.approx(5.0)


@pytest.mark.parametrize("broken_by", ["network", "peer"])
async def test_a_peer_with_a_dead_address_is_reached_again_at_once(autojump_clock: MockClock, broken_by: str) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        peer = a.peer(b)
        peer.addresses = (*await add_dead(fleet, "dead"), *peer.addresses)
        dials = count_dials(a)
        if broken_by == "network":
            a.break_connections(b)
        else:
            fleet.network.crash("nobody")
            trio.lowlevel.current_trio_token().run_sync_soon(a.break_connections, b)
        await trio.sleep(1.0)
        assert a.peer(b) is peer
        assert peer.link.is_up
        assert peer.reached == b.url
        assert [url for _, url in dials] == ["mem://dead", b.url]


async def test_the_first_redials_after_a_break_are_quick_and_later_ones_of_links_that_do_not_live_are_not(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await trio.sleep(10)
        dials = count_dials(a)
        for _ in range(240):
            a.break_connections(b)
            await trio.sleep(0.5)
        assert [round(at, 1) for at, _ in dials[:FREE]] == [number / 2 for number in range(FREE)]
        assert len(dials) <= FREE + 120 / EVERY + 1, "it would be 240"
        assert a.peer(b).node == b.id
        # One that lives is as good as any other.
        await trio.sleep(3 * EVERY)
        dials.clear()
        a.break_connections(b)
        await trio.sleep(1)
        assert a.peer(b).link.is_up
        assert len(dials) == 1


@pytest.mark.parametrize(
    ("urls", "groups"),
    [
        ([], []),
        (["tcp://a:1"], [("tcp://a:1",)]),
        (["ipc:///x", "tcp://a:1", "ws://a:2"], [("ipc:///x", "tcp://a:1", "ws://a:2")]),
        (["via://" + "1" * 32, "ws://a:1"], [("ws://a:1",), ("via://" + "1" * 32,)]),
        (["site://s/" + "1" * 32], [("site://s/" + "1" * 32,)]),
    ],
)
def test_ways_through_others_come_last_and_each_by_itself(urls: list[str], groups: list[tuple[str, ...]]) -> None:
    assert list(_groups(urls)) == groups


async def test_hosts_that_others_name_in_vain_are_dialled_so_often_and_the_users_own_as_often_as_ever(
    autojump_clock: MockClock,
) -> None:
    config = Config(failed_dials=3, failed_dial_rate=0.001)
    async with open_meshes("a", "b", linked=False, config=config) as fleet:
        a, b = fleet["a"], fleet["b"]
        for number in range(3):
            with pytest.raises(Refused):
                await a.mesh.connect([f"mem://b:{number}"], source="cluster c", hearsay=True)
        with pytest.raises(NotSent, match="b was dialled too often lately where nobody was found") as caught:
            await a.mesh.connect([f"mem://{b.name}"], source="cluster c", hearsay=True)
        assert not isinstance(caught.value, Refused), "which would be evidence against the node"
        assert a.mesh.refusals["dial to a host where nobody was found"] == 1
        with pytest.raises(Refused):
            await a.mesh.connect(["mem://b:4"], source="cluster b", hearsay=True)
        for number in range(10):
            with pytest.raises(Refused):
                await a.mesh.connect([f"mem://b:{number}"], source="seeds")
        await a.mesh.connect([b.url])


async def test_hundreds_of_nodes_of_one_cluster_on_one_host_are_all_linked(autojump_clock: MockClock) -> None:
    """None of those that are found counts."""
    config = Config(failed_dials=AT_A_TIME, failed_dial_rate=0.001)
    async with open_meshes("a", linked=False, config=config) as fleet, AsyncExitStack() as stack:
        urls = [f"mem://host:{number}" for number in range(1, 150)]
        for number, url in enumerate(urls):
            await stack.enter_async_context(fleet.open_node(f"b{number}", url=url))
        async with trio.open_nursery() as nursery:
            for url in urls:
                nursery.start_soon(partial(fleet["a"].mesh.connect, [url], source="cluster b", hearsay=True))
        assert len(fleet["a"].mesh.peers) == len(urls)


@pytest.mark.parametrize(("first", "refused"), [("mem://b", 0), ("mem://elsewhere", 3)])
async def test_a_peer_is_dialled_again_where_it_was_found_as_often_as_ever_and_elsewhere_as_what_others_tell(
    autojump_clock: MockClock, first: str, refused: int
) -> None:
    async with open_meshes("a", "b", config=Config(failed_dials=2, failed_dial_rate=0.001)) as fleet:
        a, b = fleet["a"], fleet["b"]
        peer = a.peer(b)
        peer.addresses = (first, b.url)
        for _ in range(5):
            a.break_connections(b)
            await trio.sleep(2.0)
            assert a.peer(b) is peer
            assert peer.link.is_up
        assert a.mesh.refusals["dial to a host where nobody was found"] == refused


@pytest.mark.parametrize(("told", "refused"), [("mem://victim:1", 2 * (19 - 5)), ("mem://10.0.0.1:1", 19 - 5)])
async def test_strangers_have_another_host_dialled_so_often_and_their_own_as_often_as_they_come(
    autojump_clock: MockClock, told: str, refused: int
) -> None:
    config = Config(failed_dials=5, failed_dial_rate=0.001)
    async with open_meshes("a", linked=False, config=config) as fleet:
        a = fleet["a"]
        dials = count_dials(a)
        for stranger in ("10.0.0.1", "10.0.0.2"):
            way = await fleet.network.transport(stranger).dial(a.url, ignore)
            for index in range(1, 20):
                identity = fleet.realm.identity("gone")
                hello = wire.pack((identity.node_id, (told,)))
                frame = Initiator(identity, index=index, hello=hello, entropy=fleet.realm.entropy, wall_now=WALL).frame
                way.send_nowait(frame)
                await trio.sleep(0.1)
        assert len(dials) == 38
        assert a.mesh.refusals["dial to a host where nobody was found"] == refused
