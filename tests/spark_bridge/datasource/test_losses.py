"""A query that meets a gap fails, or goes on and counts the missing events."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import pytest
import trio

from iris.kernel.errors import NotAllowed
from iris.security.identity.permissions import Rights
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client import client as clients
from iris.spark_bridge.client.blocking_portal import BlockingPortal
from iris.spark_bridge.client.bridge_watch import BridgeWatch
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.client.offsets import Offsets, Range, advance, parse_offsets
from iris.spark_bridge.datasource.losses import count_missing
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.errors import DataLost
from iris.testing import open_network
from tests.support.arrivals import fake_event, make_store
from tests.support.bridge_members import open_member

T = TypeVar("T")


def missing(directory: Path, *topics: str) -> None:
    """Make a log of four events on each topic, with two missing before the last of them."""
    store = make_store(directory)
    for topic in topics:
        numbers = [fake_event(b"", topic=topic, first=number, milestones=(0,)) for number in (1, 2, 3, 6)]
        store.appender.append({0: numbers}, now=1_000_000)
    store.close()


class InThread:
    """A portal to a bridge of this very run: its caller is in a thread."""

    def __init__(self, client: BridgeClient) -> None:
        self._client = client
        self.calls = 0

    def call(self, ask: Callable[[BridgeClient], Awaitable[T]]) -> T:
        self.calls += 1
        return trio.from_thread.run(ask, self._client)


async def count(client: BridgeClient, start: int, end: int, **options: object) -> tuple[int, int]:
    """Return how many events a query misses between two offsets, and how often it has asked the bridge for that."""
    watch = BridgeWatch(None)
    await watch.look(client)
    (shard,) = watch.extents
    portal = InThread(client)
    ranges = [Range(shard=shard, start=start, end=end)]
    chosen = SourceOptions(**options)  # type: ignore[arg-type]
    found = await trio.to_thread.run_sync(count_missing, chosen, cast("BlockingPortal", portal), watch, ranges)
    return found, portal.calls


@asynccontextmanager
async def open_reader(directory: Path) -> AsyncIterator[BridgeClient]:
    """Open a bridge, and a client of it on another node."""
    async with (
        open_network() as network,
        open_member(network, directory, topics=["a.>"]),
        network.open_node("reader") as reader,
    ):
        yield BridgeClient(reader, "bridge", patience=5)


async def test_a_batch_that_spans_a_gap_ends_with_what_was_lost_and_what_to_do(tmp_path: Path) -> None:
    missing(tmp_path, "a.x")
    async with open_reader(tmp_path) as client:
        with pytest.raises(DataLost) as caught:
            await count(client, 0, 4)
        text = str(caught.value)
        for part in (
            "bridge 'bridge' has not got all events",
            "2 of 'a.x' from node abababababababababababababababab of cluster 'publishers' are missing before offset 3",
            "set failOnDataLoss to false",
            "iris bridge status --name bridge",
        ):
            assert part in text


async def test_a_batch_before_or_behind_it_does_not(tmp_path: Path) -> None:
    missing(tmp_path, "a.x")
    async with open_reader(tmp_path) as client:
        assert await count(client, 0, 3) == (0, 1)
        assert await count(client, 4, 9) == (0, 0), "nothing is asked behind the last gap"


async def test_gaps_of_other_topics_do_not_concern_a_query(tmp_path: Path) -> None:
    missing(tmp_path, "a.x", "a.y")
    async with open_reader(tmp_path) as client:
        options = {"fail_on_data_loss": False}
        assert await count(client, 0, 8, **options) == (4, 1)
        assert await count(client, 0, 8, topics=("a.y",), **options) == (2, 1)
        assert await count(client, 0, 8, topics=("b.>",), **options) == (0, 1)
        assert await count(client, 0, 8, topic_regex=r"a\.[yz]", **options) == (2, 1)


async def test_going_on_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing(tmp_path, *(f"a.{number}" for number in range(5)))
    async with open_reader(tmp_path) as client:
        with caplog.at_level(logging.WARNING):
            assert await count(client, 0, 20, fail_on_data_loss=False) == (10, 1)
        assert "the query goes on without 10 events that bridge bridge has not got: 2 of 'a.0'" in caplog.text
        assert "and 2 more gaps" in caplog.text


async def test_many_gaps_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "GAPS_AT_ONCE", 4)
    monkeypatch.setattr("iris.spark_bridge.server.operations.GAPS_AT_ONCE", 4)
    missing(tmp_path, *(f"a.{number}" for number in range(10)))
    async with open_reader(tmp_path) as client:
        status = await read_status(client)
        assert [gap.topic for _, gap in status.gaps] == [f"a.{number}" for number in range(10)]
        assert {shard for shard, _ in status.gaps} == {shard.id for shard in status.shards}


async def test_topics_that_a_reader_may_not_have_are_not_named(tmp_path: Path) -> None:
    missing(tmp_path, "a.x", "a.y")
    async with open_network() as network, open_member(network, tmp_path, topics=["a.>"]):
        network.credential("some", Rights(subscribes=("a.y",)))
        network.credential("none", Rights(subscribes=()))
        async with network.open_node("some") as some, network.open_node("none") as none:
            client = BridgeClient(some, "bridge", patience=5)
            assert [gap.topic for _, gap in (await read_status(client)).gaps] == ["a.y"]
            with pytest.raises(NotAllowed):
                await count(client, 0, 8, topics=("a.x",))
            assert (await read_status(BridgeClient(none, "bridge", patience=5))).gaps == []


def test_what_a_query_went_on_without_stands_in_its_offsets() -> None:
    offsets = Offsets(next={"0@a": 5}, lost=7)
    assert offsets.to_json() == {"0@a": 5, "lost": 7}
    assert parse_offsets(offsets.to_json()) == offsets
    assert advance(offsets, {}, fail_on_data_loss=True) is offsets
