"""A bridge whose disk is full or damaged at a bad moment: who waits goes on when that is over."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import IrisError
from iris.node.node import Node
from iris.patterns.bridge_protocol import Place
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log.appender import Appender
from iris.spark_bridge.log.cursors import Cursors
from iris.spark_bridge.queues.queue import OpenQueue
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member
from tests.support.queue_workers import status

pytestmark = pytest.mark.long


@asynccontextmanager
async def open_desk(directory: Path) -> AsyncIterator[tuple[Network, Node, BridgeMember]]:
    async with (
        open_network() as network,
        open_member(network, directory) as member,
        network.open_node("desk") as node,
    ):
        await node.wait_for("bridge")
        yield network, node, member


def full_for(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[int]:
    """Let a change of the index find no room for so many times."""
    part: type = Cursors if name in {"pin", "move", "claim"} else Appender
    before, left = getattr(part, name), [times]

    def change(self: object, *args: Any, **options: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise StoreFull("no room for that")
        return before(self, *args, **options)

    monkeypatch.setattr(part, name, change)
    return left


@pytest.mark.parametrize("name", ["pin", "claim", "move"])
async def test_who_comes_while_the_disk_is_full_gets_jobs_and_events_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A worker or consumer that came in this moment ended for good."""
    async with open_desk(tmp_path) as (_, node, _):
        await node.publish_confirmed("jobs", 1)
        left = full_for(monkeypatch, name, 2)
        with trio.fail_after(40):
            async with node.bridge().queue("jobs") as jobs:
                await (await anext(jobs.receive())).commit()
            async with (
                node.bridge().consume("jobs", group="g", start="earliest") as events,
                await anext(events) as batch,
            ):
                assert batch[0].payload == 1
        assert left == [0]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_that_is_damaged_on_the_disk_costs_nobody_else_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """Its dead letter ended the bridge, and each worker that was to get it ended for good."""
    read = OpenQueue._read_one

    def read_one(self: OpenQueue, epoch: str, place: Place) -> Any:
        if place.offset == 0:
            raise LogDamaged("a checksum does not fit")
        return read(self, epoch, place)

    async with open_desk(tmp_path) as (_, node, _):
        async with node.bridge().queue("jobs", attempts=1, backoff=0.0) as jobs:
            await jobs.put("damaged", delay=0.0 if fails else 0.3)
            if not fails:
                assert (await status(node))["delayed"] == 1
            taker = jobs.receive(1)
            with trio.fail_after(40):
                if fails:
                    job = await anext(taker)
                    monkeypatch.setattr(OpenQueue, "_letters", dropping_rows())
                    monkeypatch.setattr(OpenQueue, "_read_one", read_one)
                    job.fail("x")
                else:
                    monkeypatch.setattr(OpenQueue, "_read_one", read_one)
                await jobs.put("sound", delay=0.0 if fails else 0.8)
                found = await anext(taker)
                assert found.payload == "sound"
                await found.commit()
        found_status = await status(node)
        assert found_status["done"] == 1
        assert found_status["in_hand"] == 0
    assert any("is lost: the log is damaged" in record.message for record in caplog.records)


def dropping_rows() -> Any:
    before = OpenQueue._letters

    async def letters(self: OpenQueue, jobs: Any) -> Any:
        for job in jobs:
            self._machine._drop_row(job)  # as of one that was put off before
        return await before(self, jobs)

    return letters


@pytest.mark.parametrize("change", ["append", "append_batch"])
async def test_nothing_ends_a_bridge_whose_disk_is_full_in_the_middle_of_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk(tmp_path) as (_, node, member):
        full_for(monkeypatch, change, 3)
        with trio.fail_after(60):
            for number in range(3):
                try:
                    await node.publish_confirmed("a", number, timeout=5)
                except IrisError:
                    await node.publish_confirmed("a", number, timeout=30)
        assert member.statistics().stored >= 3
    assert not [record for record in caplog.records if record.levelno > logging.ERROR]
