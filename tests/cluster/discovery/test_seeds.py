"""What a node keeps of its seeds: their last answers, and what came of asking."""

from __future__ import annotations

import itertools
import logging
import random
import sys
from types import ModuleType

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.discovery.dns import MAX_ADDRESSES
from iris.cluster.discovery.seeds import Seeds
from iris.kernel.errors import ConfigError, NotSent

SRV = "dns+srv://_iris._tcp.example.org"
API = "kubernetes://shop/prices"
FILE = "file:///etc/iris/seeds"
NAME = "tcp://prices:7000"


class World:
    """Who is asked what seeds stand for; a text is the reason why nobody knows."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, ...] | str] = {}
        self.asked: list[tuple[float, str]] = []

    async def resolve(self, url: str) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        self.asked.append((trio.current_time(), url))
        answer = self.answers.get(url, (url,))
        if isinstance(answer, str):
            raise NotSent(f"{url}: {answer}")
        return answer

    def seeds(self, *urls: str, seed: int = 1) -> Seeds:
        return Seeds(urls, self.resolve, random.Random(seed), trio.current_time)


async def test_a_seed_that_fails_stands_for_what_it_did_before_and_says_so_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    seeds = world.seeds(API)
    world.answers[API] = ("tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000")
    assert await seeds.resolve(API) == world.answers[API]
    world.answers[API] = "the status is 500"
    began = trio.current_time()
    for _ in range(5):
        assert await seeds.resolve(API) == ("tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000")
        await trio.sleep(10)
    assert [record.getMessage() for record in caplog.records] == [
        f"{API}: the status is 500; its last 2 addresses stay in use; trying again"
    ]
    known = seeds.statistics()[API]
    assert (known.source, known.answered, known.failed, known.addresses) == ("kubernetes", 1, 5, 2)
    assert (known.answered_at, known.error) == (began, f"{API}: the status is 500")
    caplog.clear()
    caplog.set_level(logging.INFO)
    world.answers[API] = ("tcp://10.0.0.3:7000",)
    assert await seeds.resolve(API) == ("tcp://10.0.0.3:7000",)
    assert [record.getMessage() for record in caplog.records] == [f"{API} answers again"]
    known = seeds.statistics()[API]
    assert (known.error, known.answered_at) == (None, trio.current_time())


async def test_an_answer_without_an_address_is_a_failure(autojump_clock: MockClock) -> None:
    world = World()
    seeds = world.seeds(API)
    world.answers[API] = ("tcp://10.0.0.1:7000",)
    await seeds.resolve(API)
    world.answers[API] = ()
    assert await seeds.resolve(API) == ("tcp://10.0.0.1:7000",)
    assert seeds.statistics()[API].error == f"{API}: the answer has no address"


async def test_a_seed_that_has_never_answered_says_why_to_who_asks(autojump_clock: MockClock) -> None:
    world = World()
    world.answers[SRV] = "the name is not known"
    with pytest.raises(NotSent, match=r"_iris\._tcp\.example\.org: the name is not known"):
        await world.seeds(SRV).resolve(SRV)


@pytest.mark.parametrize("url", [SRV, API])
async def test_who_is_beyond_this_machine_and_fails_is_asked_again_after_growing_pauses(
    url: str, autojump_clock: MockClock
) -> None:
    world = World()
    world.answers[url] = "no"
    seeds = world.seeds(url)
    with trio.move_on_after(60):
        while True:
            with pytest.raises(NotSent):
                await seeds.resolve(url)
            await trio.sleep(0.05)
    times = [time for time, _ in world.asked]
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    bounds = [0.25, 0.5, 1.0, 2.0, *[5.0] * len(pauses)]
    assert len(pauses) > 8
    assert all(0.5 * bound <= pause <= 1.5 * bound + 0.1 for pause, bound in zip(pauses, bounds, strict=False))
    assert len({round(pause, 1) for pause in pauses[4:]}) > 2, "nodes that lost it together come back one by one"


@pytest.mark.parametrize("url", [FILE, NAME])
async def test_a_file_and_a_name_are_asked_at_each_attempt(url: str, autojump_clock: MockClock) -> None:
    world = World()
    world.answers[url] = "no"
    seeds = world.seeds(url)
    for _ in range(3):
        with pytest.raises(NotSent):
            await seeds.resolve(url)
    assert len(world.asked) == 3


async def test_names_in_an_answer_stand_for_their_addresses_and_a_dead_one_is_told(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.answers = {
        SRV: ("tcp://a.example:7000", "tcp://b.example:7001", "tcp://10.0.0.9:7002"),
        "tcp://a.example:7000": ("tcp://10.0.0.1:7000", "tcp://[2001:db8::1]:7000"),
        "tcp://b.example:7001": "not known",
    }
    seeds = world.seeds(SRV)
    assert await seeds.resolve(SRV) == ("tcp://10.0.0.1:7000", "tcp://[2001:db8::1]:7000", "tcp://10.0.0.9:7002")
    assert [record.getMessage() for record in caplog.records] == ["tcp://b.example:7001: not known; trying again"]
    world.answers["tcp://a.example:7000"] = "not known"
    assert "tcp://10.0.0.1:7000" in await seeds.resolve(SRV), "by the last answer of that name"


async def test_an_answer_of_nothing_but_dead_names_is_no_answer(autojump_clock: MockClock) -> None:
    world = World()
    world.answers = {SRV: ("tcp://a.example:1", "tcp://b.example:1")}
    world.answers |= {"tcp://a.example:1": "no", "tcp://b.example:1": "no"}
    seeds = world.seeds(SRV)
    with pytest.raises(NotSent, match="none of the 2 names in the answer is known"):
        await seeds.resolve(SRV)
    assert seeds.statistics()[SRV].failed == 1


async def test_of_many_addresses_each_node_takes_some_of_its_own_and_keeps_to_them(autojump_clock: MockClock) -> None:
    everybody = [f"tcp://10.0.{number // 250}.{number % 250}:7000" for number in range(500)]
    world = World()
    world.answers[API] = tuple(everybody)
    chosen = [await world.seeds(API, seed=number).resolve(API) for number in range(20)]
    assert {len(one) for one in chosen} == {MAX_ADDRESSES}
    assert len({url for one in chosen for url in one}) > 300, "they do not all come to the same ones"
    seeds = world.seeds(API)
    first = await seeds.resolve(API)
    world.answers[API] = tuple(reversed(everybody[5:]))
    assert len(set(await seeds.resolve(API)) & set(first)) >= MAX_ADDRESSES - 5


async def test_what_the_answers_of_years_name_is_forgotten_again(autojump_clock: MockClock) -> None:
    world = World()
    seeds = world.seeds(SRV)
    for number in range(100):
        names = tuple(f"tcp://pod-{number}-{one}.example:1" for one in range(32))
        world.answers |= {name: (f"tcp://10.0.0.{one}:1",) for one, name in enumerate(names)}
        world.answers[SRV] = names
        await seeds.resolve(SRV)
    assert len(seeds._names) == 1024


async def test_addresses_are_known_without_asking_once_a_source_has_named_them(autojump_clock: MockClock) -> None:
    world = World()
    world.answers[API] = ("tcp://10.0.0.2:7000",)
    seeds = world.seeds("tcp://10.0.0.1:7000", NAME, API)
    assert seeds.addresses() == ("tcp://10.0.0.1:7000", NAME)
    await seeds.resolve(API)
    assert seeds.addresses() == ("tcp://10.0.0.1:7000", NAME, "tcp://10.0.0.2:7000")
    assert set(seeds.statistics()) == {NAME, API}, "an address is asked of nobody"


async def test_srv_records_without_their_package_are_refused_before_a_node_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_nothing(_: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(ConfigError, match=r"needs dnspython: pip install 'iris-mesh\[dns\]'"):
        World().seeds(SRV)


@pytest.mark.parametrize("kind", ["module", "folder"])
async def test_something_else_of_the_name_dns_is_not_taken_for_the_package(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModuleType("dns")
    if kind == "folder":
        other.__path__ = []
    monkeypatch.setitem(sys.modules, "dns", other)
    monkeypatch.delitem(sys.modules, "dns.resolver", raising=False)
    with pytest.raises(ConfigError, match="needs dnspython"):
        World().seeds(SRV)
