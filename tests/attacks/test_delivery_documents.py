"""Documents: what is lost when numbers collide, what a member or a program can break, what holds the loop up."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.errors import RemoteError, RemoteProtocolError
from iris.patterns.state.entries import (
    AT_A_TIME,
    COUNTER,
    MAX_COUNT,
    SET,
    Added,
    Edit,
    Entry,
    dot_of,
    encode,
    read_edit_untrusted,
)
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.testing import Network, inspect_document
from tests.support.held import MOST_HELD, lasted
from tests.support.states import agree, give, replica, with_number


@pytest.mark.parametrize("count", [10, 64, 65, 129, 500])
def test_two_that_drew_one_number_lose_nothing_of_what_they_had_written(count: int) -> None:
    one, other = with_number(1, 5), with_number(2, 5)
    for number in range(count):
        SharedMap(one, "")[f"one {number}"] = number
        SharedSet(other, "m", "s").add(number)
        SharedCounter(one, "", f"c {number % 7}").add(1)
        SharedCounter(other, "", f"c {number % 7}").add(2)
    agree(one, other)
    for each in (one, other):
        assert len(SharedMap(each, "")) == count
        assert len(SharedSet(each, "m", "s")) == count
        assert sum(SharedCounter(each, "", f"c {number}").value for number in range(7)) == 3 * count


@pytest.mark.parametrize("count", [3, 200, 499])
def test_who_starts_alone_with_a_number_that_is_used_up_loses_nothing(count: int) -> None:
    """Its writes are ones that all others know to be gone."""
    one, other, third = with_number(1, 5), with_number(2, 5), replica(3)
    for number in range(500):
        SharedMap(one, "")["k"] = number
    give(one, third)
    SharedMap(other, "").update({f"n {number}": number for number in range(count)})
    agree(one, other, third)
    assert len(SharedMap(third, "")) == count + 1


@pytest.mark.parametrize("seed", range(4))
def test_many_that_draw_one_of_three_numbers_while_parted_count_each_write(seed: int) -> None:
    rng = random.Random(seed)
    parted = [with_number(number, number % 3) for number in range(9)]
    for number, one in enumerate(parted):
        for key in range(rng.randrange(1, 150)):
            SharedMap(one, "")[f"{number}.{key}"] = key
            SharedCounter(one, "", "c").add(1)
    written = sum(len(SharedMap(one, "")) for one in parted)
    rng.shuffle(parted)
    for _ in range(30):  # in pairs first, as links come up
        give(rng.choice(parted), rng.choice(parted))
        rng.choice(parted).pop_edits()
    agree(*parted)
    assert {len(SharedMap(one, "")) for one in parted} == {written}
    assert {SharedCounter(one, "", "c").value for one in parted} == {written}


def test_who_forges_the_writes_of_another_one_does_not_fill_its_memory() -> None:
    """Each forged entry replaces a forged one of the same dot, which the victim must not take for its own."""
    victim = with_number(1, 5, max_bytes=300_000)
    SharedMap(victim, "")["mine"] = 1
    for turn in range(60):
        added = [Entry(dot_of(5, number), 0, "", "", f"{turn} {number}", encode("x" * 500)) for number in range(2, 402)]
        victim.apply(read_edit_untrusted(encode(Edit(5, 2, 400, {}, added, []))))
        victim.pop_edits()
        assert victim.hidden <= 1, "what it writes anew is its own"
        assert victim.size <= 600_000


def test_a_counter_has_sixty_four_bits_whatever_a_member_forges() -> None:
    """Who asks for it through a door, and who watches, gets a number that goes over the wire."""
    for sign in (1, -1):
        one = replica(1)
        payload = encode(Added(sign * MAX_COUNT, 1, sign * MAX_COUNT, 0, 0))
        for first in (1, 2001):
            added = [Entry(dot_of(7, first + at), COUNTER, "", "", "c", payload) for at in range(2000)]
            one.apply(read_edit_untrusted(encode(Edit(7, first, 2000, {}, added, []))))
        assert -(2**63) <= SharedCounter(one, "", "c").value < 2**64  # what the wire has


def take_in(data: bytes) -> None:
    replica(2).apply(read_edit_untrusted(data))


@pytest.mark.parametrize("more", [0, 1])
def test_an_edit_has_so_many_entries_that_it_holds_nobody_up(more: int) -> None:
    count = AT_A_TIME + more
    added = [Entry(dot_of(7, at + 1), SET, "", "s", str(at), b"") for at in range(count)]
    edits = [
        encode(Edit(7, 1, count, {}, added, [])),
        encode(Edit(7, 1, 1, {}, [], [dot_of(7, at) for at in range(count)])),
    ]
    for data in edits:
        if more:
            with pytest.raises(RemoteProtocolError):
                read_edit_untrusted(data)
        else:
            assert lasted(partial(take_in, data)) < MOST_HELD


def test_entries_that_differ_by_dot_only_are_one_document_in_any_order() -> None:
    """Forged: one dot with twenty entries of different kinds, keys and maps, given in any order to four replicas."""
    rng = random.Random(9)
    entries = [
        Entry(dot_of(3, 1), at % 2 and SET, "m" if at % 3 else "", "s" if at % 2 else "", str(at), b"")
        if at % 2
        else Entry(dot_of(3, 1), 0, "m" if at % 3 else "", "", str(at), encode(at))
        for at in range(20)
    ]
    replicas = [replica(at) for at in range(4)]
    for one in replicas:
        SharedMap(one, "")["own"] = rng.random()
        for entry in rng.sample(entries, 20):
            one.apply(Edit(3, 1, 1, {}, [entry], []))
            if rng.random() < 0.2:
                one.apply(Edit(3, 2, 1, {}, [], [dot_of(3, 1)] if rng.random() < 0.1 else []))
    agree(*replicas)


# -- whole nodes -----------------------------------------------------------------------------------------------


async def equal(source: iris.SharedState, *others: iris.SharedState) -> None:
    await source.settled(len(others) + 1, timeout=20)


@pytest.mark.parametrize("operation", ["write", "add", "read", "remove"])
@pytest.mark.parametrize("name", ["x" * 1025, "é" * 513])
async def test_a_program_cannot_write_what_other_members_refuse(
    autojump_clock: MockClock, network: Network, name: str, operation: str
) -> None:
    """A name of a map that is too long parted the member that the program had reached from all others."""
    async with (
        network.open_node("prices", host="a") as a,
        network.open_node("prices", host="b") as b,
        network.open_node("door") as door,
        a.state("prices", allow=["door"]) as one,
        b.state("prices", allow=["door"]) as two,
    ):
        await door.wait_for("prices", 2)
        subject = {"map": name, "key": "k", "value": 1}
        if operation == "add":
            subject = {"map": name, "set": "s", "element": 1}
        with pytest.raises(RemoteError, match="bad_request"):
            await door.request("prices", subject, operation=operation)
        one["after"] = 1
        two["before"] = 2
        await equal(one, two)
        await equal(two, one)
        assert dict(one) == dict(two) == {"after": 1, "before": 2}
        assert one.statistics().refused == two.statistics().refused == {}


@pytest.mark.parametrize("extra", [-1, 0, 1, AT_A_TIME])
async def test_many_small_entries_reach_the_others_and_go_again(
    autojump_clock: MockClock, network: Network, extra: int
) -> None:
    async with (
        network.open_node("prices", host="a") as a,
        network.open_node("prices", host="b") as b,
        a.state("prices") as one,
        b.state("prices") as two,
    ):
        await a.wait_for("prices", 2)
        count = AT_A_TIME + extra
        for number in range(count):
            one.set("s").add(number)
        await equal(one, two)
        assert len(two.set("s")) == count
        for number in range(count):
            two.set("s").discard(number)
        await equal(two, one)
        assert not one.set("s")
        assert one.statistics().refused == two.statistics().refused == {}


async def test_a_member_that_stands_still_does_not_keep_a_new_one_from_the_document(
    autojump_clock: MockClock, network: Network
) -> None:
    """It is asked first or last, as chance has it: the others have the document."""
    stalled = iris.Service("prices")

    @stalled.tunnel("sync")
    async def stall(_: iris.Tunnel) -> None:
        await trio.sleep_forever()

    async with (
        network.open_node("prices", host="a") as a,
        network.open_node("prices", host="bad") as bad,
        a.state("prices") as one,
        bad.join("prices", stalled),
    ):
        one["k"] = 1
        for number in range(6):
            async with network.open_node("prices", host=f"n{number}") as node:
                await node.wait_for("prices", 2)
                async with node.state("prices", timeout=8) as state:
                    assert state["k"] == 1


@pytest.mark.long
async def test_a_member_that_opens_comparisons_and_stalls_keeps_nobody_from_comparing(
    autojump_clock: MockClock, network: Network
) -> None:
    async with (
        network.open_node("prices", host="a") as a,
        network.open_parts("prices", host="bad") as (bad, bad_parts),
        a.state("prices") as one,
        trio.open_nursery() as nursery,
    ):
        one["k"] = 1
        await bad.wait_for("prices")

        async def hold() -> None:
            while True:
                try:
                    async with bad_parts.patterns.tunnels.open(
                        "prices", timeout=5, operation="sync", prefer=a.id
                    ) as tunnel:
                        async for _ in tunnel:
                            pass
                except iris.IrisError:
                    await trio.sleep(0.1)

        async with bad.join("prices", iris.Service("prices")):
            for _ in range(20):
                nursery.start_soon(hold)
            await trio.sleep(2)
            async with network.open_node("prices", host="n") as node:
                await node.wait_for("prices", 2)
                began = trio.current_time()
                async with node.state("prices", timeout=25) as state:
                    assert state["k"] == 1
                assert trio.current_time() - began < 10
            nursery.cancel_scope.cancel()


async def test_a_program_that_watches_and_leaves_at_once_is_no_failure_of_the_member(
    autojump_clock: MockClock, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        network.open_node("prices", host="a") as a,
        network.open_node("door") as door,
        a.state("prices", allow=["door"]) as one,
    ):
        await door.wait_for("prices")
        for _ in range(5):
            with suppress(iris.TunnelBroken):
                async with door.open_tunnel("prices", operation="watch") as tunnel:
                    await tunnel.send_eof()
            with suppress(iris.TunnelBroken):
                async with door.open_tunnel("prices", operation="watch") as tunnel:
                    await tunnel.send([1])
        await trio.sleep(1)
        one["k"] = 1
        assert not [record for record in caplog.records if record.exc_info]


async def test_a_program_is_told_when_the_document_is_more_than_a_reply_holds(
    autojump_clock: MockClock, network: Network
) -> None:
    async with (
        network.open_node("prices", host="a") as a,
        network.open_node("door") as door,
        a.state("prices", allow=["door"]) as one,
    ):
        await door.wait_for("prices")
        for number in range(8):
            one[f"k{number}"] = "x" * 200_000
        with pytest.raises(RemoteError, match=r"too|large|most"):
            await door.request("prices", {}, operation="read")
        assert len(await door.request("prices", {"key": "k1"}, operation="read")) == 200_000


@pytest.mark.parametrize("reads", [False, True])
async def test_maps_and_sets_that_come_and_go_do_not_wait_for_a_watcher(
    autojump_clock: MockClock, network: Network, reads: bool
) -> None:
    """A map for each session: a program that reads slowly, or for long, keeps nothing of those that are gone."""
    async with network.open_node("prices", host="a") as node, node.state("prices") as state:
        watch = state.watch()
        for number in range(300):
            session, tags = state.map(f"session {number}"), state.set(f"tags {number}")
            session["user"] = number
            session.set("seen").add(1)
            tags.add("x")
            if reads:
                assert {(await anext(watch)).key for _ in range(2)} == {f"session {number}", f"tags {number}"}
            session.set("seen").discard(1)
            del session["user"]
            tags.discard("x")
            if reads:
                assert {(await anext(watch)).key for _ in range(2)} == {f"session {number}", f"tags {number}"}
        assert inspect_document(state).changes <= 2
        state.map("here")["k"] = 1
        change = await anext(watch)
        assert (change.key, change.kind, change.removed) == ("here", "map", False)


@pytest.mark.parametrize("letter", ["x", "é", "人", "🙂"])
def test_a_document_counts_bytes_whatever_its_names_are_written_in(letter: str) -> None:
    one = replica(1)
    name = letter * (1024 // len(letter.encode()))
    SharedMap(one, name)[name] = 1
    assert one.size == 128 + 2 * len(name.encode()) + 1
    SharedMap(one, name).set(name).add(letter)
    del SharedMap(one, name)[name]
    SharedMap(one, name).set(name).discard(letter)
    assert one.size == 0


ODD: list[Any] = [
    None,
    b"x",
    "text",
    [1, 2],
    {"key": "k", "value": float("nan"), "map": 3},
    {"map": "m" * 2000},
    {"key": "k" * 1025, "value": 1},
    {"key": "k", "value": b"x" * (256 * 1024)},
    {"key": "k", "value": {"a": {"b": [[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]}}},
    {"counter": "c", "number": True},
    {"counter": "c", "number": 2**63},
    {"counter": "c", "number": -(2**53) - 1},
    {"counter": "c", "number": 1.5},
    {"counter": "", "number": 1},
    {"set": "s", "element": b"x"},
    {"set": "s", "element": {"a": 1}},
    {"set": "s", "element": "x" * 1025},
    {"set": "", "element": 1},
    {"set": "s", "element": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]},
    {"set": "s", "element": [b"x"]},
    {"set": "s", "element": [{"a": 1}, 2]},
    {"key": "k", "value": 1, "more": 2},
]


@pytest.mark.parametrize("operation", ["write", "add"])
async def test_whatever_a_program_asks_is_answered_and_no_failure_of_the_member(
    autojump_clock: MockClock, network: Network, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        network.open_node("prices", host="a") as a,
        network.open_node("prices", host="b") as b,
        network.open_node("door") as door,
        a.state("prices", allow=["door"]) as one,
        b.state("prices", allow=["door"]) as two,
    ):
        await door.wait_for("prices", 2)
        for payload in ODD:
            with pytest.raises(RemoteError, match="bad_request"):
                await door.request("prices", payload, operation=operation)
        for subject in ODD:
            with suppress(RemoteError):
                await door.request("prices", subject, operation="read")
            with suppress(RemoteError):
                await door.request("prices", subject, operation="remove")
        one["after"] = 1
        await equal(one, two)
        assert dict(one) == dict(two) == {"after": 1}
        assert one.statistics().refused == two.statistics().refused == {}
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [0, COUNTER, SET])
def test_a_key_with_many_forged_entries_holds_nobody_up(kind: int) -> None:
    """Each that came or went cost as much as there were: overwriting the key took minutes."""
    one = with_number(1, 7, max_bytes=4_000_000)
    start = one.starts[7]
    payloads = {0: encode(1), COUNTER: encode(Added(1, start, 1, 0, 0)), SET: b""}
    other = {0: encode(2), COUNTER: encode(Added(2, start, 2, 0, 0)), SET: b""}
    name, key = ("s", "1") if kind == SET else ("", "k")
    longest = 0.0
    for payload in (payloads[kind], other[kind]):
        for first in range(1, 20_001, 1000):
            added = [Entry(dot_of(7, first + at), kind, "", name, key, payload) for at in range(1000)]
            data = encode(Edit(7, first, 1000, {}, added, []))
            began = time.thread_time()
            one.apply(read_edit_untrusted(data))
            longest = max(longest, time.thread_time() - began)
    began = time.thread_time()
    if kind == COUNTER:
        assert SharedCounter(one, "", "k").value
    elif kind == SET:
        SharedSet(one, "", "s").discard(1)
    else:
        SharedMap(one, "")["k"] = 3
        assert SharedMap(one, "")["k"] == 3
    assert time.thread_time() - began < 1.0
    assert longest < 0.25
