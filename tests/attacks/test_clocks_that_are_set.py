"""A wall clock that is set by hours, forward and back, while what goes by dates is in use."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors are of asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.doors import clients as door_clients
from iris.doors import grant
from iris.doors.clients import ClientLimits, Clients
from iris.doors.problems import Problem
from iris.security.authority.issuing import issue_cluster
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.clock_check import LogClock
from iris.testing import Rights, open_network
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World
from tests.node.opening.test_shortages import Threads
from tests.support.doors import NOW
from tests.support.realms import WALL

HOUR = 3600.0


@pytest.mark.parametrize("was", [-3 * HOUR, -60.0, 3 * HOUR])
def test_what_is_open_for_a_token_ends_with_it_also_if_the_clock_was_wrong_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: float
) -> None:
    """Behind it would be open for hours more."""
    monkeypatch.setattr(door_clients, "_REREAD", 0.01)
    grant(tmp_path / "tokens", "web", call=(">",), expires=NOW + 6 * HOUR)
    secret = grant(tmp_path / "tokens", "app", call=(">",), expires=NOW + 4 * HOUR)
    now = NOW + was

    async def main() -> None:
        nonlocal now
        clients = Clients(tmp_path / "tokens", lambda: now, ClientLimits())
        follows = asyncio.ensure_future(clients.follow())
        ended = asyncio.Event()

        async def hold(name: str) -> None:
            try:
                async with clients.named(name).streaming():
                    await asyncio.Event().wait()
            except Problem:
                ended.set()

        app, web = (asyncio.ensure_future(hold(name)) for name in ("app", "web"))
        await asyncio.sleep(0.05)
        now = NOW + 4 * HOUR - 1  # it is right again
        await asyncio.sleep(0.05)
        assert not ended.is_set()
        now = NOW + 4 * HOUR
        await asyncio.wait_for(ended.wait(), 2)
        assert app.done()
        assert not web.done()
        with pytest.raises(Problem):
            clients.admit(secret)
        for task in (follows, web, app):
            task.cancel()
        await asyncio.wait([follows, web, app])

    asyncio.run(main())


@asynccontextmanager
async def clocked(world: World, clocks: dict[str, float], who: str, url: str) -> AsyncGenerator[iris.Node]:
    def date() -> float:
        return WALL + trio.current_time() - began + clocks.get(who, 0.0)

    began = trio.current_time()
    environment = world.environment(wall_clock=date, directory=None, lan=None)
    async with iris.open_node(credential=world.shop, listen=[url], seeds=[OUTSIDE], environment=environment) as node:
        yield node


STEPS = [2 * HOUR, -20 * HOUR]


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("who", ["one", "two", "both"])
async def test_links_events_documents_and_replies_outlive_a_clock_that_is_set(
    autojump_clock: MockClock, tmp_path: Path, own_home: None, step: float, who: str
) -> None:
    """While one is wrong by more than peers bear it may be out; with the clock right again all is as it was."""
    world = World(tmp_path / "run")
    rights = Rights(serves=(">",))
    world.shop = issue_cluster(world.realm, "any", entropy=world.entropy, wall_now=WALL, rights=rights)[1]
    clocks: dict[str, float] = {}
    service = iris.Service("shop")

    async def reply(request: iris.Request) -> object:
        return request.payload

    service.request(reply)
    async with (
        clocked(world, clocks, "one", OUTSIDE) as one,
        clocked(world, clocks, "two", LOOPBACK) as two,
        one.join("shop", service),
        one.state("prices") as here,
        two.state("prices") as there,
        one.subscribe_durable("news") as events,
    ):
        await two.wait_for("shop")
        got: list[object] = []

        async def receive() -> None:
            async for event in events:
                got.append(event.payload)
                await events.confirm([event])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.sleep(2)
            await two.publish_confirmed("news", 0)
            for name in ("one", "two") if who == "both" else (who,):
                clocks[name] = step
            for number in range(5):
                here[f"a{number}"] = there[f"b{number}"] = number
                await two.publish("news", f"w{number}")
                await trio.sleep(20)
            if who == "both":
                assert await two.request("shop", 1, timeout=5) == 1
            clocks.clear()
            await trio.sleep(400)
            with trio.fail_after(200):
                assert await two.request("shop", 2, timeout=50, wait=100) == 2
                await two.publish_confirmed("news", "after", timeout=60)
                here["c"] = there["d"] = 1
                await trio.sleep(60)
            assert dict(here) == dict(there)
            assert len(here) == 12
            assert got[0] == 0
            assert got[-1] == "after"
            nursery.cancel_scope.cancel()


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
async def test_a_bridge_a_queue_and_a_lease_outlive_a_clock_that_is_set(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", Threads().run_sync)
    async with open_network(seed=2) as network, network.open_node("bridge", host="b") as node:  # noqa: SIM117
        async with network.open_node("desk", host="d") as desk:
            ahead = 0.0

            def date() -> float:
                return time.time() + ahead  # noqa: TID251 -- as a bridge does it

            async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log", wall_clock=date):
                await desk.wait_for("bridge")
                done: list[object] = []

                async def work() -> None:
                    async with desk.bridge().queue("jobs") as jobs:
                        async for job in jobs.receive():
                            async with job:
                                done.append(job.payload)

                async with (
                    trio.open_nursery() as nursery,
                    desk.bridge().lease("one"),
                    desk.bridge().queue("jobs") as jobs,
                ):
                    nursery.start_soon(work)
                    for number in range(6):
                        ahead = step * (number % 2)
                        await jobs.put(number, timeout=20)
                        await jobs.put(100 + number, delay=2, timeout=20)
                        await trio.sleep(5)
                        assert len(done) == 2 * (number + 1), number
                    nursery.cancel_scope.cancel()
                assert sorted(map(str, done), key=int) == [*map(str, (0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105))]


START = 1_800_000_000.0


@pytest.mark.parametrize("seed", range(30))
def test_dates_grow_and_delays_end_when_they_are_over_whatever_is_set(seed: int) -> None:
    rng = random.Random(seed)
    wall, monotonic = START, 50.0
    newest = rng.choice([None, START - 1000, START + 300, START - 0.001])
    clock = LogClock(newest, wall, monotonic)
    read: list[tuple[float, float]] = []
    for _ in range(400):
        step = rng.choice([0.0, 0.0, 0.0, 0.0, rng.uniform(-5000, 5000), rng.uniform(-0.5, 0.5), 1e-4])
        passed = rng.choice([1e-4, 0.01, 1.0, 30.0, rng.uniform(0, 2000)])
        wall, monotonic = wall + passed + (step if rng.random() < 0.1 else 0.0), monotonic + passed
        date = clock.read(wall, monotonic)
        if read:
            assert date > read[-1][0], "dates neither go back nor stand still"
        read.append((date, monotonic))
        for stored, at in read[-20:]:
            moment = clock.moment(stored, date, monotonic)
            assert moment == pytest.approx(at, abs=1e-3)
            assert moment <= monotonic + 1e-6, "nothing was stored in the time to come"
        delay = rng.uniform(0.1, 100)
        due = clock.moment(date + delay, date, monotonic)
        assert due == pytest.approx(monotonic + delay, abs=1e-3)


@pytest.mark.parametrize("behind", [0.5, 5.0, 4000.0])
def test_after_a_start_with_a_clock_that_is_behind_the_log_what_was_stored_before_is_in_the_past(behind: float) -> None:
    clock = LogClock(START, START - behind, 10.0)
    first = clock.read(START - behind, 10.0)
    assert first >= START
    for passed in (1.0, 100.0, 5000.0):
        date = clock.read(START - behind + passed, 10.0 + passed)
        assert clock.moment(START - 60, date, 10.0 + passed) <= 10.0
        assert clock.moment(START, date, 10.0 + passed) <= 10.0 + 1e-6
    assert clock.read(START + 10_000, 10.0 + behind + 10_000) == pytest.approx(START + 10_000, abs=1.0)
