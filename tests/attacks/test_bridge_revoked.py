"""A bridge's readers, workers and holders that are revoked, that lag behind retention, or whose log is another one."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.config import Config
from iris.kernel.errors import IrisError, LeaseLost, RemoteError
from iris.security.identity.revocation import issue_revocations
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.support.bridge_members import open_members
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.mark.parametrize("what", ["consume", "take", "lease", "publish"])
async def test_who_is_revoked_gets_nothing_more_of_what_was_open(tmp_path: Path, what: str) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as bridge,
        open_bridge(bridge, topics=[">"], directory=tmp_path) as member,
        network.open_node("thief") as thief,
        network.open_node("honest") as honest,
    ):
        await thief.wait_for("bridge")
        await honest.wait_for("bridge")
        await honest.publish_confirmed("jobs", "before")
        found: list[Any] = []
        lost = trio.Event()

        async def use() -> None:
            with suppress(IrisError, trio.ClosedResourceError):
                match what:
                    case "consume":
                        async with thief.bridge().consume("jobs", group="g", start="earliest") as events:
                            while True:
                                batch = await anext(events)
                                found.extend(event.payload for event in batch)
                    case "take":
                        async with thief.bridge().queue("jobs", lease=30) as jobs:
                            async for job in jobs.receive(1):
                                found.append(job.payload)
                                await job.commit()
                    case "lease":
                        async with thief.bridge().lease("x", ttl=3, cluster="thief"):
                            found.append("before")
                            await trio.sleep_forever()
                    case _:
                        while True:
                            await thief.publish_confirmed("stolen", "x", timeout=60)
                            found.append("before") if not found else found.append("more")
            lost.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await wait_until(lambda: found)
            revoked = issue_revocations(
                network.root, number=1, issued=network.wall_clock(), clusters={"thief": 2}, nodes={}
            )
            assert await honest.revoke(revoked.signed)
            await trio.sleep(2)
            stored = sum(state.next for state in member.states.values())
            await honest.publish_confirmed("jobs", "after")
            await trio.sleep(4)
            assert "after" not in found
            assert sum(state.next for state in member.states.values()) == stored + 1
            if what == "lease":
                assert lost.is_set()
            with trio.fail_after(30):
                if what == "take":
                    await bridge.request("bridge", {"group": "queue/jobs", "to": "honest"}, operation="transfer")
                async with honest.bridge().queue("jobs") as jobs:
                    async for job in jobs.receive(1):
                        await job.commit()
                        if job.payload == "after":
                            break
            nursery.cancel_scope.cancel()


async def test_important_requests_of_one_caller_leave_the_normal_ones_of_others_their_share() -> None:
    served: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    go = trio.Event()
    service = iris.Service("desk")

    @service.request
    async def work(request: iris.Request) -> None:
        await go.wait()
        served[request.payload] += 1
        await trio.sleep(0.01)

    async with (
        open_network() as network,
        network.open_node("member", config=Config(queue_delay_target=60.0)) as member,
        member.join("desk", service, limits=iris.Limits(concurrency=1, queue=12)),
        network.open_node("flood") as flood,
        network.open_node("one") as one,
        network.open_node("two") as two,
        trio.open_nursery() as nursery,
    ):
        for node in (flood, one, two):
            await node.wait_for("desk")

        async def ask(node: iris.Node, name: str, priority: Any) -> None:
            try:
                await node.request("desk", name, timeout=60, options=iris.RequestOptions(priority=priority))
            except IrisError:
                refused[name] += 1

        for turn in range(6):
            for _ in range(10):
                nursery.start_soon(ask, flood, "flood", "high")
            if turn < 3:
                nursery.start_soon(ask, one, "one", "normal")
                nursery.start_soon(ask, two, "two", "normal")
            await trio.sleep(0.1)
        go.set()
    assert refused.keys() <= {"flood"}, refused
    assert served["one"] == served["two"] == 3


async def test_whatever_a_worker_reports_while_its_bridge_is_away_counts_once(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        async with node.bridge().queue("jobs", lease=30, backoff=0.2, attempts=3) as jobs:
            taker = jobs.receive(6)
            async with open_members(network, tmp_path, ["a"], of=1):
                await node.wait_for("bridge")
                for number in range(6):
                    await jobs.put(number, key=str(number % 2))
                out: dict[int, iris.Job] = {}
                with trio.fail_after(30):
                    for _ in range(2):
                        job = await anext(taker)
                        out[job.payload] = job
            out[0].fail("while it is away")
            out[1].release()
            out[0].extend()
            seen: list[tuple[int, int]] = []
            async with open_members(network, tmp_path, ["a"], of=1):
                with trio.fail_after(40):
                    while len(seen) < 6:
                        async with await anext(taker) as job:
                            seen.append((job.payload, job.attempt))
                await trio.sleep(1)
                found = await node.request("bridge", {"group": "queue/jobs"}, operation="queue")
        assert sorted(seen) == [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
        for parity in (0, 1):
            assert [payload for payload, _ in seen if payload % 2 == parity] == [parity, parity + 2, parity + 4]
        assert (found["done"], found["dead"], found["waiting"], found["in_hand"]) == (6, 0, 0, 0)


async def test_a_consumer_whose_log_was_lost_and_made_anew_goes_on_with_the_new_one(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().consume("a", group="g", start="earliest") as events,
    ):
        async with open_members(network, tmp_path / "first", ["a"], of=1):
            await node.wait_for("bridge")
            for number in range(5):
                await node.publish_confirmed("a", number)
            with trio.fail_after(30):
                old = await anext(events)
        async with open_members(network, tmp_path / "second", ["a"], of=1):
            with trio.fail_after(30):
                with pytest.raises(RemoteError, match="DataLost"):
                    await old.commit()
                for number in range(10, 13):
                    await node.publish_confirmed("a", number)
                found: list[int] = []
                while len(found) < 3:
                    async with await anext(events) as batch:
                        found += [event.payload for event in batch]
            assert found == [10, 11, 12]
            with pytest.raises(RemoteError, match="DataLost"):
                await old.commit()


async def test_a_consumer_at_an_offset_that_was_trimmed_counts_what_it_missed_and_goes_on(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as bridge,
        open_bridge(bridge, topics=[">"], directory=tmp_path) as member,
        network.open_node("desk") as node,
    ):
        await node.wait_for("bridge")
        await node.publish_confirmed("a", 0)
        read, missed = 0, 0
        async with node.bridge().consume("a", group="g", start="earliest") as events, await anext(events) as batch:
            read += len(batch)
        for number in range(1, 60):
            await (node.publish_confirmed if number % 20 == 19 else node.publish)("a" if number % 2 else "b", number)
        await node.publish_confirmed("a", "last")
        (state,) = member.states.values()
        trim = {"shard": state.id, "before": state.next - 10}
        await bridge.request("bridge", trim, operation="trim")
        last: Any = None
        async with node.bridge().consume("a", group="g", start="earliest") as events:
            with trio.fail_after(20):
                while last != "last":
                    async with await anext(events) as batch:
                        read += len(batch)
                        missed += batch.missed
                        last = batch[-1].payload
        assert read == 7
        assert 49 <= missed <= 50, "up to the last one on its topics"
        async with node.bridge().queue("a") as jobs, trio.open_nursery() as nursery:
            got: list[Any] = []

            async def work() -> None:
                async for job in jobs.receive(4):
                    got.append(job.payload)
                    await job.commit()

            nursery.start_soon(work)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert got[-1] == "last"
        assert len(got) <= 10


@pytest.mark.parametrize("beats", [True, False])
async def test_a_slow_worker_that_extends_its_lease_keeps_its_job_and_one_that_does_not_is_told(
    tmp_path: Path, beats: bool
) -> None:
    async with (
        open_network() as network,
        open_members(network, tmp_path, ["a"], of=1),
        network.open_node("desk") as slow,
        network.open_node("desk") as quick,
        slow.bridge().queue("jobs", lease=1.0, backoff=0.0, attempts=9) as some,
        quick.bridge().queue("jobs", lease=30, backoff=0.0, attempts=9) as others,
        trio.open_nursery() as nursery,
    ):
        await slow.wait_for("bridge")
        await some.put("x", key="k")
        await some.put("y", key="k")
        job = await anext(some.receive(1))
        ran: list[Any] = []

        async def work() -> None:
            async for other in others.receive(1):
                ran.append(other.payload)
                await other.commit()

        nursery.start_soon(work)
        async with slow.bridge().lease("beside", ttl=2) as lease:
            for _ in range(8):
                await trio.sleep(0.5)
                if beats:
                    job.extend()
            if beats:
                await job.commit()
            else:
                with pytest.raises(LeaseLost):
                    await job.commit()
            assert lease.left > 0
        await wait_until(lambda: "y" in ran)
        assert ran == (["y"] if beats else ["x", "y"])
        nursery.cancel_scope.cancel()
