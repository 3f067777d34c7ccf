"""Addresses at which others can reach a node."""

from __future__ import annotations

import pytest

from iris.cluster import addresses
from iris.cluster.addresses import advertised, is_lasting, is_loopback, return_urls, source_url


@pytest.fixture
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["192.0.2.7", "10.1.2.3", "[2001:db8::7]"]
    monkeypatch.setattr(addresses, "_interface_addresses", lambda: found)


@pytest.mark.usefixtures("_interfaces")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("tcp://192.0.2.7:5000", ["tcp://192.0.2.7:5000"]),
        ("tcp://0.0.0.0:5000", ["tcp://192.0.2.7:5000", "tcp://10.1.2.3:5000"]),
        ("tcp://*:5000", ["tcp://192.0.2.7:5000", "tcp://10.1.2.3:5000"]),
        ("tcp://:5000", ["tcp://192.0.2.7:5000", "tcp://10.1.2.3:5000"]),
        ("tcp://[::]:5000", ["tcp://[2001:db8::7]:5000"]),
        ("ws://0.0.0.0:80/iris", ["ws://192.0.2.7:80/iris", "ws://10.1.2.3:80/iris"]),
        ("ipc:///run/iris/x", ["ipc:///run/iris/x"]),
        ("mem://a", ["mem://a"]),
        ("tcp://db.example:5000", ["tcp://db.example:5000"]),
    ],
)
def test_a_wildcard_is_told_as_the_addresses_it_stands_for(url: str, told: list[str]) -> None:
    assert list(advertised([url])) == told


@pytest.mark.usefixtures("_interfaces")
def test_nothing_is_told_twice() -> None:
    assert advertised(["tcp://*:1", "tcp://0.0.0.0:1", "tcp://10.1.2.3:1"]) == ("tcp://192.0.2.7:1", "tcp://10.1.2.3:1")


def test_the_interfaces_of_this_machine_have_addresses() -> None:
    for told in advertised(["tcp://0.0.0.0:5000"]):
        assert told.startswith("tcp://")
        assert "0.0.0.0" not in told


@pytest.mark.usefixtures("_interfaces")
async def test_the_way_back_begins_with_the_address_that_faces_the_other() -> None:
    assert (await return_urls(["tcp://0.0.0.0:5000"], "tcp://127.0.0.1:6000"))[0] == "tcp://127.0.0.1:5000"
    assert (await return_urls(["ws://*:80/x"], "tcp://127.0.0.1:6000"))[0] == "ws://127.0.0.1:80/x"


@pytest.mark.usefixtures("_interfaces")
async def test_the_way_back_keeps_to_its_family() -> None:
    """A wildcard of IPv6 cannot be reached at an address of IPv4, nor the other way round."""
    assert await return_urls(["tcp://[::]:5000"], "tcp://127.0.0.1:6000") == ("tcp://[2001:db8::7]:5000",)
    assert "tcp://[::1]:5000" not in await return_urls(["tcp://0.0.0.0:5000"], "tcp://[::1]:6000")


async def test_of_several_ways_back_those_of_the_same_kind_come_first() -> None:
    own = ["ipc:///x", "ws://10.0.0.1:1/", "tcp://10.0.0.1:2"]
    assert await return_urls(own, "tcp://127.0.0.1:1") == ("tcp://10.0.0.1:2", "ipc:///x", "ws://10.0.0.1:1/")
    assert await return_urls(own, "ipc:///y") == ("ipc:///x", "ws://10.0.0.1:1/", "tcp://10.0.0.1:2")


@pytest.mark.parametrize(
    "dialled",
    ["tcp://nosuch.invalid:1", "tcp://:1", "tcp://[zz]:1", "nonsense", "", "tcp://" + "a" * 300 + ":1", "tcp://ä..b:1"],
)
async def test_an_address_that_leads_nowhere_does_no_harm(dialled: str) -> None:
    assert await return_urls(["tcp://10.0.0.1:2"], dialled) == ("tcp://10.0.0.1:2",)


async def test_the_address_that_faces_a_seed() -> None:
    assert await source_url("tcp://127.0.0.1:9") == "tcp://127.0.0.1:0"
    assert await source_url("ipc:///x") is None
    assert await source_url("tcp://nosuch.invalid:9") is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.10:1", True),
        ("tcp://[::1]:1", True),
        ("ws://localhost:1/x", True),
        ("ipc:///x", True),
        ("mem://x", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://*:1", False),
        ("tcp://:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://[::]:1", False),
        ("tcp://localhost.example:1", False),
        ("nonsense", False),
    ],
)
def test_which_addresses_are_of_this_machine_only(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://10.0.0.1:1", True),
        ("ws://iris.example:80/iris", True),
        ("tcp://[2001:db8::1]:1", True),
        ("mem://x", True),
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://localhost:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://*:1", False),
        ("ipc:///x", False),
        ("nonsense", False),
    ],
)
def test_which_addresses_are_worth_remembering(url: str, expected: bool) -> None:
    assert is_lasting(url) is expected
