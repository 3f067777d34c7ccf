"""Callers that wait for a lease whose bridge has other names, and the remains of a purge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.testing import open_network
from tests.support.bridge_members import open_members

pytestmark = pytest.mark.long


@pytest.mark.parametrize("after", [["b", "a"], ["z", "y"]])
async def test_who_waits_for_a_lease_gets_it_though_the_members_have_other_names_by_then(
    tmp_path: Path, after: list[str]
) -> None:
    async with (
        open_network() as network,
        network.open_node("workers") as one,
        network.open_node("workers") as two,
        trio.open_nursery() as nursery,
    ):
        closing, opened, got, over = trio.Event(), trio.Event(), trio.Event(), trio.Event()

        async def run_bridges() -> None:
            async with open_members(network, tmp_path, ["a", "b"], of=2):
                await closing.wait()
            async with open_members(network, tmp_path, after, of=2):
                opened.set()
                await over.wait()

        async def wait() -> None:
            while not got.is_set():
                try:
                    async with two.bridge().lease("x", ttl=5, timeout=40):
                        got.set()
                except (iris.NoSuchCluster, iris.RemoteError):
                    await trio.sleep(0.2)  # in the moment in which there is no bridge at all

        nursery.start_soon(run_bridges)
        await one.wait_for("bridge")
        async with one.bridge().lease("x", ttl=5, timeout=10):
            nursery.start_soon(wait)
            await trio.sleep(1)
            closing.set()
            await opened.wait()
            await trio.sleep(8)
            assert not got.is_set()
        with trio.fail_after(10):
            await got.wait()
        over.set()


async def test_nothing_of_a_purged_queue_comes_back_after_a_restart(tmp_path: Path) -> None:
    """Delayed jobs, retries, and jobs of a key behind others, at two members; one worker goes on meanwhile."""
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().queue("jobs", backoff=2.0, attempts=5) as jobs,
    ):
        taker = jobs.receive(4)
        async with open_members(network, tmp_path, ["a", "b"], of=2):
            await node.wait_for("bridge")
            for number in range(24):
                await jobs.put(number, key=str(number % 4) if number % 2 else None, delay=3.0 * (number % 3 == 0))
            with trio.fail_after(20):
                for _ in range(4):
                    (await anext(taker)).fail("once")
            await trio.sleep(0.5)
            for name in "ab":
                await node.request(f"bridge.{name}", {"group": "queue/jobs"}, operation="purge")
        async with open_members(network, tmp_path, ["a", "b"], of=2):
            await node.wait_for("bridge")
            seen: list[Any] = []
            with trio.move_on_after(6):
                while True:
                    async with await anext(taker) as job:
                        seen.append(job.payload)
            assert seen == []
            await jobs.put("new")
            with trio.fail_after(20):
                async with await anext(taker) as job:
                    assert job.payload == "new"
