"""The local network's notice board: opaque, bounded, believed by nobody."""

from __future__ import annotations

import os
from functools import partial

import pytest
import trio
import zeroconf
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock
from zeroconf._dns import DNSPointer
from zeroconf._protocol.outgoing import DNSOutgoing

from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns import open_lan, realm_mark
from iris.cluster.discovery.mdns_records import TYPE, announcements, urls_untrusted
from iris.kernel.errors import RemoteProtocolError

REALM, OTHER = f"1{os.getpid():031x}", f"2{os.getpid():031x}"
"""Ids of this process: announcements on loopback reach other tests on this machine."""
MARK = realm_mark(REALM)
LOOPBACK = ["127.0.0.1"]


def test_the_mark_of_a_realm_shows_nothing_of_its_fingerprint() -> None:
    assert MARK == realm_mark(REALM) != realm_mark(OTHER)
    assert len(MARK) == 16
    assert REALM[:8] not in MARK


def test_only_announcements_of_this_realm_and_of_others_concern_a_node() -> None:
    lan = LocalNetwork(MARK, "aaaa")
    lan.found(f"{MARK}-bbbb-0", ("tcp://10.0.0.1:1",))
    lan.found(f"{MARK}-aaaa-0", ("tcp://10.0.0.2:1",))
    lan.found(f"{realm_mark(OTHER)}-bbbb-0", ("tcp://10.0.0.3:1",))
    lan.found(MARK, ("tcp://10.0.0.4:1",))
    lan.found(f"{MARK}-cccc-0", ())
    assert lan.urls() == ["tcp://10.0.0.1:1"]
    lan.lost(f"{MARK}-bbbb-0")
    lan.lost(f"{MARK}-bbbb-0")
    assert lan.urls() == []


def test_a_flood_of_announcements_is_bounded() -> None:
    lan = LocalNetwork(MARK, "own")
    for number in range(1000):
        lan.found(f"{MARK}-{number}-0", (f"tcp://10.0.0.1:{number + 1}",))
    assert len(lan.urls()) == 64
    assert "tcp://10.0.0.1:1000" in lan.urls()


async def test_that_too_many_are_announced_is_counted_and_said_once_in_ten_minutes(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    lan = LocalNetwork(MARK, "own")
    lan.leave_out(0)
    assert not caplog.records
    for _ in range(1000):
        lan.leave_out(3)
    assert lan.left_out == 3000
    assert len(caplog.records) == 1
    assert "more than 64 nodes" in caplog.text
    await trio.sleep(600)
    lan.leave_out(1)
    assert len(caplog.records) == 2


def flood(mark: str, count: int) -> DNSOutgoing:
    """Return announcements of so many nodes that are not there."""
    message = DNSOutgoing(0x8400)
    for number in range(count):
        name = f"{mark}-f{number:05d}-0"
        message.add_answer_at_time(DNSPointer(TYPE, 12, 1, 4500, f"{name}.{TYPE}", 0.0), 0)
    return message


@pytest.mark.xdist_group("mdns")  # a flood would hold up those that look for each other meanwhile
async def test_thousands_of_nodes_that_are_made_up_hide_no_node_that_is_there_and_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    realm = f"{os.getpid():032x}"  # what is sent here reaches other tests on this machine
    here = partial(open_lan, interfaces=LOOPBACK)
    with trio.fail_after(60):
        async with here(realm, "aaaa", ("tcp://127.0.0.1:7001",)) as one:
            stranger = await trio.to_thread.run_sync(partial(zeroconf.Zeroconf, interfaces=LOOPBACK))
            try:
                async with here(realm, "bbbb", ("ws://127.0.0.1:7002/iris",)):
                    while not one.urls():
                        await one.wait_news(20)
                    # What is lost in flight is sent again.
                    while one.left_out < 1000:
                        await trio.to_thread.run_sync(stranger.send, flood(realm_mark(realm), 2000))
                        await trio.sleep(0.05)
                    assert set(one.urls()) <= {"ws://127.0.0.1:7002/iris"}, "the others have no addresses"
            finally:
                await trio.to_thread.run_sync(stranger.close)
    lines = [record.getMessage()[:18] for record in caplog.records if record.name == "iris"]
    assert set(lines) == {"more than 64 nodes"}
    assert len(lines) <= 2, "one of each of the two nodes"


@pytest.mark.parametrize(
    ("addresses", "port", "properties", "urls"),
    [
        (["10.0.0.1"], 7, {}, ("tcp://10.0.0.1:7",)),
        (["10.0.0.1", "2001:db8::1"], 7, {}, ("tcp://10.0.0.1:7", "tcp://[2001:db8::1]:7")),
        (["10.0.0.1"], 7, {b"ws": b"iris"}, ("ws://10.0.0.1:7/iris",)),
        (["10.0.0.1"], 7, {b"ws": b"/gateway"}, ("ws://10.0.0.1:7/gateway",)),
        (["10.0.0.1"], 7, {b"ws": None}, ("tcp://10.0.0.1:7",)),
        (["224.0.0.251", "0.0.0.0", "fe80::1", "nonsense", ""], 7, {}, ()),
        (["10.0.0.1"] * 100, 7, {}, ("tcp://10.0.0.1:7",) * 8),
        (["10.0.0.1"], 7, None, ("tcp://10.0.0.1:7",)),
        (["127.0.0.1", "::1", "10.0.0.1"], 7, {}, ("tcp://10.0.0.1:7",)),
    ],
)
def test_what_an_announcement_leads_to(
    addresses: list[str], port: object, properties: object, urls: tuple[str, ...]
) -> None:
    assert urls_untrusted(addresses, port, properties) == urls


@pytest.mark.parametrize(
    ("port", "properties"),
    [
        (0, {}),
        (65536, {}),
        (None, {}),
        (7, {b"ws": b""}),
        (7, {b"ws": b"admin?delete=1"}),
        (7, {b"ws": b"iris/x"}),
        (7, {b"ws": b"a b"}),
        (7, {b"ws": b"a\r\nHost: x"}),
        (7, {b"ws": b"\xff"}),
    ],
)
def test_announcements_that_make_no_sense(port: object, properties: object) -> None:
    with pytest.raises(RemoteProtocolError):
        urls_untrusted(["10.0.0.1"], port, properties)


@given(
    st.lists(st.text(max_size=20)),
    st.none() | st.integers(),
    st.none() | st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=20)),
)
def test_any_announcement_is_a_few_urls_or_refused(addresses: list[str], port: object, properties: object) -> None:
    try:
        found = urls_untrusted(addresses, port, properties)
    except RemoteProtocolError:
        return
    assert len(found) <= 8
    assert all(url.startswith(("tcp://", "ws://")) and url.isprintable() for url in found)


def test_what_is_announced_names_no_cluster_no_host_and_no_loopback_address() -> None:
    urls = ("tcp://10.0.0.1:7", "tcp://[2001:db8::1]:7", "ws://10.0.0.1:80/iris", "tcp://127.0.0.1:7", "ipc:///x")
    told = announcements(MARK, "aaaa", urls, loopback=False)
    assert [info.name.split(".")[0] for info in told] == [f"{MARK}-aaaa-0", f"{MARK}-aaaa-1"]
    assert [sorted(info.parsed_addresses()) for info in told] == [["10.0.0.1", "2001:db8::1"], ["10.0.0.1"]]
    assert [info.port for info in told] == [7, 80]
    assert [info.properties for info in told] == [{}, {b"ws": b"iris"}]
    assert all(info.server == f"{info.name.split('.')[0]}.local." for info in told)


@pytest.mark.xdist_group("mdns")
async def test_nodes_on_one_network_find_each_other_and_notice_who_goes() -> None:
    here = partial(open_lan, interfaces=LOOPBACK)
    with trio.fail_after(60):
        async with (
            here(REALM, "aaaa", ("tcp://127.0.0.1:7001",)) as one,
            here(OTHER, "cccc", ("tcp://127.0.0.1:7003",)) as stranger,
        ):
            async with here(REALM, "bbbb", ("ws://127.0.0.1:7002/iris",)) as two:
                for lan in (one, two):
                    while not lan.urls():
                        await lan.wait_news(20)
                assert one.urls() == ["ws://127.0.0.1:7002/iris"]
                assert two.urls() == ["tcp://127.0.0.1:7001"]
            while one.urls():
                await one.wait_news(20)
            assert stranger.urls() == []


async def test_a_machine_without_such_a_network_costs_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: object) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(zeroconf, "Zeroconf", broken)
    async with open_lan(REALM, "aaaa", ("tcp://10.0.0.1:1",)) as lan:
        assert lan.urls() == []
        await lan.wait_news(0.0)
    assert len(caplog.records) == 1
    assert "no such device" in caplog.text
