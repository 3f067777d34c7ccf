"""Workers that say what no worker of ours says: what a queue keeps of them is bounded, and the others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

import iris
from iris.kernel.config import KIB
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.log import QUEUES
from iris.spark_bridge.queues import queue, queues
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Rights, open_network
from tests.support.queue_workers import status

LEAST = Rights(publishes=(), subscribes=("jobs.>",))


@asynccontextmanager
async def open_desk(directory: Path) -> AsyncIterator[tuple[BridgeMember, iris.Node, iris.Node]]:
    """A bridge, a node that publishes jobs, and one that may subscribe to them and do nothing else."""
    async with open_network() as network:
        network.credential("evil", LEAST)
        async with (
            network.open_node("bridge") as node,
            open_bridge(node, topics=["jobs.>"], directory=directory) as bridge,
            network.open_node("desk") as desk,
            network.open_node("evil") as evil,
        ):
            await desk.wait_for("bridge", timeout=60)
            await evil.wait_for("bridge", timeout=60)
            yield bridge, desk, evil


@asynccontextmanager
async def open_worker(node: iris.Node, queue: str, **terms: Any) -> AsyncIterator[Tunnel]:
    async with node.open_tunnel("bridge", operation="take") as tunnel:
        given: dict[str, Any] = {"limit": 16, "lease": 30.0, "attempts": 5, "backoff": 1.0, "held": []}
        await tunnel.send({"group": f"queue/{queue}", "dead": f"{queue}.dead", **given, **terms})
        assert "now" in cast("dict[str, Any]", await tunnel.receive())
        yield tunnel


async def receive(tunnel: Tunnel) -> dict[str, Any]:
    with trio.fail_after(20):
        return cast("dict[str, Any]", await tunnel.receive())


async def take(tunnel: Tunnel, count: int) -> list[Any]:
    """Receive jobs; return their entries.  Large payloads follow behind the entry that says how large they are."""
    found: list[Any] = []
    while len(found) < count:
        for entry in (await receive(tunnel)).get("jobs", ()):
            found.append(entry)
            missing = entry[-1] if isinstance(entry[-1], int) else 0
            while missing > 0:
                missing -= len(cast("bytes", await receive(tunnel)))
    return found


async def test_who_reports_jobs_that_are_not_there_yet_does_none_of_them(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as (_, desk, evil), open_worker(evil, "jobs.a") as tunnel:
        await tunnel.send({"done": [[0, 0], [0, 1], [0, 2]]})
        assert await receive(tunnel) == {"settled": [[0, 0], [0, 1], [0, 2]]}
        for number in range(3):
            await desk.publish_confirmed("jobs.a", number)
        assert [entry[1] for entry in await take(tunnel, 3)] == [0, 1, 2]


async def test_places_far_beyond_the_log_take_no_room(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as (bridge, desk, evil):
        await desk.publish_confirmed("jobs.a", 1)
        async with open_worker(evil, "jobs.a") as tunnel:
            await take(tunnel, 1)
            await tunnel.send({"done": [(0, 2**40 + at * 4096) for at in range(2000)]})
            settled = 0
            while settled < 2000:
                settled += len((await receive(tunnel)).get("settled", ()))
            with bridge.store.read_transaction() as view:
                assert view.count(QUEUES) < 10


async def test_a_worker_holds_no_more_than_its_limit_of_jobs_that_are_still_to_come(tmp_path: Path) -> None:
    held = [(0, at) for at in range(100)]
    async with (
        open_desk(tmp_path) as (_, desk, evil),
        open_worker(evil, "jobs.a", limit=1, held=held),
        open_worker(evil, "jobs.a", limit=4) as other,
    ):
        for number in range(4):
            await desk.publish_confirmed("jobs.a", number)
        assert [entry[1] for entry in await take(other, 3)] == [1, 2, 3]


async def test_an_error_of_any_length_is_cut_where_it_comes_in(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as (_, desk, evil), open_worker(evil, "jobs.a", backoff=600.0) as tunnel:
        await desk.publish_confirmed("jobs.a", 1)
        ((shard, offset, *_),) = await take(tunnel, 1)
        await tunnel.send({"failed": [[shard, offset, 1, "\N{SNOWMAN}" * 100_000, False]]})
        while (await receive(tunnel)).get("settled") is None:
            pass
        (shown,) = await evil.request("bridge", {"group": "queue/jobs.a", "most": 9}, operation="peek")
        assert shown["state"] == "delayed"
        assert shown["error"] == "\N{SNOWMAN}" * 1024


async def test_errors_of_jobs_that_are_put_off_count_among_what_a_cluster_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "BYTES_OF_CLUSTER", 32 * KIB)
    monkeypatch.setattr(queue, "_READ_BYTES", 1)
    async with open_desk(tmp_path) as (_, desk, evil), open_worker(evil, "jobs.a", backoff=600.0, limit=4) as tunnel:
        for number in range(100):
            await (desk.publish_confirmed if number % 4 == 3 else desk.publish)("jobs.a", number)
        with trio.move_on_after(1.0):
            while True:
                for shard, offset, *_ in await take(tunnel, 1):
                    await tunnel.send({"failed": [[shard, offset, 1, "x" * 9999, False]]})
        found = await status(evil, "jobs.a")
        assert found["delayed"] < 50
        assert found["unread"] > 0


async def test_headers_of_jobs_count_among_what_a_cluster_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "BYTES_OF_CLUSTER", 256 * KIB)
    monkeypatch.setattr(queue, "_READ_BYTES", 32 * KIB)
    async with open_desk(tmp_path) as (_, desk, evil):
        for number in range(200):
            await (desk.publish_confirmed if number % 8 == 7 else desk.publish)(
                "jobs.a", b"", headers={str(at): "x" * 1000 for at in range(7)}
            )
        found = await status(evil, "jobs.a")
        assert found["waiting"] < 100
        assert found["unread"] + found["waiting"] == 200


async def test_jobs_that_are_due_at_once_are_read_again_in_parts_and_become_letters_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_AT_ONCE", 256 * KIB)
    monkeypatch.setattr(queue, "MOST_BYTES", 256 * KIB)
    read: list[int] = []
    rows_of = queue.OpenQueue._rows

    async def watched(self: queue.OpenQueue, jobs: Any) -> Any:
        found = await rows_of(self, jobs)
        read.append(sum(row.size for row in found.values()))
        return found

    monkeypatch.setattr(queue.OpenQueue, "_rows", watched)
    async with open_desk(tmp_path) as (bridge, desk, evil), open_worker(evil, "jobs.a", limit=64) as tunnel:
        for number in range(40):
            late = {"job-delay": str(1.5 - number * 0.01)}
            await (desk.publish_confirmed if number % 8 == 7 else desk.publish)("jobs.a", bytes(60_000), headers=late)
        places = [entry[:2] for entry in await take(tunnel, 40)]
        shown = await evil.request("bridge", {"group": "queue/jobs.a", "most": 40}, operation="peek")
        assert len(shown) == 40
        await tunnel.send({"failed": [[*place, 1, "never", True] for place in places]})
        settled = 0
        while settled < 40:
            settled += len((await receive(tunnel)).get("settled", ()))
        found = await status(evil, "jobs.a")
        assert (found["dead"], found["in_hand"]) == (40, 0)
        assert max(read) <= 256 * KIB
        (state,) = bridge.states.values()
        assert state.next == 80


@pytest.mark.parametrize("places", [8_000, 10_000])  # as many as a report may name, and more
async def test_who_reports_and_does_not_read_costs_its_tunnel(tmp_path: Path, places: int) -> None:
    async with open_desk(tmp_path) as (_, desk, evil):
        many = [(0, at) for at in range(places)]

        async def flood() -> None:
            async with open_worker(evil, "jobs.a") as tunnel:
                while True:
                    await tunnel.send({"released": many})

        with pytest.raises(iris.TunnelBroken), trio.fail_after(120):
            await flood()
        await desk.publish_confirmed("jobs.a", 1)
        async with open_worker(evil, "jobs.a") as tunnel:
            assert len(await take(tunnel, 1)) == 1
