"""Documents: what the pages say of them, each sentence as a program with inputs of its own."""

from __future__ import annotations

import gc
import math
import os
import random
import threading
import time
import tracemalloc
from collections.abc import MutableSet
from contextlib import AsyncExitStack, suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

import iris
import iris.sync
import iris.testing
from iris.kernel.errors import ConfigError, Overloaded, RemoteError, RequestTimeout
from iris.patterns.state import SharedState
from iris.patterns.state.entries import COUNTER, SET, VALUE, Added, Edit, Entry, dot_of, encode
from iris.patterns.state.kept_copy import save_copy
from iris.patterns.state.shared_types import SharedMap, SharedSet
from iris.testing import Network
from tests.support.states import replica, same
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


async def opened(stack: AsyncExitStack, network: Network, *hosts: str, **options: Any) -> list[SharedState]:
    states: list[SharedState] = []
    for host in hosts:
        node = await stack.enter_async_context(network.open_node("prices", host=host))
        states.append(await stack.enter_async_context(node.state("prices", **options)))
    return states


def test_a_set_has_the_operators_of_a_set() -> None:
    one: MutableSet[Any] = SharedSet(replica(), "", "s")
    for element in ("a", 1, (1, ("b", None))):
        one.add(element)
    plain: set[Any] = {"a", 1, (1, ("b", None))}
    other: set[Any] = {"a", 2, (1, ("b", None))}
    assert one == plain
    assert one & other == plain & other
    assert one | other == plain | other
    assert one - other == plain - other
    assert one ^ other == plain ^ other
    assert other & one == plain & other
    assert other - one == other - plain
    assert one >= {"a"}
    assert {"a"} <= one
    assert one.isdisjoint({"z"})
    one &= other
    assert one == plain & other
    one ^= {"a", 7}
    assert one == {(1, ("b", None)), 7}
    one -= one
    assert not one


@pytest.mark.parametrize("view", ["items", "values", "keys"])
async def test_a_loop_over_a_map_goes_on_where_another_member_removes_keys(
    autojump_clock: MockClock, network: Network, view: str
) -> None:
    async with AsyncExitStack() as stack:
        one, two = await opened(stack, network, "one", "two")
        one.update({f"k{number}": number for number in range(20)})
        await one.settled(2)
        seen = 0
        for _ in getattr(one, view)():
            if not seen:
                for number in range(10, 20):
                    del two[f"k{number}"]
                await two.settled(2)
            seen += 1
        assert seen in (10, 20)


@pytest.mark.parametrize("kind", ["map", "set", "document"])
def test_what_is_cleared_costs_what_is_there(kind: str) -> None:
    one = replica(max_bytes=10**8)
    place: Any = SharedSet(one, "", "s") if kind == "set" else SharedMap(one, "m" if kind == "map" else "")

    def fill(count: int) -> None:
        for number in range(count):
            if kind == "set":
                place.add(number)
            else:
                place[f"k{number}"] = number

    def seconds_to_clear(count: int) -> float:
        fill(count)
        began = time.thread_time()
        place.clear()
        taken = time.thread_time() - began
        assert not len(place)
        return taken

    few, many = (min(seconds_to_clear(count) for _ in range(3)) for count in (2_000, 16_000))
    assert many < 24 * few


def test_an_update_that_does_not_fit_changes_nothing() -> None:
    one = replica(max_bytes=3000)
    place = SharedMap(one, "")
    place["a"] = "old"
    before = dict(place)
    with pytest.raises(Overloaded):
        place.update({"a": "new", **{f"k{number}": "x" * 100 for number in range(40)}})
    assert dict(place) == before
    with pytest.raises(ConfigError):
        place.update({"a": "new", "b": object()})
    assert dict(place) == before


async def test_a_change_costs_a_thousand_watchers_a_look_each(autojump_clock: MockClock, network: Network) -> None:
    async with AsyncExitStack() as stack:
        (one,) = await opened(stack, network, "one")
        took: list[float] = []
        for count in (125, 1000):
            seen = 0

            async def follow() -> None:
                nonlocal seen
                async for _ in one.watch("a"):
                    seen += 1

            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(follow)
                await trio.sleep(1)
                one["a"] = 0
                await trio.sleep(1)
                seen = 0
                began = time.thread_time()
                for number in range(5):
                    one["a"] = number
                    await trio.sleep(0.01)
                took.append(time.thread_time() - began)
                assert seen == 5 * count
                nursery.cancel_scope.cancel()
            gc.collect()
        assert took[1] < 20 * took[0], took


@pytest.mark.parametrize("key", [">", "*", "fx.>", "fx.*", "a..b", ".", "a.", " ", "a b.c", "fx.>.x"])
async def test_whatever_its_key_a_value_is_seen_by_a_watch_of_its_form(
    autojump_clock: MockClock, network: Network, key: str
) -> None:
    async with AsyncExitStack() as stack:
        (one,) = await opened(stack, network, "one")
        one[key] = 1
        tokens = key.split(".")
        for pattern in (">", ".".join("*" * len(tokens)), ".".join(["*"] * (len(tokens) - 1) + [">"])):
            with trio.move_on_after(1) as waited:
                async for change in one.watch(pattern):
                    assert change.key == key
                    break
            assert not waited.cancelled_caught, pattern


async def test_a_document_that_was_left_is_closed_for_all_calls(autojump_clock: MockClock, network: Network) -> None:
    async with network.open_node("prices") as node, network.open_node("prices") as other, other.state("prices"):
        async with node.state("prices") as state:
            state["a"] = 1
        with pytest.raises(trio.ClosedResourceError):
            state["a"] = 2
        with pytest.raises(trio.ClosedResourceError):
            state.counter("c").add(1)
        with pytest.raises(trio.ClosedResourceError):
            await state.settled()
        assert [change.key async for change in state.watch()] == ["a"]


@pytest.mark.parametrize("timeout", [math.inf, Fraction(7, 2), Decimal("3.5"), 2, 1e308])
async def test_settled_takes_any_number_of_seconds(autojump_clock: MockClock, network: Network, timeout: Any) -> None:
    async with AsyncExitStack() as stack:
        one, two = await opened(stack, network, "one", "two")
        one["a"] = 1
        await one.settled(timeout=timeout)
        assert two["a"] == 1
        if timeout < 10:
            with pytest.raises(RequestTimeout):
                await one.settled(3, timeout=timeout)
        for wrong in (0, -1, math.nan, "1", None, True):
            with pytest.raises(ConfigError):
                await one.settled(timeout=wrong)  # type: ignore[arg-type]


def test_a_value_that_has_one_list_many_times_is_refused_at_once() -> None:
    inner = [0] * 3_000
    place = SharedMap(replica(), "")
    tracemalloc.start()
    began = time.thread_time()
    with pytest.raises(ConfigError):
        place["a"] = [inner] * 10_000
    with pytest.raises(ConfigError):
        place["a"] = [dict.fromkeys(map(str, inner[:50])) | {str(n): 1 for n in range(2_000)}] * 10_000
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert time.thread_time() - began < 1


async def test_two_nodes_with_one_path_damage_no_copy(mock_clock: MockClock, tmp_path: Path) -> None:
    mock_clock.rate = 1.0  # faster, and a starved machine meets timeouts
    path = tmp_path / "copy"
    async with iris.testing.open_network(seed=3) as network:
        for step in range(3):
            async with AsyncExitStack() as stack:
                one, two = await opened(stack, network, f"one{step}", f"two{step}", path=path)
                for number in range(40):
                    one[f"{step}.{number}.one"] = 1
                    two[f"{step}.{number}.two"] = 1
                    await trio.sleep(0.1)
                await one.settled(2)
                await two.settled(2)
                assert len(one) == len(two) == 80 * (step + 1)
    assert os.listdir(tmp_path) == ["copy"]  # noqa: PTH208


async def test_strangers_that_ask_hold_up_no_member(autojump_clock: MockClock, network: Network) -> None:
    async with AsyncExitStack() as stack:
        one, two = await opened(stack, network, "one", "two")
        stranger = await stack.enter_async_context(network.open_node("shop", host="stranger"))
        await stranger.wait_for("prices", 2)

        async def ask() -> None:
            with suppress(iris.IrisError):
                await stranger.request("prices", encode(({5: 9}, b"")), operation="reached", timeout=60)

        async with trio.open_nursery() as nursery:
            for _ in range(1500):
                nursery.start_soon(ask)
            await trio.sleep(0.5)
            for number in range(3):
                one["a"] = number
                await one.settled(timeout=5)
                assert two["a"] == number
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(3))
async def test_partitions_in_any_order_end_in_equal_documents_and_exact_counts(
    autojump_clock: MockClock, network: Network, seed: int
) -> None:
    rng = random.Random(seed)
    hosts = ["a", "b", "c", "d", "e"]
    async with AsyncExitStack() as stack:
        states = await opened(stack, network, *hosts)
        counted = dict.fromkeys("xyz", 0)
        ever: set[int] = set()
        for _ in range(12):
            rng.shuffle(hosts)
            cut = rng.randrange(1, 5)
            network.memory.heal()
            network.memory.partition(hosts[:cut], hosts[cut:])
            for _ in range(30):
                state = rng.choice(states)
                name = rng.choice("xyz")
                match rng.randrange(5):
                    case 0:
                        number = rng.choice([-(2**40), -1, 0, 1, 2**40])
                        state.map("m").counter(name).add(number)
                        counted[name] += number
                    case 1:
                        state.pop(name, None)
                    case 2:
                        state[name] = [rng.random(), -0.0, None]
                    case 3:
                        ever.add(number := rng.randrange(50))
                        state.set("s").add((number, "x"))
                    case _:
                        state.set("s").discard((rng.randrange(50), "x"))
                if rng.random() < 0.2:
                    await trio.sleep(rng.random() * 3)
        network.memory.heal()
        for state in states:
            await state.settled(5, timeout=60)
        assert same(*states)
        assert {name: int(states[3].map("m").counter(name)) for name in "xyz"} == counted
        assert {number for number, _ in states[1].set("s")} <= ever


async def test_calls_that_are_cancelled_anywhere_leave_a_document_that_works(
    autojump_clock: MockClock, network: Network, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        (one,) = await opened(stack, network, "one")
        one.update({f"k{number}": "x" * 50 for number in range(300)})
        node = await stack.enter_async_context(network.open_node("prices", host="two"))
        began, added = 0, 0
        for step in range(60):
            with trio.CancelScope() as scope:
                scope.deadline = trio.current_time() + step * 0.0007
                async with node.state("prices") as two:
                    began += 1
                    assert len(two) >= 300
                    two.counter("c").add(1)
                    added += 1
                    await two.settled(2)
                    async for _ in two.watch():
                        pass
        assert 0 < began < 60
        await trio.sleep(5)
        assert int(one.counter("c")) == added
        for step in range(30):
            one["a"] = step
            with trio.move_on_after(step * 0.0005):
                await one.settled()
        async with node.state("prices") as two:
            await one.settled(2)
            assert same(one, two)


async def test_forged_entries_of_every_kind_leave_all_readable_and_equal(
    autojump_clock: MockClock, network: Network
) -> None:
    most = 2**53
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    payloads: list[tuple[int, str, str, bytes]] = [
        (COUNTER, "", "c", encode(Added(most, 1, most, 1, most))),
        (COUNTER, "", "c", encode(Added(-most, 1, most, 2, -most))),
        (COUNTER, "", "c", encode([most + 1, 1, 1, 1, 1])),
        (COUNTER, "", "c", encode([True, 1, 1, 1, 1])),
        (COUNTER, "", "c", encode([1.0, 1, 1, 1, 1])),
        (COUNTER, "s", "c", encode(Added(1, 1, 1, 1, 1))),
        (VALUE, "", "v", encode(deep)),
        (VALUE, "", "v", b"\xa3\xed\xa0\x80"),
        (VALUE, "", "v", encode(math.nan)),
        (VALUE, "", "v", encode(-0.0)),
        (VALUE, "", "v", encode(2**63)),
        (VALUE, "", "v", encode(2**64 - 1)),
        (VALUE, "", "v", b"\x81\x90\x01"),
        (VALUE, "", "v", b"\x81\xc0\x01"),
        (VALUE, "", "v", b"\xd6\xff\x00\x00\x00\x00"),
        (VALUE, "", "v", b"\x01\x01"),
        (VALUE, "", "v", b""),
        (VALUE, "", "v", b"\xdd\xff\xff\xff\xff"),
        (SET, "s", '"\\ud800"', b""),
        (SET, "s", "NaN", b""),
        (SET, "s", "-0.0", b""),
        (SET, "s", "-0", b""),
        (SET, "s", "1e400", b""),
        (SET, "s", "Infinity", b""),
        (SET, "s", "{}", b""),
        (SET, "s", '{"a": 1}', b""),
        (SET, "s", "[" * 500 + "]" * 500, b""),
        (SET, "s", "[[1, 2], 3]", b""),
        (SET, "s", "9" * 1000, b""),
        (SET, "s", " 1", b""),
        (SET, "s", "1", b"\x01"),
        (SET, "", "1", b""),
    ]
    async with AsyncExitStack() as stack:
        one, two = await opened(stack, network, "one", "two")
        bad = await stack.enter_async_context(network.open_node("prices", host="bad"))
        await stack.enter_async_context(bad.join("prices", iris.Service("prices")))
        await bad.wait_for("prices", 3)
        numbers: dict[int, int] = {}
        for at, (kind, name, key, payload) in enumerate(payloads):
            for writer in (at, 700):
                number = numbers[writer] = numbers.get(writer, 0) + 1
                entry = Entry(dot_of(writer, number), kind, "", name, key, payload)
                again = Entry(dot_of(writer, number), VALUE, "", "", "twice", encode(at))
                for added in ([entry], [again, entry, again], [entry, entry]):
                    await bad.broadcast("prices", encode(Edit(writer, number, 1, {}, added, [entry.dot] * 3)))
            one["last"] = at
            await one.settled(2)
            await wait_until(lambda: same(one, two), within=10)  # what was forged may come to one later
        for state in (one, two):
            dict(state)
            list(state.set("s"))
            assert abs(int(state.counter("c"))) <= 2**63
            state.counter("c").add(1)
            repr(state)
            msgspec.msgpack.encode(dict(state))
            with trio.move_on_after(1):
                async for _ in state.watch():
                    pass
        await one.settled(2)
        await two.settled(2)
        async with network.open_node("prices", host="new") as node, node.state("prices") as new:
            await one.settled(2)
            assert same(one, two, new)


async def ask_by_tunnel(node: iris.Node, operation: str, first: object) -> object:
    async with node.open_tunnel("prices", operation=operation) as tunnel:
        await tunnel.send(first)
        return await tunnel.receive()


async def test_who_is_not_allowed_gets_nothing_by_any_operation(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network(seed=7) as network, AsyncExitStack() as stack:
        (one,) = await opened(stack, network, "one", allow=["door"])
        one["a"] = 1
        enter = stack.enter_async_context
        door, shop = [await enter(network.open_node(name, host=name)) for name in ("door", "shop")]
        for node in (door, shop):
            await node.wait_for("prices")
        assert await door.request("prices", {"key": "a"}, operation="read") == 1
        for operation, payload in {
            "read": {},
            "write": {"key": "a", "value": 2},
            "add": {"counter": "c"},
            "remove": {"key": "a"},
        }.items():
            with pytest.raises(RemoteError, match="not_allowed"):
                await shop.request("prices", payload, operation=operation)
        for node, operation, first in ((shop, "watch", ">"), (door, "sync", bytes(16))):
            with pytest.raises((RemoteError, iris.TunnelBroken)):
                await ask_by_tunnel(node, operation, first)
        assert dict(one) == {"a": 1}
        assert int(one.counter("c")) == 0
        assert one.statistics().refused["stranger"] >= 6


async def test_a_member_that_comes_in_a_flood_has_what_one_had_when_it_came(
    autojump_clock: MockClock, network: Network
) -> None:
    async with AsyncExitStack() as stack:
        states = await opened(stack, network, "a", "b", "c")
        nursery = await stack.enter_async_context(trio.open_nursery())
        numbers = [0, 0, 0]

        async def flood(at: int) -> None:
            while True:
                for _ in range(20):
                    numbers[at] += 1
                    states[at][f"{at}.{numbers[at] % 500}"] = numbers[at]
                    states[at].counter("c").add(1)
                await trio.sleep(0.01)

        for at in range(3):
            nursery.start_soon(flood, at)
        await trio.sleep(2)
        for late in range(4):
            before = [min(int(state[f"{at}.{n}"]) for state in states) for at in range(3) for n in [250]]
            node = await stack.enter_async_context(network.open_node("prices", host=f"late{late}"))
            new = await stack.enter_async_context(node.state("prices"))
            assert len(new) >= 1497
            assert [new[f"{at}.250"] >= before[at] for at in range(3)] == [True] * 3
            states.append(new)
        nursery.cancel_scope.cancel()
        await trio.sleep(0.1)
        for state in states:
            await state.settled(7, timeout=60)
        assert int(states[-1].counter("c")) == sum(numbers)
        assert same(*states)


async def test_programs_that_stop_watching_leave_nothing(autojump_clock: MockClock, network: Network) -> None:
    async with (
        network.open_node("prices") as node,
        network.open_node("door") as door,
        node.state("prices", allow=["door"]) as state,
    ):
        await door.wait_for("prices")
        state["a"] = 1
        for turn in range(50):
            with trio.move_on_after(0.002 * (turn % 7)):
                async with door.open_tunnel("prices", operation="watch") as tunnel:
                    await tunnel.send(">")
                    async for change in tunnel:
                        assert change["key"] == "a"
        await trio.sleep(5)
        state["a"] = 2
        await trio.sleep(1)
        gc.collect()
        assert len(state._changes._watches) == 0


def test_threads_that_change_one_document_meet_no_half_of_a_step(own_home: None) -> None:
    with iris.sync.open_node("prices") as node, node.state("prices") as state:
        place = state.map("m")
        end = time.monotonic() + 1.5
        errors: list[BaseException] = []

        def change(seed: int) -> None:
            rng = random.Random(seed)
            try:
                while time.monotonic() < end:
                    key = rng.choice("ab")
                    match rng.randrange(5):
                        case 0:
                            place[key] = 1
                        case 1:
                            place.pop(key, None)
                        case 2:
                            list(place.items())
                            list(place.values())
                        case 3:
                            place.setdefault(key, 2)
                        case _:
                            place.clear()
            except BaseException as error:  # noqa: BLE001 -- told below
                errors.append(error)

        threads = [threading.Thread(target=change, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        tags: MutableSet[Any] = state.set("tags")
        tags |= {"a", "b"}
        assert tags & {"a"} == {"a"}
        assert tags - {"a"} == {"b"}
        tags.clear()
        assert not tags


async def test_a_change_in_a_large_document_costs_others_the_change(
    autojump_clock: MockClock, network: Network
) -> None:
    async with AsyncExitStack() as stack:
        one, two = await opened(stack, network, "one", "two")
        took: list[float] = []
        for keys in (2_000, 40_000):
            one.update({f"k{number}": number for number in range(keys)})
            await one.settled(timeout=30)
            gc.collect()
            began = time.thread_time()
            for number in range(100):
                two[f"k{number * 7}"] = -number
                await trio.sleep(0.001)
            took.append(time.thread_time() - began)
        assert took[1] < 5 * took[0] + 0.2, took


async def test_a_path_that_is_no_file_is_named(mock_clock: MockClock, tmp_path: Path) -> None:
    mock_clock.rate = 20.0
    async with iris.testing.open_network(seed=3) as network, network.open_node("prices") as node:
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "file").write_bytes(b"")
        for path in (tmp_path, tmp_path / "loop", tmp_path / "file", tmp_path / "file" / "x", Path("/dev/null")):
            with trio.fail_after(100), pytest.raises(ConfigError, match="copy of a document"):
                async with node.state("prices", path=path):
                    pass
        async with node.state("prices", path=tmp_path / "none" / "x") as state:
            state["a"] = 1
            await trio.sleep(5)
            assert state.statistics().unsaved
        with pytest.raises(ConfigError):
            async with node.state("prices", path=tmp_path / ("x" * 300)):
                pass


async def test_a_watch_ends_when_its_node_is_no_member_any_more(autojump_clock: MockClock, network: Network) -> None:
    async with AsyncExitStack() as stack:
        (one,) = await opened(stack, network, "one")
        node = await stack.enter_async_context(network.open_node("prices", host="two"))
        await node.wait_for("prices")
        async with node.state("prices"):
            await trio.sleep(1)
            stack.enter_context(suppress(iris.TunnelBroken))
            tunnel = await stack.enter_async_context(node.open_tunnel("prices", operation="watch"))
            assert tunnel.sender.node != node.id
            await tunnel.send(">")
            one["a"] = 1
            assert (await tunnel.receive())["value"] == 1
        await trio.sleep(5)
        one["a"] = "secret"
        with trio.fail_after(5), pytest.raises((RemoteError, iris.TunnelBroken)):
            await tunnel.receive()


async def test_a_slow_disk_has_no_older_copy_take_the_place_of_the_last(
    mock_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_clock.rate = 20.0
    path, begun = tmp_path / "copy", 0

    def save(*args: Any) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            time.sleep(0.5)  # of the thread that writes
        save_copy(*args)

    monkeypatch.setattr("iris.patterns.state.shared_state.save_copy", save)
    async with iris.testing.open_network(seed=3) as network, network.open_node("prices") as node:
        async with node.state("prices", path=path) as state:
            state["a"] = "old"
            while not begun:  # noqa: ASYNC110 -- a thread says so
                await trio.sleep(0.1)
            state["a"] = "new"
        async with node.state("prices", path=path) as state:
            assert dict(state) == {"a": "new"}
