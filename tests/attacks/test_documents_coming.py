"""Documents: members that come, go and are parted at any moment; values, sets and names at their edges."""

from __future__ import annotations

import math
import random
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import ConfigError
from iris.patterns.state import SharedState
from iris.testing import Network, open_network
from tests.support.states import draw, same

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(2))
async def test_members_that_come_and_go_in_the_middle_of_anything_agree(
    autojump_clock: MockClock, network: Network, seed: int
) -> None:
    rng = random.Random(seed)
    there: dict[str, SharedState] = {}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        lasting = await enter((await enter(network.open_node("prices", host="lasting"))).state("prices"))
        nursery = await enter(trio.open_nursery())
        lasting.update({f"k{number}": number for number in range(2500)})

        async def come(host: str) -> None:
            with trio.move_on_after(rng.uniform(0.01, 8)):
                async with network.open_node("prices", host=host) as node, node.state("prices", timeout=30) as state:
                    there[host] = state
                    try:
                        while True:
                            state[rng.choice("abcdefgh")] = rng.randrange(100)
                            state.counter("c").add(1)
                            state.set("s").add(rng.randrange(5))
                            if rng.random() < 0.02:
                                state.update({f"{host} {number}": 1 for number in range(2500)})
                            await trio.sleep(rng.uniform(0, 0.4))
                    finally:
                        del there[host]

        for number in range(10):
            nursery.start_soon(partial(come, f"h{number}"))
            await trio.sleep(rng.uniform(0, 0.5))
            if rng.random() < 0.3:
                group = rng.sample(sorted(there), len(there) // 2)
                rest = [host for host in (*there, "lasting") if host not in group]
                network.memory.partition(group, rest)
                await trio.sleep(rng.uniform(0, 3))
                network.memory.heal()
        nursery.cancel_scope.deadline = trio.current_time() + 12
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        states = [await enter((await enter(network.open_node("prices"))).state("prices")) for _ in range(3)]
        states[0]["end"] = 1
        for state in states:
            await state.settled(3, timeout=60)
        assert same(*states)


async def test_values_sets_and_names_at_their_edges(autojump_clock: MockClock, network: Network) -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        one, two = [await enter((await enter(network.open_node("prices"))).state("prices")) for _ in range(2)]
        one.set("s").add(1)
        two.set("s").add(1.0)
        two.set("s").add(True)
        one.set("s").add((1, (1.0, False)))
        one.set("s").add(math.nan)
        two.set("s").add(math.nan)
        one.set("s").add(-0.0)
        two.set("s").add(0)
        one.set("s").add(-math.inf)
        deep: Any = 1
        for _ in range(16):
            deep = [deep]
        one.map("a.b")["c"] = {"d": {"": [math.inf, -0.0, b"", None]}}
        one.map("m")["deep"] = deep
        for name in ("", "x" * 1025, "\ud800", 7, None):
            for wrong in (one.map, one.set, one.counter):
                with pytest.raises(ConfigError):
                    wrong(name)  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                one[name] = 1  # type: ignore[index]
        for value in ([deep], {1: 2}, {"a": {1}}, 2**64, -(2**63) - 1, "\ud800", object(), 1j):
            with pytest.raises(ConfigError):
                one["k"] = value
        for number in (2**53 + 1, -(2**53) - 1, True, 1.0, "1"):
            with pytest.raises(ConfigError):
                one.counter("c").add(number)  # type: ignore[arg-type]
        one.counter("c").add(2**53)
        two.counter("c").add(2**53)
        one.counter("c").add(-1)
        one["x" * 1024] = "\0"
        one["\U0001f600" * 256] = 2**64 - 1
        await one.settled(2)
        await two.settled(2)
        for each in (one, two):
            assert len(each.set("s")) == 6, list(each.set("s"))
            assert 1 in each.set("s")
            assert 1.0 in each.set("s")
            assert int(each.counter("c")) == 2**54 - 1
            assert each["\U0001f600" * 256] == 2**64 - 1
        assert repr(dict(one.map("a.b"))) == repr(dict(two.map("a.b")))
        assert same(one, two)


async def test_a_member_whose_clock_is_set_far_back_or_ahead_is_not_parted(
    autojump_clock: MockClock, network: Network
) -> None:
    """The bound of numbers follows the date, and honest numbers are far below it."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        hosts = ("one", "two", "three")
        states = [await enter((await enter(network.open_node("prices", host=host))).state("prices")) for host in hosts]
        network.offsets |= dict(zip(hosts, (-40 * 365 * 86400.0, 0.0, 40 * 365 * 86400.0), strict=True))
        for number in range(50):
            for at, state in enumerate(states):
                state[f"{at}.{number}"] = 1
            await trio.sleep(0.01)
        for state in states:
            await state.settled(3, timeout=30)
        assert {len(state) for state in states} == {150}


async def test_a_cluster_that_opens_and_leaves_at_once_loses_no_write(
    autojump_clock: MockClock, network: Network
) -> None:
    """Each start is another writer; the last one that leaves passes its writes on."""
    async with network.open_node("prices") as node, node.state("prices") as state:
        for number in range(150):
            async with network.open_node("prices") as other, other.state("prices") as theirs:
                theirs[f"{number}"] = number
                theirs.counter("c").add(1)
        assert len(state) == 150
        assert int(state.counter("c")) == 150
        assert state.statistics().writers <= 151


async def test_a_program_that_reads_while_it_is_written_gets_one_moment(
    autojump_clock: MockClock, network: Network
) -> None:
    """Edits change two keys at once, far from each other; no read shows one of them without the other."""
    async with (
        network.open_node("prices") as node,
        network.open_node("door") as door,
        node.state("prices", allow=["door"]) as state,
        trio.open_nursery() as nursery,
    ):
        await door.wait_for("prices")
        state.update({f"m{number}": 0 for number in range(10_000)})

        async def write() -> None:
            for number in range(10**9):
                state.update({"a": number, "z": number})
                await trio.sleep(0.001 * (number % 2))

        nursery.start_soon(write)
        await trio.lowlevel.checkpoint()
        for _ in range(5):
            read = await door.request("prices", {}, operation="read", timeout=1e6)
            assert read["a"] == read["z"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("leavers", [0, 3])
async def test_newcomers_in_a_crowd_have_it_all(autojump_clock: MockClock, network: Network, leavers: int) -> None:
    """Sixteen come at once, and some that have it leave in the middle of that."""
    done: list[int] = []
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        first = await enter((await enter(network.open_node("prices"))).state("prices"))
        nursery = await enter(trio.open_nursery())
        first.update({f"k{number}": "x" * 100 for number in range(6000)})

        async def leave(*, task_status: trio.TaskStatus[None]) -> None:
            async with network.open_node("prices") as node, node.state("prices"):
                task_status.started()
                await trio.sleep(0.05)

        for _ in range(leavers):
            await nursery.start(leave)

        async def come() -> None:
            async with network.open_node("prices") as node, node.state("prices", timeout=60) as state:
                done.append(len(state))

        for _ in range(16):
            nursery.start_soon(come)
    assert done == [6000] * 16


async def test_members_of_a_new_cluster_begin_together_at_once(autojump_clock: MockClock, network: Network) -> None:
    begun: list[float] = []
    over = trio.Event()

    async def come() -> None:
        async with network.open_node("prices") as node:
            await start.wait()
            began = trio.current_time()
            async with node.state("prices", timeout=60):
                begun.append(trio.current_time() - began)
                if len(begun) == 16:
                    over.set()
                await over.wait()

    start = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(come)
        await trio.sleep(5)
        start.set()
    assert max(begun) < 1, begun


@pytest.mark.parametrize(("first", "second"), [(3, 3), (5, 2), (2, 5), (1, 200), (200, 1)])
async def test_settled_waits_for_what_another_one_with_the_same_number_has_hidden(
    autojump_clock: MockClock, first: int, second: int
) -> None:
    async with (
        open_network() as network,
        network.open_node("prices", host="one") as a,
        network.open_node("prices", host="two") as b,
        network.open_node("prices", host="three") as c,
        a.state("prices") as one,
        b.state("prices") as two,
        c.state("prices") as three,
    ):
        states: list[SharedState] = [one, two, three]
        for index, state in enumerate((one, two)):
            draw(state, 7, 100 + index)
        for number in range(max(first, second)):
            if number < first:
                one[f"one.{number}"] = number
            if number < second:
                two[f"two.{number}"] = number
            await trio.lowlevel.checkpoint()
        for state, name, count in ((one, "one", first), (two, "two", second)):
            await state.settled(3, timeout=60)
            for other in states:
                assert [other.get(f"{name}.{number}") for number in range(count)] == [*range(count)]
