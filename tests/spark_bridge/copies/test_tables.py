"""A copy that is promoted knows of jobs, idempotency keys and leases what its primary has answered to any node."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

import iris
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import open_copy
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.server.successor import reopen
from iris.testing import Network, open_network
from tests.support.copies import open_follower, open_primary, wait_copies

FailOver = Callable[..., Awaitable[None]]


@asynccontextmanager
async def open_pair(network: Network, directory: Path) -> AsyncIterator[FailOver]:
    """A primary and its copy; what is yielded kills the primary and promotes the copy.

    Given hosts that are cut off from the others together with the primary, it goes on there instead.
    """
    scope, reopened = trio.CancelScope(), trio.Event()

    async def be_primary(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            async with open_primary(network, directory / "primary", host="primary"):
                task_status.started()
                await trio.sleep_forever()

    async def be_copy(node: iris.Node) -> None:
        async with open_copy(node, bridge="bridge", shard=0, directory=directory / "copy") as copy:
            settings = await copy.wait_promoted()
        async with reopen(node, "bridge", directory / "copy", settings, waiting=print):
            reopened.set()
            await trio.sleep_forever()

    async def fail_over(cut: Sequence[str] = (), others: Sequence[str] = ()) -> None:
        if cut:
            network.memory.partition(["primary", *cut], ["copy", "operator", *others])
        else:
            network.memory.crash("primary")
            scope.cancel()
        await promote(operator, "bridge", 0, min_copies=0)
        await reopened.wait()

    async with (
        network.open_node("bridge", host="copy") as node,
        network.open_node("bridge", host="operator") as operator,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(be_primary)
        nursery.start_soon(be_copy, node)
        await wait_copies(BridgeClient(operator, "bridge", patience=20), copy="in step")
        yield fail_over
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(2))
async def test_no_job_whose_end_was_told_is_given_out_again_and_letters_are_there_once(
    tmp_path: Path, seed: int
) -> None:
    jobs, limit, r = 60, 4, Random(seed)
    begun, told = Counter[int](), set[int]()
    enough, die_after = trio.Event(), r.randrange(5, 40)

    async def work(queue: iris.WorkQueue) -> None:
        async for job in queue.receive(limit):
            begun[job.payload] += 1
            if job.payload % 10 == 0:
                job.fail("poison", permanent=True)
                continue
            await job.commit()
            told.add(job.payload)
            if len(told) == die_after:
                enough.set()

    async with (
        open_network(seed=seed) as network,
        open_pair(network, tmp_path) as fail_over,
        network.open_node("desk") as desk,
        desk.bridge().queue("jobs") as queue,
        trio.open_nursery() as nursery,
    ):
        for number in range(jobs):
            await queue.put(number, key=f"k{number % 7}")
        for _ in range(2):
            nursery.start_soon(work, queue)
        await enough.wait()
        await fail_over()
        before, counts = set(told), Counter(begun)
        found: dict[str, Any] = {}
        with trio.fail_after(60):
            while found.get("done", 0) + found.get("dead", 0) < jobs:
                await trio.sleep(0.05)
                with suppress(iris.DeliveryError):
                    found = await desk.request("bridge", {"group": "queue/jobs"}, operation="queue")
        nursery.cancel_scope.cancel()
        assert (found["done"], found["dead"]) == (jobs - jobs // 10, jobs // 10)
        assert {number for number in before if begun[number] > counts[number]} == set()
        assert sum(count - 1 for count in begun.values()) <= 2 * limit
        letters: list[int] = []
        async with desk.bridge().consume("jobs.dead", group="audit") as events:
            with trio.move_on_after(2):
                while True:
                    letters += [event.payload for event in await anext(events)]
        assert sorted(letters) == list(range(0, jobs, 10))


async def test_a_repeated_key_gets_the_same_outcome_and_its_effect_is_there_once(tmp_path: Path) -> None:
    ran: list[int] = []
    service = iris.Service("bank", outcomes=iris.Outcomes())

    @service.request
    async def pay(request: iris.Request) -> str:
        assert request.outbox is not None
        ran.append(request.payload)
        request.outbox.publish("ledger", request.payload)
        return f"{len(ran)}: {request.payload}"

    async with (
        open_network() as network,
        open_pair(network, tmp_path) as fail_over,
        network.open_node("desk") as desk,
        network.open_node("bank") as bank,
        bank.join("bank", service),
    ):
        await desk.wait_for("bank")
        replies = [
            await desk.request("bank", number, options=iris.RequestOptions(idempotency_key=str(number)))
            for number in range(10)
        ]
        await fail_over()
        again = [
            await desk.request("bank", number, timeout=60, options=iris.RequestOptions(idempotency_key=str(number)))
            for number in range(10)
        ]
        assert again == replies
        assert ran == list(range(10))
        with pytest.raises(iris.RemoteError, match="stands for another payload"):
            await desk.request("bank", 11, options=iris.RequestOptions(idempotency_key="1"))
        events: list[int] = []
        async with desk.bridge().consume("ledger", group="audit") as found:
            with trio.move_on_after(1):
                while True:
                    events += [event.payload for event in await anext(found)]
        assert events == list(range(10))


async def test_who_has_a_lease_keeps_it_and_nobody_else_gets_it(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as fail_over,
        network.open_node("workers") as one,
        network.open_node("workers") as two,
    ):
        async with one.bridge().lease("scheduler", ttl=30) as held:
            await fail_over()
            with pytest.raises(iris.RequestTimeout, match="was not free"):
                async with two.bridge().lease("scheduler", timeout=2):
                    pass
            assert held.left > 0
        async with two.bridge().lease("scheduler", timeout=60) as later:
            assert later.token > held.token


async def test_nothing_is_told_of_a_key_a_lease_or_a_purge_that_no_copy_has(tmp_path: Path) -> None:
    claim = {
        "cluster": "bank", "caller": "desk", "operation": None, "key": "k", "holder": bytes(16),
        "fingerprint": bytes(16), "budget": 60.0, "keep": 60.0, "rerun": False, "wait": 0.0,
    }  # fmt: skip
    lease = {"name": "x", "cluster": "bank", "holder": bytes(16), "ttl": 60, "wait": 0}
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary"),
        network.open_node("bank") as bank,
    ):
        await bank.wait_for("bridge")
        for operation, fields in (("key.claim", claim), ("lease", lease), ("purge", {"group": "queue/jobs"})):
            for _ in range(2):  # what is on the primary's disk alone is answered to no node, the second time either
                with pytest.raises(iris.RequestTimeout):
                    await bank.request("bridge", fields, operation=operation, timeout=0.5)
        async with open_follower(network, tmp_path / "copy"):
            assert await bank.request("bridge", claim, operation="key.claim", timeout=60) == {"attempt": 1}
            assert (await bank.request("bridge", lease, operation="lease", timeout=60))["at"] == "bridge"


async def test_a_primary_that_is_cut_off_renews_no_lease(tmp_path: Path) -> None:
    """It and the holder reach each other, and the promoted copy grants the lease to another node."""
    ended = trio.Event()

    async def hold(node: iris.Node, task_status: trio.TaskStatus[iris.Lease]) -> None:
        with pytest.raises(iris.LeaseLost):  # noqa: PT012 -- a block is what is tested
            async with node.bridge().lease("scheduler", ttl=1) as lease:
                task_status.started(lease)
                await trio.sleep_forever()
        ended.set()

    async with (
        open_network() as network,
        open_pair(network, tmp_path) as fail_over,
        network.open_node("workers", host="one") as one,
        network.open_node("workers", host="two") as two,
        trio.open_nursery() as nursery,
    ):
        lease = await nursery.start(hold, one)
        await two.wait_for("bridge")
        await trio.sleep(1.5)
        assert lease.left > 0, "renewed as long as the copy follows"
        await fail_over(["one"], ["two"])
        async with two.bridge().lease("scheduler", ttl=1, timeout=20) as later:
            assert later.token > lease.token
            assert lease.left == 0
            with trio.fail_after(1):
                await ended.wait()
