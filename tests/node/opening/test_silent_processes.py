"""Processes that are stopped: they take connections and say nothing, and hold up nobody who starts for long."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.node.opening.test_opening import World

SHOP = "tcp://10.0.0.1:7000"
STOPPED = "tcp://10.0.0.{}:7000"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))

    async def at_once(call: Callable[..., object], *args: object, **_: object) -> object:
        """Call at once: in a thread virtual time would run on."""
        await trio.lowlevel.checkpoint()
        return call(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return World(tmp_path / "run")


async def stop(world: World, number: int, *, announced: bool) -> str:
    """Have a node that takes connections and reads nothing; return its URL."""
    url = STOPPED.format(10 + number)
    await world.network.transport(f"stopped-{number}").listen([f"mem://{url}"])
    if announced:
        entry = world.directory(world.shop.realm_id) / f"{number:032x}.node"
        entry.write_text(json.dumps({"addresses": [url], "process": 1, "site": ""}))
    return url


@pytest.mark.parametrize("client", [False, True])
@pytest.mark.parametrize("count", [1, 3])
async def test_who_starts_beside_stopped_processes_waits_two_seconds(
    autojump_clock: MockClock, world: World, count: int, client: bool
) -> None:
    for number in range(count):
        await stop(world, number, announced=True)
    began = trio.current_time()
    async with iris.open_node(credential=world.shop, listen=[SHOP], client=client, environment=world.environment()):
        assert 1.5 < trio.current_time() - began < 2.6


async def test_a_seed_that_is_stopped_holds_up_for_two_seconds_who_has_found_the_others(
    autojump_clock: MockClock, world: World
) -> None:
    environment = world.environment(directory=None)
    async with iris.open_node(credential=world.shop, listen=[SHOP], environment=environment):
        seeds = [await stop(world, 1, announced=False), SHOP]
        began = trio.current_time()
        async with iris.open_node(
            credential=world.shop, listen=["tcp://10.0.0.2:7000"], seeds=seeds, environment=environment
        ) as node:
            assert 1.5 < trio.current_time() - began < 2.6
            assert len(node.statistics().links) == 1
