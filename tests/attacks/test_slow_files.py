"""A file system on which each step takes a second: nodes, bridges and documents open, serve and end, only later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.attacks.test_slow_gateways import SlowSteps
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World

pytestmark = pytest.mark.long


class SlowThreads:
    """Threads of which each call takes a second, or as long as is said."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 1.0

    async def run_sync(self, call: Callable[..., object], *args: object, **_: object) -> object:
        self.calls += 1
        await trio.sleep(self.seconds)
        return call(*args)


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SlowThreads:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    threads = SlowThreads()
    monkeypatch.setattr(trio.to_thread, "run_sync", threads.run_sync)
    return threads


async def test_a_bridge_on_a_slow_disk_confirms_serves_and_ends(
    autojump_clock: MockClock, tmp_path: Path, slow: SlowThreads
) -> None:
    with trio.fail_after(2000):
        async with open_network() as network, network.open_node("bridge") as node, network.open_node("desk") as desk:
            for round_ in range(2):
                async with open_bridge(node, topics=["jobs", "news.>"], directory=tmp_path / "log"):
                    await desk.wait_for("bridge")
                    async with trio.open_nursery() as nursery:
                        for number in range(10):
                            nursery.start_soon(partial(desk.publish_confirmed, "news.a", number, timeout=30))
                    async with desk.bridge().queue("jobs") as jobs, desk.bridge().lease("one", ttl=30):
                        await jobs.put(round_, timeout=30)
                        async for job in jobs.receive():
                            async with job:
                                assert job.payload == round_
                            break
                    found: list[object] = []
                    async with desk.bridge().consume("news.>", group=f"g{round_}", start="earliest") as log:
                        async for batch in log:
                            async with batch:
                                found += [event.payload for event in batch]
                            if len(found) >= 10 * (round_ + 1):
                                break
                    assert sorted(found, key=repr) == sorted([*range(10)] * (round_ + 1))
        assert slow.calls > 20


async def test_a_bridge_that_is_cancelled_at_any_second_of_its_slow_opening_and_ending_loses_nothing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    with trio.fail_after(20_000):
        async with open_network() as network, network.open_node("bridge") as node, network.open_node("desk") as desk:
            confirmed = 0
            for second in range(40):
                with trio.move_on_after(second + 0.5):
                    async with open_bridge(node, topics=["news"], directory=tmp_path / "log"):
                        await desk.wait_for("bridge")
                        await desk.publish_confirmed("news", second, timeout=60)
                        confirmed += 1
            assert confirmed
            async with open_bridge(node, topics=["news"], directory=tmp_path / "log"):
                await desk.wait_for("bridge")
                await desk.publish_confirmed("news", "last", timeout=60)
                found: list[object] = []
                async with desk.bridge().consume("news", group="g", start="earliest") as log:
                    async for batch in log:
                        async with batch:
                            found += [event.payload for event in batch]
                        if "last" in found:
                            break
                numbers = found[:-1]
                assert len(numbers) == len(set(map(repr, numbers))) >= confirmed


async def test_a_document_on_a_slow_disk_is_saved_when_its_block_ends(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    with trio.fail_after(300):
        async with open_network() as network, network.open_node("a") as node:
            for round_ in range(3):
                async with node.state("prices", path=tmp_path / "prices") as state:
                    assert len(state) == 10 * round_
                    for number in range(10):
                        state[f"{round_} {number}"] = number
                        await trio.sleep(0.3)


@pytest.mark.parametrize("seconds", [1, 5])
async def test_nodes_with_everything_slow_find_each_other_and_end(
    autojump_clock: MockClock, tmp_path: Path, slow: SlowThreads, seconds: int
) -> None:
    slow.seconds = seconds
    world = World(tmp_path / "run")

    async def in_thread(call: Callable[[], Any], /) -> Any:
        await trio.sleep(seconds)
        return call()

    def transport(config: iris.Config) -> SlowSteps:
        return SlowSteps(world.transport(config))

    environment = structs.replace(world.environment(), in_thread=in_thread, transport=transport)
    opening = partial(iris.open_node, credential=world.shop, environment=environment)
    with trio.fail_after(600):
        async with opening(listen=[OUTSIDE]) as one, one.subscribe("news") as events:  # noqa: SIM117
            async with opening(listen=[LOOPBACK]) as two:
                await trio.sleep(20)
                await two.publish("news", 1)
                with trio.fail_after(5):
                    assert (await anext(events)).payload == 1
                assert len(one.statistics().links) == 1
    assert world.is_untouched


async def test_a_node_on_a_disk_that_stands_still_serves_and_ends_within_seconds(
    autojump_clock: MockClock, tmp_path: Path, slow: SlowThreads
) -> None:
    """Cancelled threads of trio are waited for; what a node does with files in the end has a bound."""
    world = World(tmp_path / "run")
    opening = partial(iris.open_node, credential=world.shop, environment=world.environment())
    async with opening(listen=[OUTSIDE]) as one, one.subscribe("news") as events:
        async with opening(listen=[LOOPBACK]) as two:
            slow.seconds = 100_000
            await trio.sleep(300)
            await two.publish("news", 1)
            with trio.fail_after(5):
                assert (await anext(events)).payload == 1
            began = trio.current_time()
        assert trio.current_time() - began < 5
