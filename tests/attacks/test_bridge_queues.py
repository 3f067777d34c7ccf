"""Queues of a bridge: reports in any order, from anybody, doubled; a full disk; workers that wait beside a slow job."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import IrisError, LeaseLost
from iris.node.node import Node
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.queues import queue as queue_module
from iris.spark_bridge.queues.queue import OpenQueue
from iris.testing import open_network
from tests.support.bridge_members import open_member
from tests.support.queue_workers import status
from tests.support.waiting import wait_until

TERMS = {"group": "queue/jobs", "limit": 4, "lease": 0.3, "attempts": 50, "dead": "jobs.dead", "backoff": 0.0}


async def wait_until_told(condition: Callable[[], Any]) -> None:
    with trio.fail_after(60):
        while not await condition():  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.02)


async def put(node: Node, count: int, keys: int = 0) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(count):
            key = f"k{number % keys}" if keys else None
            nursery.start_soon(partial(node.publish_confirmed, "jobs", number, key=key))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_workers_report_in_whatever_order_the_bridge_goes_on_and_each_job_ends_once(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Doubled, of others' jobs, of jobs that wait for their turn, begun after they were done, and out of order."""
    r = random.Random(seed)
    count = 60
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        await put(node, count, keys=3)

        async def report(worker: int) -> None:
            rights = random.Random(seed * 10 + worker)
            with suppress(IrisError):
                async with node.open_tunnel("bridge", operation="take") as tunnel:
                    await tunnel.send({**TERMS, "held": [(0, rights.randrange(count)), (0, rights.randrange(count))]})
                    for _ in range(40):

                        def places() -> list[tuple[int, int]]:
                            return [(0, rights.randrange(count)) for _ in range(rights.randrange(4))]

                        await tunnel.send(
                            {
                                name: places()
                                for name in rights.sample(["begun", "done", "released", "expired", "extended"], 2)
                            }
                            | {"failed": [[0, rights.randrange(count), rights.randint(1, 3), "x", False]]}
                        )
                        with trio.move_on_after(rights.random() * 0.05):
                            await tunnel.receive()

        async with trio.open_nursery() as nursery:
            for worker in range(3):
                nursery.start_soon(report, worker)
        done: list[int] = []
        order: dict[str | None, list[int]] = {}
        client = BridgeClient(node, "bridge", patience=20)
        offsets = {event["value"]: event["offset"] async for event in read_events(client)}
        async with node.bridge().queue("jobs", lease=5, backoff=0.0) as jobs:
            taker = jobs.receive(4)

            async def is_done() -> bool:
                found = await status(node)
                return bool(found["done"] + found["dead"] + found["expired"] == count)

            async def take() -> None:
                async for job in taker:
                    async with job:
                        done.append(job.payload)
                        order.setdefault(job.key, []).append(offsets[job.payload])
                    await trio.sleep(r.random() * 0.01)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                await wait_until_told(is_done)
                nursery.cancel_scope.cancel()
        found = await status(node)
        assert (found["waiting"], found["delayed"], found["in_hand"], found["unread"]) == (0, 0, 0, 0)
        assert len(done) == len({*done})
        for numbers in order.values():
            assert numbers == sorted(numbers)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.long
async def test_reports_of_what_is_not_looked_at_wait_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took some hundred bytes until there was room, and a log has millions of places."""
    monkeypatch.setattr(queue_module, "MOST_WAITING", 8)
    monkeypatch.setattr(queue_module, "_UNREPORTED", 32)
    opened: list[OpenQueue] = []
    begin = OpenQueue.__init__

    def note(self: OpenQueue, *args: Any, **options: Any) -> None:
        opened.append(self)
        begin(self, *args, **options)

    monkeypatch.setattr(OpenQueue, "__init__", note)
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        monkeypatch.setattr(queue_module, "_READ_BYTES", 256)
        for number in range(120):
            await (node.publish_confirmed if number % 40 == 39 else node.publish)("jobs", bytes(256), key=str(number))
        async with node.open_tunnel("bridge", operation="take") as tunnel:
            await tunnel.send({**TERMS, "limit": 1, "held": []})
            await tunnel.receive()
            (queue,) = opened
            most = 0
            with monkeypatch.context() as patch:

                async def no_room(*_: object, **__: object) -> None:
                    raise StoreFull("no room")

                patch.setattr("iris.spark_bridge.server.member.BridgeMember.write", no_room)
                for number in range(119, 20, -1):
                    await tunnel.send({"done": [[0, number]]})
                    await trio.testing.wait_all_tasks_blocked(0.001)
                    most = max(most, len(queue._late))
            assert most <= 33
        await wait_until_told(lambda: _done_at_least(node, 33))


async def _done_at_least(node: Node, count: int) -> bool:
    return bool((await status(node))["done"] >= count)


@pytest.mark.long
async def test_tasks_that_wait_beside_a_job_that_overruns_its_lease_get_other_jobs(tmp_path: Path) -> None:
    """A worker whose lease had run out got nothing more, although it asked, until that job ended."""
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        async with node.bridge().queue("jobs", lease=0.2, attempts=1) as jobs, trio.open_nursery() as nursery:
            taker = jobs.receive(4)
            done: list[Any] = []
            ended = trio.Event()

            async def work() -> None:
                async for job in taker:
                    if job.payload == "slow":
                        await ended.wait()
                        with suppress(LeaseLost):
                            await job.commit()
                        continue
                    async with job:
                        done.append(job.payload)

            for _ in range(3):
                nursery.start_soon(work)
            await jobs.put("slow")
            await wait_until_told(lambda: _is_dead(node))
            await trio.sleep(0.5)
            for number in range(3):
                await jobs.put(number)
            await wait_until(lambda: len(done) >= 3)
            ended.set()
            nursery.cancel_scope.cancel()


async def _is_dead(node: Node) -> bool:
    return bool((await status(node))["dead"])


@pytest.mark.long
async def test_a_worker_that_begins_again_and_again_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_network() as network, open_member(network, tmp_path), network.open_node("jobs") as node:
        await node.wait_for("bridge")
        await put(node, 40)
        for _ in range(60):
            async with node.open_tunnel("bridge", operation="take") as tunnel:
                await tunnel.send({**TERMS, "limit": 40, "held": [(0, place) for place in range(40)]})
                await tunnel.receive()
        found = await status(node)
        assert (found["waiting"], found["workers"], found["done"]) == (40, 0, 0)
        async with node.bridge().queue("jobs") as jobs:
            taker = jobs.receive(40)
            with trio.fail_after(30):
                assert sorted([(await anext(taker)).payload for _ in range(40)]) == [*range(40)]
