"""The notice board of the local network: what is announced is what is found, and news wake those who wait for them."""

from __future__ import annotations

import ipaddress
from random import Random
from typing import Any, Final

import pytest
import trio
import zeroconf
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked
from zeroconf._dns import DNSAddress, DNSPointer, DNSService

from iris.cluster.addresses import split_url
from iris.cluster.discovery import mdns_service as lan_board
from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns import open_lan, realm_mark
from iris.cluster.discovery.mdns_records import MAX_FOLLOWED, TYPE, FollowedAnnouncements, announcements, urls_untrusted
from iris.cluster.discovery.mdns_service import RecordFilter

MARK: Final = realm_mark("1" * 32)
OWN: Final = "aaaa"

HOSTS: Final = st.one_of(
    st.integers(0, 2**20).map(lambda number: str(ipaddress.IPv4Address(0x0A000001 + number))),
    st.integers(1, 2**20).map(lambda number: f"[{ipaddress.IPv6Address((0x20010DB8 << 96) + number)}]"),
)
URLS: Final = st.one_of(
    st.builds("tcp://{}:{}".format, HOSTS, st.integers(1, 65535)),
    st.builds("ws://{}:{}/{}".format, HOSTS, st.integers(1, 65535), st.sampled_from(["iris", "gateway"])),
)


def found(info: zeroconf.ServiceInfo) -> tuple[str, ...]:
    """Return the addresses that another node reads from an announcement."""
    return urls_untrusted(info.parsed_addresses(), info.port, info.properties)


@given(st.lists(URLS, max_size=8, unique=True))
def test_what_is_announced_is_what_others_find(urls: list[str]) -> None:
    infos = announcements(MARK, OWN, urls, loopback=False)
    assert sorted(url for info in infos for url in found(info)) == sorted(urls)
    assert len({info.name for info in infos}) == len(infos), "one name for each port"
    ports = {(parts[0], parts[2]) for parts in map(split_url, urls) if parts is not None}
    assert len(infos) == len(ports)


@pytest.mark.parametrize(
    "url",
    ["ipc:///run/iris/x", "mem://x", "tcp://localhost:7", "tcp://127.0.0.1:7", "tcp://[::1]:7", "tcp://host.example:7"],
)
def test_what_leads_nowhere_for_others_is_not_announced(url: str) -> None:
    assert announcements(MARK, OWN, [url], loopback=False) == []


@pytest.mark.parametrize(
    "name", [f"{MARK}-aaaa", f"{MARK}-aaaa-0", f"{MARK}-aaaa-17", MARK, "", "x", f"{'0' * 16}-bbbb-0"]
)
def test_a_node_is_not_concerned_by_itself_nor_by_other_realms(name: str) -> None:
    lan = LocalNetwork(MARK, OWN)
    lan.found(name, ("tcp://10.0.0.1:1",))
    assert not lan.concerns(name)
    assert lan.urls() == []
    assert repr(lan) == "<LocalNetwork with 0 other nodes>"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["found", "found", "lost"]), st.integers(0, 90), st.lists(st.integers(1, 9), max_size=2)
        ),
        max_size=150,
    )
)
def test_the_board_holds_the_newest_announcements_of_others(steps: list[tuple[str, int, list[int]]]) -> None:
    lan = LocalNetwork(MARK, OWN)
    plain: dict[str, tuple[str, ...]] = {}
    for what, number, ports in steps:
        name = f"{MARK}-{number:04d}-0"
        urls = tuple(f"tcp://10.0.0.{number}:{port}" for port in ports)
        if what == "lost":
            lan.lost(name)
            plain.pop(name, None)
        else:
            lan.found(name, urls)
            if urls:
                plain.pop(name, None)
                plain[name] = urls
                while len(plain) > 64:
                    del plain[next(iter(plain))]
        assert lan.urls() == [url for known in plain.values() for url in known]
        assert repr(lan) == f"<LocalNetwork with {len(plain)} other nodes>"


async def test_news_wake_everybody_who_waits_and_nothing_else_does(autojump_clock: MockClock) -> None:
    lan = LocalNetwork(MARK, OWN)
    woken: list[float] = []
    began = trio.current_time()

    async def wait() -> None:
        await lan.wait_news(100)
        woken.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        lan.found(f"{MARK}-{OWN}-0", ("tcp://10.0.0.1:1",))
        lan.lost(f"{MARK}-bbbb-0")
        await trio.sleep(1)
        lan.found(f"{MARK}-bbbb-0", ("tcp://10.0.0.1:1",))
        await wait_all_tasks_blocked()
        nursery.start_soon(wait)
        await trio.sleep(1)
        lan.lost(f"{MARK}-bbbb-0")
    assert woken == [2, 2, 2, 3]


async def test_without_news_the_wait_ends_with_its_patience(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    await LocalNetwork(MARK, OWN).wait_news(3)
    assert trio.current_time() - began == 3


class Machinery:
    """Stand-in for the package, without a network: it keeps what is registered, and closes on demand."""

    registered: list[str]
    closed: int
    error: Exception | None

    def __init__(self) -> None:
        self.registered = []
        self.closed = 0
        self.error = None

    def __call__(self, **_: Any) -> Machinery:
        return self

    def register_service(self, info: zeroconf.ServiceInfo, *, cooperating_responders: bool) -> None:
        assert cooperating_responders, "names are random, nobody need be asked"
        self.registered.append(info.name)

    def close(self) -> None:
        self.closed += 1


def browse(*_: object, **__: object) -> None:
    """Look for others, of whom there are none."""


def pointer(name: str, ttl: int = 4500, created: float = 1.0) -> DNSPointer:
    return DNSPointer(TYPE, 12, 1, ttl, f"{name}.{TYPE}", created)


class Heard:
    """Announcements that pass a sieve, and those that are left out."""

    def __init__(self) -> None:
        self.lan = LocalNetwork(MARK, OWN)
        self.followed = FollowedAnnouncements(Random(7))
        self.lacking: list[str | None] = []
        self.sieve = RecordFilter(self.followed, self)

    def concerns(self, name: str) -> bool:
        return self.lan.concerns(name)

    def left_out(self, name: str | None) -> None:
        self.lacking.append(name)

    def hear(self, record: object, now: float = 0.0, *, before: bool = False) -> bool:
        update = zeroconf.RecordUpdate(record, record if before else None)  # type: ignore[arg-type]
        kept = self.sieve.keep(update, now * 1000)
        assert kept is None or kept.new is record
        return kept is not None


def test_what_is_announced_of_this_realm_comes_through_and_nothing_else() -> None:
    heard = Heard()
    assert heard.hear(pointer(f"{MARK}-bbbb-0"))
    assert heard.hear(pointer(f"{MARK}-bbbb-0"), before=True)
    assert not heard.hear(pointer(f"{MARK}-{OWN}-0")), "this node's own"
    assert not heard.hear(pointer(f"{realm_mark('2' * 32)}-bbbb-0")), "another realm's"
    assert not heard.hear(DNSPointer("_other._tcp.local.", 12, 1, 4500, f"{MARK}-cccc-0.{TYPE}", 0.0))
    assert not heard.hear(pointer(f"{MARK}-dddd-0", ttl=4501)), "nobody announces itself for that long"
    assert heard.followed.ignored == 0


def test_addresses_come_through_for_those_that_are_followed() -> None:
    heard = Heard()
    heard.hear(pointer(f"{MARK}-bbbb-0"))
    for name in ("bbbb", "cccc"):
        service = DNSService(f"{MARK}-{name}-0.{TYPE}", 33, 1, 120, 0, 0, 7, f"{MARK}-{name}-0.local.", 0.0)
        address = DNSAddress(f"{MARK}-{name}-0.local.", 1, 1, 120, b"\n\0\0\1", created=0.0)
        assert heard.hear(service) == heard.hear(address) == (name == "bbbb")


def test_of_thousands_of_announcements_few_come_through_however_often_they_are_repeated() -> None:
    heard = Heard()
    flood = [pointer(f"{MARK}-{number}-0") for number in range(5000)]
    assert sum(map(heard.hear, flood)) == MAX_FOLLOWED + 1
    assert len(heard.lacking) == 5000 - MAX_FOLLOWED == heard.followed.ignored
    assert [f"{name}.{TYPE}" for name in heard.lacking if name is not None] == [
        one.alias for one in heard.sieve.dropped
    ]
    assert len(heard.sieve.dropped) == 1
    kept = sum(heard.hear(record, before=True) for record in flood)
    assert kept == MAX_FOLLOWED
    assert len(heard.sieve._pointers) == MAX_FOLLOWED


def test_one_that_was_passed_over_is_followed_when_it_is_heard_again_and_there_is_room() -> None:
    heard = Heard()
    flood = [pointer(f"{MARK}-{number}-0") for number in range(MAX_FOLLOWED)]
    assert all(map(heard.hear, flood))
    assert heard.hear(pointer(f"{MARK}-first-0"), 1.0), "one takes the place of another"
    late = pointer(f"{MARK}-late-0", created=1000.0)
    assert not heard.hear(late, 1.5)
    gone = next(record for record in flood if f"{record.alias.split('.')[0]}" in heard.followed)
    assert heard.hear(gone, 5000.0), "it has run out"
    assert not heard.hear(gone, 5000.0), "nobody is told twice"
    assert heard.hear(late, 2.0, before=True)


@pytest.fixture
def machinery(monkeypatch: pytest.MonkeyPatch) -> Machinery:
    made = Machinery()
    monkeypatch.setattr(zeroconf, "Zeroconf", made)
    monkeypatch.setattr(lan_board, "Browser", browse)
    return made


async def test_a_node_announces_each_of_its_ports_and_takes_them_back(machinery: Machinery) -> None:
    urls = ("tcp://10.0.0.1:1", "tcp://10.0.0.2:1", "ws://10.0.0.1:80/x", "tcp://127.0.0.1:9")
    async with open_lan("1" * 32, OWN, urls):
        with trio.fail_after(60):
            while len(machinery.registered) < 2:  # noqa: ASYNC110 -- by the clock: it happens on a thread
                await trio.sleep(0.001)
        closed_before = machinery.closed
    assert [name.split(".")[0] for name in machinery.registered] == [f"{MARK}-{OWN}-0", f"{MARK}-{OWN}-1"]
    assert (closed_before, machinery.closed) == (0, 1)


async def test_the_board_is_closed_also_when_the_block_fails_or_is_cancelled(machinery: Machinery) -> None:
    async def fail() -> None:
        async with open_lan("1" * 32, OWN, ()):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert machinery.closed == 1
    with trio.CancelScope() as scope:
        async with open_lan("1" * 32, OWN, ()):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert machinery.closed == 2
