"""Rules that decide which of the addresses reported by others are dialled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import iris
from iris.cluster.address_rules import AddressRules, Hearsay, NotDialled, check_listening, is_advertised_form
from iris.cluster.mesh.outbound import worst
from iris.cluster.swim.records import is_plain
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.port import Refused
from iris.security.channel.handshake import Initiator
from iris.testing import open_network
from tests.support.admission import open_reading_mesh
from tests.support.realms import WALL, TestRealm
from tests.support.transports import ignore

NODE = NodeId("0123456789abcdef" * 2)
TOLD = Hearsay(by="cluster a", node=NODE)


def rules(*networks: str, sockets: str | None = "/run/user/7/iris/realm") -> AddressRules:
    return AddressRules(networks=networks, sockets=sockets)


@pytest.mark.parametrize(
    "url",
    [
        "tcp://10.0.0.1:7000",
        "tcp://127.0.0.1:65535",
        "tcp://[2001:db8::1]:1",
        "tcp://node-7.rack_2.example:7000",
        "tcp://localhost:7000",
        "tcp://4c01db0b339c:7000",
        "ws://10.0.0.1:80/iris",
        "ws://[::1]:8080/gateway",
        f"ipc:///run/user/7/iris/realm/{NODE}",
        f"via://{NODE}",
        f"site://eu/{NODE}",
        "mem://host",
    ],
)
def test_what_nodes_say_of_themselves_is_dialled(url: str) -> None:
    rules().check_advertised(url, TOLD)
    assert is_plain(url)


@pytest.mark.parametrize(
    "url",
    [
        # what is asked of a web server is not for others to say
        "ws://10.0.0.1:80/admin",
        "ws://10.0.0.1:80/iris/../admin",
        "ws://10.0.0.1:80/iris/x",
        "ws://10.0.0.1:80/iris/",
        "ws://10.0.0.1:80/iris?delete=1",
        "ws://10.0.0.1:80/iris#x",
        "ws://10.0.0.1:80/iris%2e",
        "ws://10.0.0.1:80//iris",
        "ws://10.0.0.1:80/",
        "ws://10.0.0.1:80",
        "ws://10.0.0.1/iris",
        "ws://user:secret@10.0.0.1:80/iris",
        "ws://user@10.0.0.1:80/iris",
        "ws://10.0.0.1:80@evil.example:80/iris",
        "ws://10.0.0.1:80/iris\r\nX: y",
        "ws://10.0.0.1\r\nX:80/iris",
        "wss://10.0.0.1:80/iris",
        # hosts and ports
        "tcp://10.0.0.1:7000/x",
        "tcp://10.0.0.1:7000\n",
        "tcp://10.0.0.1:0",
        "tcp://10.0.0.1:65536",
        "tcp://10.0.0.1:07",
        "tcp://10.0.0.1:+7",
        "tcp://10.0.0.1:\u0667",
        "tcp://10.0.0.1",
        "tcp://:7000",
        "tcp://*:7000",
        "tcp://0.0.0.0:7000",
        "tcp://[::]:7000",
        "tcp://::1:7000",
        "tcp://[10.0.0.1]:7000",
        "tcp://[fe80::1%eth0]:7000",
        "tcp://127.1:7000",
        "tcp://0x7f.1:7000",
        "tcp://0x7f000001:7000",
        "tcp://2130706433:7000",
        "tcp://010.0.0.1:7000",
        "tcp://256.0.0.1:7000",
        "tcp://a..b:7000",
        "tcp://-a:7000",
        "tcp://a b:7000",
        "tcp://a\x00b:7000",
        "tcp://m\u00fcnchen.example:7000",
        f"tcp://{'a' * 64}.example:7000",
        # where no node of another machine can be, and clouds tell machines their secrets
        "tcp://169.254.169.254:80",
        "ws://169.254.169.254:80/iris",
        "tcp://[fe80::1]:7000",
        "tcp://224.0.0.1:7000",
        # sockets of other programs
        "ipc:///var/run/docker.sock",
        f"ipc:///run/user/7/iris/realm/{'1' * 32}",
        f"ipc:///run/user/7/iris/other/{NODE}",
        f"ipc:///run/user/7/iris/realm/../realm/{NODE}",
        f"ipc:///run/user/7/iris/realm/{NODE}\n",
        "ipc://",
        # what is no address
        "http://10.0.0.1:80/iris",
        "file:///etc/passwd",
        "TCP://10.0.0.1:7000",
        "",
        " tcp://10.0.0.1:7000",
    ],
)
def test_anything_else_is_not(url: str) -> None:
    with pytest.raises(NotDialled):
        rules().check_advertised(url, TOLD)


@pytest.mark.parametrize(
    ("url", "by_ipc", "permitted"),
    [
        ("ipc:///shared/a.sock", True, True),
        ("ipc:///shared/a.sock", False, False),
        ("ipc://relative", True, False),
        (f"ipc:///run/user/7/iris/realm/{NODE}", False, True),
    ],
)
def test_a_socket_is_taken_from_who_came_by_ipc_and_from_others_only_if_it_is_the_nodes_own(
    url: str, by_ipc: bool, permitted: bool
) -> None:
    told = Hearsay(by="stranger", node=NODE, by_ipc=by_ipc)
    if permitted:
        rules().check_advertised(url, told)
    else:
        with pytest.raises(NotDialled, match="socket of another machine"):
            rules().check_advertised(url, told)


@pytest.mark.parametrize("node", [NODE, None])
def test_a_node_without_a_directory_of_sockets_takes_none(node: NodeId | None) -> None:
    for url in (f"ipc://None/{node}", f"ipc:///{node}", f"ipc:///run/user/7/iris/realm/{node}"):
        with pytest.raises(NotDialled):
            rules(sockets=None).check_advertised(url, Hearsay(by="a", node=node))


@given(st.text(max_size=40))
def test_no_text_is_taken_that_leads_anywhere_else(text: str) -> None:
    for url in (text, f"tcp://{text}", f"tcp://{text}:1", f"ws://{text}/iris", f"ws://a:1{text}", f"ws://a:1/{text}"):
        if is_advertised_form(url):
            scheme, _, rest = url.partition("://")
            assert is_plain(url)
            assert not set(rest) & set("@?#%\\")
            assert rest.count("/") == (scheme == "ws")


@pytest.mark.parametrize(
    ("networks", "host", "permitted"),
    [
        ((), "10.0.0.1", True),
        (("10.0.0.0/8",), "10.255.0.1", True),
        (("10.0.0.0/8",), "::ffff:10.255.0.1", True),
        (("10.0.0.0/8",), "11.0.0.1", False),
        (("10.0.0.0/8", "192.0.2.7"), "192.0.2.7", True),
        (("10.0.0.0/8",), "2001:db8::1", False),
        (("2001:db8::/32",), "2001:db8::1%eth0", True),
        (("2001:db8::/32",), "2001:db9::1", False),
        (("10.0.0.0/8",), "a host in memory", True),
    ],
)
@pytest.mark.parametrize("told", [None, TOLD])
def test_hosts_of_other_networks_are_not_dialled_whoever_names_them(
    networks: tuple[str, ...], host: str, permitted: bool, told: Hearsay | None
) -> None:
    if permitted:
        rules(*networks).check_host(host, told)
    else:
        with pytest.raises(NotSent, match="in none of the networks that this node may dial"):
            rules(*networks).check_host(host, told)


@pytest.mark.parametrize("host", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "0.0.0.0", "224.0.0.1"])
def test_a_name_that_others_tell_of_does_not_lead_where_no_node_can_be(host: str) -> None:
    rules().check_host(host, None)
    with pytest.raises(NotSent, match="no node of another machine is at"):
        rules().check_host(host, TOLD)


def test_what_is_not_dialled_is_no_evidence() -> None:
    refused, cut_off, skipped = Refused("refused"), NotSent("cut off"), NotDialled("a socket of another machine")
    assert worst([skipped, refused]) is refused
    assert worst([skipped, cut_off, refused]) is cut_off
    assert worst([skipped]) is skipped


@pytest.mark.parametrize("networks", [["10.0.0.5/8"], ["everywhere"], [""], [7], [None]])
async def test_networks_that_are_none_are_refused_where_they_are_given(
    networks: Any, autojump_clock: MockClock
) -> None:
    async with open_network() as network:
        with pytest.raises(ConfigError, match=r"dial_networks: .* CIDR"):
            async with network.open_node(dial_networks=networks):
                pass


async def test_a_single_network_is_no_list() -> None:
    with pytest.raises(ConfigError, match=r"use a list of networks, \['10.0.0.0/8'\]"):
        async with iris.open_node(dial_networks="10.0.0.0/8"):
            pass


@pytest.mark.parametrize("networks", [(), ("10.0.0.0/24",), ("10.0.1.0/24",)])
async def test_a_node_links_to_members_in_its_networks_only(
    networks: tuple[str, ...], autojump_clock: MockClock
) -> None:
    async with (
        open_network() as network,
        network.open_node("a", host="10.0.0.1"),
        network.open_node("b", host="10.0.0.2", seeds=["10.0.0.1"], dial_networks=networks) as b,
    ):
        await trio.sleep(5)
        assert bool(b.statistics().links) == (networks != ("10.0.1.0/24",))


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("ws://0.0.0.0:7080/iris", True),
        ("ws://*:7080/gateway", True),
        ("tcp://*:7000", True),
        ("ipc:///anywhere", True),
        ("ws://0.0.0.0:7080", False),
        ("ws://0.0.0.0:7080/", False),
        ("ws://0.0.0.0:7080/iris/", False),
        ("ws://0.0.0.0:7080/iris?x", False),
        ("ws://0.0.0.0:7080/other", False),
        ("ws://user@0.0.0.0:7080/iris", False),
    ],
)
def test_a_node_listens_at_no_path_that_others_would_not_dial(url: str, fits: bool) -> None:
    if fits:
        assert check_listening(url) == url
    else:
        with pytest.raises(ConfigError, match="use ws://HOST:PORT/iris"):
            check_listening(url)


# -- over the real network, with the gate secret alone ---------------------------------------------------------


@final
class Bystander:
    """A program that is no node, at a port and a socket; what is said to it, it keeps."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.came = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        self.came.set()
        self.heard.append(await stream.receive_some(4096))
        await stream.aclose()


@asynccontextmanager
async def open_bystander(path: Path) -> AsyncIterator[tuple[Bystander, int]]:
    bystander = Bystander()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    unix = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await unix.bind(str(path))
    unix.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, bystander.serve, [listener, trio.SocketListener(unix)])
        yield bystander, listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def first_frame(realm: TestRealm, index: int, *urls: str) -> bytes:
    """Return the first frame of a peer that has the gate secret."""
    identity = realm.identity("nobody")
    hello = wire.pack((identity.node_id, urls))
    return Initiator(identity, index=index, hello=hello, entropy=realm.entropy, wall_now=WALL).frame


async def test_who_has_the_gate_secret_alone_has_a_node_say_nothing_of_his_choice_to_anybody(tmp_path: Path) -> None:
    realm, config, socket = TestRealm(1), Config(), tmp_path / "docker.sock"
    transport, stranger = NetworkTransport(config), NetworkTransport(config)
    listening = await transport.listen(["tcp://127.0.0.1:0", f"ipc://{tmp_path}/node"])
    async with (
        open_bystander(socket) as (bystander, port),
        open_reading_mesh(
            realm.identity("a"), transport, listening, config=config, entropy=realm.entropy, wall_clock=lambda: WALL
        ) as mesh,
    ):
        way = await stranger.dial(listening[0], ignore)
        try:
            hostile = (
                f"ipc://{socket}",
                f"ws://127.0.0.1:{port}/admin?delete=everything",
                f"ws://user:secret@127.0.0.1:{port}/iris",
                f"tcp://127.1:{port}",
            )
            for index, url in enumerate(hostile, 1):
                assert way.send_nowait(first_frame(realm, index, url))
            with trio.fail_after(60):
                while mesh.refusals["handshake without a way back"] < len(hostile):  # noqa: ASYNC110 -- a counter
                    await trio.sleep(0.01)
            assert bystander.heard == []
            assert mesh.refusals["address that no node has"] == len(hostile) - 1
            # What is left: all that it says to anybody is that it is a node.
            assert way.send_nowait(first_frame(realm, 10, f"ws://127.0.0.1:{port}/iris"))
            with trio.fail_after(60):
                await bystander.came.wait()
                while not bystander.heard:  # noqa: ASYNC110 -- it is read a moment later
                    await trio.sleep(0.01)
            lines = bystander.heard[0].decode().split("\r\n")
            assert lines[:2] == ["GET /iris HTTP/1.1", f"Host: 127.0.0.1:{port}"]
            assert not any(line.lower().startswith(("authorization", "cookie", "origin")) for line in lines)
        finally:
            way.close()
            stranger.close()


async def test_who_comes_by_ipc_is_answered_at_any_socket_of_his(tmp_path: Path) -> None:
    realm, config, socket = TestRealm(1), Config(), tmp_path / "his.sock"
    transport, stranger = NetworkTransport(config), NetworkTransport(config)
    listening = await transport.listen([f"ipc://{tmp_path}/node"])
    async with (
        open_bystander(socket) as (bystander, _),
        open_reading_mesh(
            realm.identity("a"), transport, listening, config=config, entropy=realm.entropy, wall_clock=lambda: WALL
        ),
    ):
        way = await stranger.dial(listening[0], ignore)
        try:
            assert way.send_nowait(first_frame(realm, 1, f"ipc://{socket}"))
            with trio.fail_after(60):
                await bystander.came.wait()
        finally:
            way.close()
            stranger.close()
