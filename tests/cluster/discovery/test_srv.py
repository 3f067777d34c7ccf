"""SRV records, asked of a name server on this machine."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

pytest.importorskip("dns", reason="the extra dns")

import dns.rcode
from dns.resolver import Resolver

from iris.cluster.discovery import srv
from iris.cluster.discovery.dns import MAX_ADDRESSES
from iris.cluster.discovery.seeds import resolve_seed
from iris.cluster.discovery.srv import system_resolver
from iris.kernel.errors import NotSent
from tests.support.name_server import NameServer, open_name_server

NAME = "_iris._tcp.example.org"


@pytest.fixture
def server() -> Iterator[NameServer]:
    with open_name_server() as server:
        yield server


async def ask(server: NameServer) -> tuple[str, ...]:
    return await resolve_seed(f"dns+srv://{NAME}", make_resolver=server.resolver)


async def test_records_are_hosts_and_ports_by_priority_and_weight(server: NameServer) -> None:
    server.records[NAME, "SRV"] = [
        "20 0 7003 c.example.org.",
        "10 1 7001 a.example.org.",
        "10 9 7002 b.example.org.",
        "10 9 0 nobody.example.org.",
    ]
    assert await ask(server) == ("tcp://b.example.org:7002", "tcp://a.example.org:7001", "tcp://c.example.org:7003")
    server.records[NAME, "SRV"] = ["0 0 7000 d.example.org."]
    assert await ask(server) == ("tcp://d.example.org:7000",), "asked anew each time"


async def test_targets_that_are_no_names_of_hosts_are_left_out(server: NameServer) -> None:
    odd = ["a/b.", "*.", "u\\@h.", "a\\.b.example.org.", "\\027[2J.", "[.", "h?x.", "."]
    server.records[NAME, "SRV"] = [f"0 0 7000 {name}" for name in (*odd, "a.example.org.", "10.0.0.1.")]
    assert set(await ask(server)) == {"tcp://a.example.org:7000", "tcp://10.0.0.1:7000"}
    server.records[NAME, "SRV"] = ["0 0 7000 *."]
    with pytest.raises(NotSent, match="there is no such service"):
        await ask(server)


async def test_what_is_too_long_for_udp_comes_by_tcp_and_so_many_are_taken(server: NameServer) -> None:
    server.records[NAME, "SRV"] = [f"0 0 7000 pod-{number}.prices.example.org." for number in range(500)]
    found = await ask(server)
    assert len(found) == len(set(found)) == MAX_ADDRESSES
    assert {way for way, _ in server.asked} == {"udp", "tcp"}


async def test_each_way_in_which_a_name_has_no_service_is_told_apart(server: NameServer) -> None:
    with pytest.raises(NotSent, match=f"dns\\+srv://{NAME}: the name is not known"):
        await ask(server)
    server.records[NAME, "A"] = ["10.0.0.1"]
    with pytest.raises(NotSent, match="the name has no SRV records"):
        await ask(server)
    server.records[NAME, "SRV"] = ["0 0 0 ."]
    with pytest.raises(NotSent, match="there is no such service"):
        await ask(server)
    server.rcode = dns.rcode.SERVFAIL
    with pytest.raises(NotSent, match="no name server has an answer"):
        await ask(server)


async def test_a_name_server_that_says_nothing_is_not_waited_for(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(srv, "PATIENCE", 0.3)
    server.is_silent = True
    with trio.fail_after(20), pytest.raises(NotSent, match=r"no name server answers within 0\.3 s"):
        await ask(server)


async def test_an_answer_that_is_no_dns_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srv, "PATIENCE", 0.5)

    class Noise(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, socket = self.request
            socket.sendto(question[:2] + b"\xff" * 40, self.client_address)

    server = NameServer()
    with socketserver.UDPServer(("127.0.0.1", 0), Noise) as udp:
        server.port = udp.server_address[1]
        thread = threading.Thread(target=udp.serve_forever, args=(0.02,))
        thread.start()
        try:
            with trio.fail_after(20), pytest.raises(NotSent, match=NAME):
                await ask(server)
        finally:
            udp.shutdown()
            thread.join()


def test_the_resolver_of_this_machine_can_be_made() -> None:
    assert system_resolver().nameservers or not Path("/etc/resolv.conf").read_text()


@pytest.mark.parametrize("text", [b"nameserver nowhere\n", b"# \xff\nnameserver 127.0.0.1\n", b"search a..b\n", b""])
async def test_a_resolv_conf_that_cannot_be_used_is_a_failure_of_that_seed(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "resolv.conf").write_bytes(text)
    with pytest.raises(NotSent, match="the name servers cannot be asked"):
        await resolve_seed(f"dns+srv://{NAME}", make_resolver=lambda: Resolver(str(tmp_path / "resolv.conf")))
