"""A bridge with all that it can have: a copy, an election, a tier, retention, a queue and a group of readers."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import trio

from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import open_copy
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.election import Election
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.server.successor import reopen
from iris.spark_bridge.tier import Tier
from iris.testing import open_network
from tests.support.copies import open_follower, open_primary, wait_copies
from tests.support.elections import Memory
from tests.support.tiers import local_segments, read_parquet
from tests.support.waiting import wait_until

SOON = 0.01
FIRST, ALL = 30, 50
"""Jobs and events of before the takeover, and all of them."""


async def wait_left(*logs: Path) -> None:
    """Wait until the tier has all of the logs, and nothing of them is on the disks."""
    await wait_until(lambda: not any(map(local_segments, logs)))


async def test_each_job_is_done_once_and_each_event_read_once_across_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.spark_bridge.server.member._RETENTION_INTERVAL", 0.05)
    leases: dict[str, str] = {}
    at_primary = Election(Memory(leases, "primary"), "bridge/0")
    at_copy = Election(Memory(leases, "copy"), "bridge/0")
    log, follower = tmp_path / "log", tmp_path / "copy"
    done: Counter[int] = Counter()
    read: list[int] = []
    async with (
        open_network() as network,
        network.open_node("desk") as desk,
        network.open_node("bridge") as standby,
        desk.bridge().queue("jobs", backoff=0.05, attempts=3) as jobs,
        desk.bridge().consume("events", group="readers") as events,
        trio.open_nursery() as nursery,
    ):
        client = BridgeClient(desk, "bridge", patience=60)

        async def put(numbers: range) -> None:
            for number in numbers:
                await jobs.put(number, key=f"k{number % 7}", delay=2.0 if number % 10 == 0 else 0.0)
                await desk.publish_confirmed("events", number, timeout=60)

        async def work(until: int) -> None:
            async for job in taker:
                if job.payload == 5:
                    job.fail("poison")
                else:
                    await job.commit()
                    done[job.payload] += 1
                if len(done) >= until:
                    return

        async def consume(until: int) -> None:
            while len(read) < until:
                async with await anext(events) as batch:
                    assert batch.missed == 0
                    read.extend(event.payload for event in batch)

        taker = jobs.receive(4)
        with trio.fail_after(240):
            async with open_copy(standby, bridge="bridge", shard=0, directory=follower, name="copy") as copy:
                nursery.start_soon(at_copy.stand, copy, partial(promote, standby, "bridge", 0))
                async with open_primary(
                    network,
                    log,
                    election=at_primary,
                    tier=Tier(url=str(tmp_path / "tier"), seal_after=SOON),
                    retention=Retention(max_age=SOON),
                ):
                    await wait_copies(client, copy="in step")
                    await put(range(FIRST))
                    await work(FIRST // 2)
                    await consume(FIRST // 2)
                    await wait_left(log, follower)
                await at_primary.release()  # its process has ended
                settings = await copy.wait_promoted()
            async with (
                reopen(standby, "bridge", follower, settings, waiting=print, election=at_copy),
                open_follower(network, log),
            ):
                await put(range(FIRST, ALL))
                await work(ALL - 1)
                await consume(ALL)
                await wait_left(log, follower)
                async with desk.bridge().queue("jobs.dead") as letters, await anext(letters.receive(1)) as letter:
                    assert letter.payload == 5
            nursery.cancel_scope.cancel()
    assert done == {number: 1 for number in range(ALL) if number != 5}
    assert read == [*range(ALL)]
    offsets = [row["offset"] for row in read_parquet(tmp_path / "tier")]
    assert offsets == [*range(len(offsets))]
    assert len(offsets) == 2 * ALL + 1
