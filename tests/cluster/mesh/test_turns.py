"""Few handshakes at a time: who waits, for how long, and what a wait that is cancelled leaves behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh.dialer import AT_A_TIME, PATIENCE, DialLimiter
from iris.cluster.mesh.peer import Peer
from iris.testing import open_network
from tests.support.meshes import open_meshes


class Lateness:
    """A node that is late by so much, and how often that was looked at."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.looks = 0

    @property
    def lateness(self) -> float:
        self.looks += 1
        return self._seconds


class Crowd:
    """Tasks that want a turn each, and when they got it."""

    def __init__(self, turns: DialLimiter, seconds: float, *, connect: bool = False) -> None:
        self.turns = turns
        self.seconds = seconds
        self.connect = connect
        self.began: dict[int, float] = {}
        self.inside = self.most = 0

    async def come(self, number: int, source: str = "") -> None:
        async with self.turns.acquire(source) as connected:
            if self.connect:
                connected()
            self.began[number] = trio.current_time()
            self.inside += 1
            self.most = max(self.most, self.inside)
            await trio.sleep(self.seconds)
            self.inside -= 1

    async def come_until(self, until: float, number: int) -> None:
        with trio.move_on_at(until):
            await self.come(number)


async def crowd_of(count: int, seconds: float, *, connect: bool = False) -> Crowd:
    crowd = Crowd(DialLimiter(5.0, Lateness()), seconds, connect=connect)
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(crowd.come, number)
    assert len(crowd.turns) == 0
    return crowd


async def test_a_single_one_does_not_wait(autojump_clock: MockClock) -> None:
    crowd = await crowd_of(1, 0.1)
    assert crowd.began[0] == trio.current_time() - 0.1


@pytest.mark.parametrize("count", [AT_A_TIME, AT_A_TIME + 1, 50])
async def test_of_those_that_end_soon_few_are_there_at_a_time(autojump_clock: MockClock, count: int) -> None:
    before = trio.current_time()
    crowd = await crowd_of(count, 0.01)
    assert crowd.most == AT_A_TIME
    assert trio.current_time() - before == pytest.approx(0.01 * -(-count // AT_A_TIME))


@pytest.mark.parametrize("seconds", [0.01, 3.0])
async def test_of_those_that_are_connected_few_are_there_however_long_they_take(
    autojump_clock: MockClock, seconds: float
) -> None:
    before = trio.current_time()
    crowd = await crowd_of(3 * AT_A_TIME, seconds, connect=True)
    assert crowd.most == AT_A_TIME
    assert trio.current_time() - before == pytest.approx(3 * seconds)


async def test_those_that_do_not_connect_hold_nobody_up_for_more_than_a_second(autojump_clock: MockClock) -> None:
    before = trio.current_time()
    crowd = await crowd_of(3 * AT_A_TIME, 30.0)
    waited = sorted(round(at - before, 6) for at in crowd.began.values())
    assert waited == [turn * PATIENCE for turn in range(3) for _ in range(AT_A_TIME)]


async def test_a_wait_that_is_cancelled_takes_no_place(autojump_clock: MockClock) -> None:
    turns = DialLimiter(5.0, Lateness())
    crowd = Crowd(turns, 0.5)
    async with trio.open_nursery() as nursery:
        for number in range(AT_A_TIME):
            nursery.start_soon(crowd.come, number)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.1) as scope:
            await crowd.come(100)
        assert scope.cancelled_caught
        before = trio.current_time()
        await crowd.come(101)
        assert crowd.began[101] == pytest.approx(before + 0.4)
    assert len(turns) == 0


async def fail() -> None:
    raise ValueError("as it may")


@pytest.mark.parametrize("end", [fail, trio.lowlevel.checkpoint])
async def test_a_turn_ends_however_the_block_ends(
    autojump_clock: MockClock, end: Callable[[], Awaitable[None]]
) -> None:
    turns = DialLimiter(5.0, Lateness())
    for _ in range(3 * AT_A_TIME):
        try:
            async with turns.acquire():
                await end()
        except ValueError:
            pass
    assert len(turns) == 0


async def test_hosts_that_do_not_answer_keep_a_node_from_the_others_for_seconds_only(
    autojump_clock: MockClock,
) -> None:
    lost = [f"lost-{number}" for number in range(20)]
    async with open_network() as network, network.open_node("there", host="there") as there:
        for host in lost:
            await network.memory.transport(host).listen([f"mem://{host}"])
        network.memory.partition(["here"], lost)
        before = trio.current_time()
        async with network.open_node("here", host="here", seeds=[*lost, "there"]) as node:
            assert there.id in node._mesh.peers
            assert trio.current_time() - before < 20 / AT_A_TIME * PATIENCE + 5.5


@pytest.mark.parametrize(("late", "at_a_time"), [(0.0, AT_A_TIME), (0.019, AT_A_TIME), (0.02, 2), (0.5, 1)])
async def test_a_node_that_is_late_begins_fewer(autojump_clock: MockClock, late: float, at_a_time: int) -> None:
    turns = DialLimiter(5.0, Lateness(late))
    crowd = Crowd(turns, 0.01)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(crowd.come, number)
    assert crowd.most == at_a_time


@pytest.mark.parametrize(("late", "patience"), [(0.0, 5.0), (0.1, 15.0), (30.0, 30.0)])
def test_where_processors_are_short_a_handshake_may_take_longer(late: float, patience: float) -> None:
    turns = DialLimiter(5.0, Lateness(late))
    assert turns.patience() == patience


async def test_who_was_linked_while_it_waited_for_its_turn_is_not_dialled(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", linked=False) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        nursery.start_soon(hold_all_turns, a.mesh.turns, 0.5)
        await trio.testing.wait_all_tasks_blocked()
        linked: list[Peer] = []

        async def connect() -> None:
            linked.append(await a.mesh.connect([b.url], expected=b.id))

        nursery.start_soon(connect)
        await b.mesh.connect([a.url])
        await trio.sleep(0.1)
        session = a.peer(b).session
        await trio.sleep(1.0)
        assert linked == [a.peer(b)]
        assert a.peer(b).session is session


async def hold_all_turns(turns: DialLimiter, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(AT_A_TIME):
            await stack.enter_async_context(turns.acquire())
        await trio.sleep(seconds)


async def test_somebody_looks_also_if_the_next_one_to_look_is_cancelled_at_that_moment(
    autojump_clock: MockClock,
) -> None:
    for _ in range(20):  # which of two tasks runs first is for trio to say
        crowd = Crowd(DialLimiter(5.0, Lateness()), 30.0)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(2 * AT_A_TIME):
                nursery.start_soon(crowd.come, number)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(crowd.come_until, began + PATIENCE, 100)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(crowd.come, 101)
        assert 100 not in crowd.began
        assert crowd.began[101] == began + 2 * PATIENCE


async def test_thousands_that_one_source_made_up_keep_nobody_of_another_waiting_for_long(
    autojump_clock: MockClock,
) -> None:
    crowd = Crowd(DialLimiter(5.0, Lateness()), 5.0)  # nobody answers
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(3000):
            nursery.start_soon(crowd.come, number, "cluster of a bad one")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(8):
            nursery.start_soon(crowd.come, 10_000 + number, f"cluster {number % 2}")
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    waited = sorted(at - began for number, at in crowd.began.items() if number >= 10_000)
    assert len(waited) == 8
    # Three sources take turns for four places a second: two of three places are for these eight.
    assert waited[0] == PATIENCE
    assert waited[-1] <= 4 * PATIENCE
    assert len(crowd.turns) == 0


async def test_those_of_one_source_come_in_their_order_and_sources_take_turns(autojump_clock: MockClock) -> None:
    crowd = Crowd(DialLimiter(5.0, Lateness(1.0)), 0.1)  # one at a time
    async with trio.open_nursery() as nursery:
        for number, source in enumerate("aaaabbc"):
            nursery.start_soon(crowd.come, number, source)
            await trio.testing.wait_all_tasks_blocked()
    assert list(crowd.began) == [0, 1, 4, 6, 2, 5, 3]


@pytest.mark.parametrize("gone", [[100], [101, 100], list(range(100, 110))])
async def test_whoever_of_those_that_wait_gives_up_the_others_still_have_their_turns(
    autojump_clock: MockClock, gone: list[int]
) -> None:
    turns = DialLimiter(5.0, Lateness())
    silent, waiting = Crowd(turns, 3600.0), Crowd(turns, 0.01)
    scopes = {number: trio.CancelScope() for number in range(100, 112)}

    async def come(number: int) -> None:
        with scopes[number]:
            await waiting.come(number, "ab"[number % 2])

    async with trio.open_nursery() as nursery:
        for number in range(AT_A_TIME):
            nursery.start_soon(silent.come, number)
        await trio.testing.wait_all_tasks_blocked()
        for number in scopes:
            nursery.start_soon(come, number)
            await trio.testing.wait_all_tasks_blocked()
        for number in gone:
            scopes[number].cancel()
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(PATIENCE + 1)
        assert sorted(waiting.began) == sorted(scopes.keys() - set(gone))
        nursery.cancel_scope.cancel()
    assert len(turns) == 0


async def test_of_many_that_wait_one_looks_for_a_place_and_the_others_sleep(autojump_clock: MockClock) -> None:
    lateness = Lateness()
    crowd = Crowd(DialLimiter(5.0, lateness), 3600.0)
    async with trio.open_nursery() as nursery:
        for number in range(2000):
            nursery.start_soon(crowd.come, number)
        await trio.testing.wait_all_tasks_blocked()
        lateness.looks = 0
        await trio.sleep(10 * PATIENCE - 0.5)
        assert len(crowd.began) == 10 * AT_A_TIME
        assert lateness.looks < 10 * AT_A_TIME * 8
        nursery.cancel_scope.cancel()
