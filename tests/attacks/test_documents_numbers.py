"""Documents: members that share a writer's number, in every other trouble that a member may have as well."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.errors import Overloaded
from iris.patterns.state.entries import MAX_COUNT, WRITERS, encode
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.sync import USERS
from iris.testing import Network, inspect_document
from tests.support.states import NOW, Member, agree, content, give, merging, replica, send, with_number

SEEDS: Final = pytest.mark.parametrize("seed", range(8))


def drain(*members: Member) -> None:
    """Let all compare with all, and write anew what they have to."""
    for _ in range(4):
        for one in members:
            for other in members:
                one.compare(other)
    agree(*(one.replica for one in members))


@SEEDS
def test_what_who_shares_a_number_has_removed_stays_removed(seed: int) -> None:
    rng = random.Random(seed)
    members = [Member(at, with_number(at, 7) if at < 3 else replica(50 * seed + at)) for at in range(5)]
    for step in range(150):
        one = rng.choice(members)
        match rng.randrange(8):
            case 0:
                one.send(*rng.sample(members, rng.randrange(4)))
            case 1 | 2:
                one.compare(rng.choice(members))
            case 3 if one.wrote:
                key = rng.choice(sorted(one.wrote))
                if key in SharedMap(one.replica, ""):  # else it is about to be written anew
                    del one.wrote[key], SharedMap(one.replica, "")[key]
            case _:
                one.write(f"{one.at} {rng.randrange(4)}", step)
    drain(*members)
    for one in members:
        assert dict(SharedMap(one.replica, "")) == {key: value for each in members for key, value in each.wrote.items()}
        assert SharedCounter(one.replica, "", "c").value == sum(each.counted for each in members)


def test_what_another_user_of_a_number_wrote_is_its_own_to_replace() -> None:
    """Who leaves the number writes nothing anew that the other one has written with it."""
    one, other = (Member(at, with_number(at, 7)) for at in range(2))
    for key in "abcd":
        one.write(key, 1)
    other.write("e", 1)
    other.compare(one)
    for key in "cb":  # not in their order: each write has a greater number than the one before
        one.write(key, 2)
    del one.wrote["a"], SharedMap(one.replica, "")["a"]
    drain(one, other)
    for each in (one, other):
        assert dict(SharedMap(each.replica, "")) == {"b": 2, "c": 2, "d": 1, "e": 1}


def test_what_is_removed_while_it_waits_to_be_written_anew_stays_removed() -> None:
    one, other = with_number(1, 7), replica(2)
    values, elements = SharedMap(one, ""), SharedSet(one, "", "s")
    for number in range(400):
        values[f"k{number}"] = number
        elements.add(number)
    give(one, other)
    one.leave(7)
    assert one.is_rewriting
    values.clear()
    for number in range(400):
        elements.discard(number)
    agree(one, other)
    assert content(one) == content(other) == {}


@SEEDS
def test_sets_and_maps_of_three_with_one_number_keep_all(seed: int) -> None:
    rng = random.Random(seed)
    members = [Member(at, with_number(at, 9)) for at in range(3)]
    wanted: list[set[str]] = [set(), set(), set()]
    for step in range(120):
        at = rng.randrange(3)
        one = members[at].replica
        place = rng.choice("mn")
        SharedMap(one, place)[f"{at} {step % 5}"] = step
        SharedSet(one, place, "s").add((at, step % 7))
        wanted[at] |= {f"{place} {at} {step % 5}", f"{place} s {at} {step % 7}"}
        if rng.random() < 0.2:
            members[at].compare(rng.choice(members))
        if rng.random() < 0.1:
            members[at].send(*rng.sample(members, 1))
    drain(*members)
    for each in members:
        found = {f"{place} {key}" for place in "mn" for key in SharedMap(each.replica, place)}
        found |= {f"{place} s {a} {b}" for place in "mn" for a, b in SharedSet(each.replica, place, "s")}
        assert found == set[str]().union(*wanted)


def test_a_full_document_loses_nothing_when_a_number_is_left() -> None:
    most = 200_000  # for both together
    one, other = with_number(1, 7, max_bytes=most), with_number(2, 7, max_bytes=most)
    wrote = dict[str, int]()
    for at, each in enumerate((one, other)):
        for number in range(10_000):
            try:
                SharedMap(each, "")[f"{at} {number % 200}"] = number
            except Overloaded:
                continue
            wrote[f"{at} {number % 200}"] = number
    first, second = Member(0, one), Member(1, other)
    drain(first, second)
    assert dict(SharedMap(one, "")) == wrote
    assert one.size <= 2 * most


@pytest.mark.parametrize("sign", [1, -1])
def test_a_counter_near_its_bound_is_kept_when_a_number_is_left(sign: int) -> None:
    first, second = (Member(at, with_number(at, 7)) for at in range(2))
    for one in (first, second):
        for _ in range(3):
            SharedCounter(one.replica, "", "c").add(sign * (MAX_COUNT // 4))
    drain(first, second)
    total = SharedCounter(first.replica, "", "c").value
    assert total == 6 * sign * (MAX_COUNT // 4)


@SEEDS
def test_clocks_that_differ_by_years_part_nobody_that_shares_a_number(seed: int) -> None:
    rng = random.Random(seed)
    walls = [NOW + rng.uniform(-9, 9) * 365 * 86_400 for _ in range(3)]
    members = [Member(at, with_number(at, 7, now=wall)) for at, wall in enumerate(walls)]
    for step in range(60):
        one = rng.choice(members)
        one.write(f"{one.at} {step % 3}", step)
        if step % 4 == 0:
            one.compare(rng.choice(members))
    drain(*members)
    for one in members:
        assert dict(SharedMap(one.replica, "")) == {key: value for each in members for key, value in each.wrote.items()}
        assert SharedCounter(one.replica, "", "c").value == sum(each.counted for each in members)


@SEEDS
def test_a_number_is_left_between_the_steps_of_a_long_comparison(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 5)
    rng = random.Random(seed)
    one, other = with_number(1, 7), with_number(2, 7)
    for number in range(60):
        SharedMap(one, "")[f"0 {number % 20}"] = number
        SharedMap(other, "")[f"1 {number % 30}"] = number
        SharedCounter(one, "", "c").add(1)
        SharedCounter(other, "", "c").add(1)
    for _ in merging(other, one, {7} if rng.random() < 0.5 else ()):
        if rng.random() < 0.2:
            one.leave(one.writer)
        if rng.random() < 0.2:
            SharedMap(one, "")[f"0 {rng.randrange(20)}"] = 1
            send(one, other)
    agree(one, other)
    assert set(SharedMap(one, "")) == {f"0 {n}" for n in range(20)} | {f"1 {n}" for n in range(30)}
    assert SharedCounter(one, "", "c").value == 120


# -- whole nodes -----------------------------------------------------------------------------------------------

CLAIMS: Final[dict[str, Any]] = {
    "nobody": [(number, "nobody") for number in range(WRITERS)],
    "own": None,
    "long": [(0, "x" * 100_000)],
    "many": [(0, f"n{number}") for number in range(USERS * WRITERS + 1)],
    "too many": [(0, f"n{number}") for number in range(USERS * WRITERS + 2)],
    "no pairs": [1, 2, 3],
    "a number too much": [(WRITERS, "x")],
    "no text": [(1, 2)],
}


@pytest.mark.parametrize("what", CLAIMS)
async def test_claims_of_any_form_have_nobody_leave_a_number(
    autojump_clock: MockClock, network: Network, what: str
) -> None:
    """They name no member, or the one itself, or are malformed."""
    evil_service = iris.Service("prices")
    async with network.open_node("prices") as node, network.open_node("prices") as evil, node.state("prices") as state:
        state["k"] = 1
        writer = inspect_document(state).writer
        claims = CLAIMS[what] or [(number, node.id) for number in range(WRITERS)]

        @evil_service.tunnel("sync")
        async def answer(tunnel: iris.Tunnel) -> None:
            await tunnel.receive()
            await tunnel.send(b"\x01")
            await tunnel.receive()
            await tunnel.send(encode(({}, claims, [])))
            await tunnel.send(b"")

        async with evil.join("prices", evil_service):
            await trio.sleep(20)
            statistics = state.statistics()
            assert statistics.compared + statistics.uncompared > 3
            found = inspect_document(state)
            assert (found.writer, found.hidden, found.claims) == (writer, 0, 0)


async def test_a_member_that_left_leaves_no_claim(autojump_clock: MockClock, network: Network) -> None:
    """Otherwise numbers of 1,024 starts would never be used again."""
    async with network.open_node("prices") as node, node.state("prices") as state:
        state["k"] = 1
        for number in range(3):
            async with network.open_node("prices") as other, other.state("prices") as states:
                states[f"o{number}"] = 1
                await states.settled(2)
                await trio.sleep(3)
                assert inspect_document(state).claims == 1
        await trio.sleep(10)
        assert inspect_document(state).claims == 0
        assert inspect_document(state).rivals == 0
        assert len(state) == 4


@pytest.mark.long
async def test_a_program_behind_a_door_and_a_watch_see_all_while_numbers_are_left(
    autojump_clock: MockClock, network: Network
) -> None:
    view: dict[str, Any] = {}

    async def follow(state: iris.SharedState) -> None:
        async for change in state.watch():
            if change.kind == "value":
                view[change.key] = None if change.removed else change.value

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        door = await enter(network.open_node("door"))
        states = [
            await enter((await enter(network.open_node("prices"))).state("prices", allow=["door"])) for _ in range(3)
        ]
        nursery = await enter(trio.open_nursery())
        nursery.start_soon(follow, states[0])
        await door.wait_for("prices", 3)
        for turn in range(60):
            if turn % 10 == 0:
                for state in states:
                    one = state._replica
                    one._finish_edit()
                    one.writer = turn
                    one.starts.setdefault(turn, hash(state._members.own) % 2**53)
                    one._sent = one._last = one.vector.get(turn, 0)
            await door.request("prices", {"key": f"k{turn % 7}", "value": turn}, operation="write")
            await door.request("prices", {"counter": "c"}, operation="add")
            await trio.sleep(0.2)
        await trio.sleep(30)
        assert {int(state.counter("c")) for state in states} == {60}
        assert [set(state) for state in states] == [{f"k{number}" for number in range(7)}] * 3
        assert dict(states[1]) == dict(states[0]) == {key: value for key, value in view.items() if value is not None}
        nursery.cancel_scope.cancel()
