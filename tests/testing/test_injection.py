"""Each kind of fault does what its name says, and ends."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

import iris
import iris.testing
from iris.testing.faults import (
    Broken,
    Crash,
    Fault,
    Flapping,
    Partition,
    Schedule,
    Slow,
    SlowDisk,
    SlowReader,
    Stall,
    WrongClock,
)  # fmt: skip
from iris.testing.running import run_once
from tests.support.simulated import member

AT, LASTING = 10.0, 4.0


def simulated(body: Callable[[iris.testing.World], Awaitable[object]], *faults: Fault) -> None:
    run = run_once(body, Schedule(seed=1, seconds=60.0, faults=faults))
    if run.error is not None:
        raise run.error


async def answered(node: iris.Node, timeout: float = 0.5) -> bool:
    try:
        await node.request("echo", b"", timeout=timeout)
    except iris.DeliveryError:
        return False
    return True


@pytest.mark.parametrize(
    "fault",
    [
        Partition(at=AT, lasting=LASTING, near=("a",), far=("test",)),
        Partition(at=AT, lasting=LASTING, near=("a",), far=("test",), one_way=True),
        Crash(at=AT, lasting=LASTING, host="a"),
        Stall(at=AT, lasting=LASTING, host="a"),
        SlowReader(at=AT, lasting=LASTING, host="a"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_member_does_not_answer_while_it_lasts_and_does_afterwards(fault: Fault) -> None:
    async def body(world: iris.testing.World) -> None:
        world.start("a", member)
        async with iris.open_node("desk") as node:
            await node.wait_for("echo", timeout=5)
            await trio.sleep_until(AT - 1)
            assert await answered(node)
            await trio.sleep_until(AT + 1)
            assert not await answered(node)
            await trio.sleep_until(AT + LASTING + 10)
            assert await answered(node)

    simulated(body, fault)


def test_what_is_sent_through_a_partition_arrives_when_it_is_over() -> None:
    async def body(world: iris.testing.World) -> None:
        world.start("a", member)
        async with iris.open_node("desk") as node:
            await node.wait_for("echo", timeout=5)
            await trio.sleep_until(AT + 0.01)
            began = trio.current_time()
            await node.request("echo", b"", timeout=5)
            assert 0.15 < trio.current_time() - began < 0.4

    simulated(body, Partition(at=AT, lasting=0.2, near=("a",), far=("test",)))


def test_a_flapping_link_is_open_every_other_period() -> None:
    async def body(world: iris.testing.World) -> None:
        memory = world.network.memory
        cut: list[bool] = []
        for period in range(6):
            await trio.sleep_until(AT + period + 0.5)
            cut.append(memory.is_cut("a", "test"))
        assert cut == [True, False, True, False, False, False]

    simulated(body, Flapping(at=AT, lasting=LASTING, near=("a",), far=("test",), period=1.0))


def test_a_slow_link_takes_longer() -> None:
    async def body(world: iris.testing.World) -> None:
        world.start("a", member)
        async with iris.open_node("desk") as node:
            await node.wait_for("echo", timeout=5)
            for moment, least in ((AT - 1, 0.0), (AT + 1, 0.2), (AT + LASTING + 2, 0.0)):
                await trio.sleep_until(moment)
                began = trio.current_time()
                await node.request("echo", b"", timeout=5)
                assert least <= trio.current_time() - began < least + 0.1

    simulated(body, Slow(at=AT, lasting=LASTING, near=("a",), far=("test",), least=0.1, greatest=0.11))


def test_broken_connections_are_made_anew() -> None:
    async def body(world: iris.testing.World) -> None:
        world.start("a", member)
        async with iris.open_node("desk") as node:
            await node.wait_for("echo", timeout=5)
            await trio.sleep_until(AT + 0.005)
            with suppress(iris.DeliveryError):
                await node.request("echo", b"", timeout=1)
            await trio.sleep_until(AT + 3)
            assert await answered(node)

    simulated(body, Broken(at=AT, lasting=0.1, near=("a",), far=("test",)))


def test_a_stalled_program_does_nothing_and_then_what_was_due() -> None:
    async def body(world: iris.testing.World) -> None:
        ticks: list[float] = []

        async def tick() -> None:
            while True:
                await trio.sleep(1)
                ticks.append(trio.current_time())

        world.start("a", tick)
        await trio.sleep_until(AT + LASTING + 2.5)
        assert not [moment for moment in ticks if AT < moment < AT + LASTING]
        assert len(ticks) == pytest.approx(AT + 2.5, abs=1.5)

    simulated(body, Stall(at=AT, lasting=LASTING, host="a"))


def test_a_crash_starts_the_program_anew_on_its_own_disk() -> None:
    async def body(world: iris.testing.World) -> None:
        async def count() -> None:
            file = world.directory() / "starts"
            file.write_text(f"{int(file.read_text()) + 1 if file.exists() else 1}")
            await trio.sleep_forever()

        world.start("a", count)
        await world.wait_healed()
        await trio.sleep(1)
        assert (world.directory("a") / "starts").read_text() == "2"

    simulated(body, Crash(at=AT, lasting=LASTING, host="a"))


def test_a_wrong_clock_is_that_of_one_host() -> None:
    async def body(world: iris.testing.World) -> None:
        dates: dict[str, float] = {}

        async def look() -> None:
            await trio.sleep_until(AT + 1)
            dates["a"] = time.time()  # noqa: TID251 -- as programs do
            await trio.sleep_until(AT + LASTING + 1)
            dates["later"] = time.time()  # noqa: TID251

        world.start("a", look)
        await trio.sleep_until(AT + 1)
        right = time.time()  # noqa: TID251
        await world.healed.wait()
        assert dates["a"] - right == pytest.approx(25.0)
        assert dates["later"] - right == pytest.approx(LASTING)

    simulated(body, WrongClock(at=AT, lasting=LASTING, host="a", seconds=25.0))


def test_a_slow_disk_is_that_of_one_host() -> None:
    async def body(world: iris.testing.World) -> None:
        async def took() -> float:
            began = trio.current_time()
            await trio.to_thread.run_sync(lambda: None)
            return trio.current_time() - began

        async def look() -> None:
            await trio.sleep_until(AT + 1)
            assert 0.5 < await took() < 0.6

        world.start("a", look)
        await trio.sleep_until(AT + 1)
        assert await took() < 0.1

    simulated(body, SlowDisk(at=AT, lasting=LASTING, host="a", seconds=0.5))
