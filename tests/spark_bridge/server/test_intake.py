"""Rows that Spark writes, seen from the bridge: staged, committed once, published to the mesh."""

from __future__ import annotations

import io
import os
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from iris.kernel.config import MIB
from iris.kernel.errors import NotAllowed, RemoteError
from iris.patterns.pubsub.subscribe.subscription import SubscriptionLimits
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import LogDamaged, StaleBatch
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.staging.staging import StagedPart
from iris.testing import Rights, open_network
from tests.support.arrivals import stored
from tests.support.bridge_members import open_member
from tests.support.staged import open_pair, part, rows, staged_files, written
from tests.support.waiting import wait_until


async def test_a_batch_is_in_the_log_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(1), written(["c"]))
        await client.stage("bridge", part(0), written(["a", "b"]))
        assert stored(bridge.store) == []
        assert await client.commit("bridge", "q", 0, [part(1), part(0)]) == 3
        assert stored(bridge.store) == [b"a", b"b", b"c"]
        assert staged_files(tmp_path) == []


async def test_a_batch_is_committed_once_whoever_asks_again(tmp_path: Path) -> None:
    async with open_network() as network:
        for _ in range(2):
            async with open_pair(network, tmp_path) as (bridge, client):
                for _ in range(2):
                    await client.stage("bridge", part(0), written(["a"]))
                    await client.commit("bridge", "q", 0, [part(0)])
                assert stored(bridge.store) == [b"a"]
                assert bridge.statistics().received == 0, "what it publishes does not come back to it"
        async with open_pair(network, tmp_path) as (bridge, client):
            await client.stage("bridge", part(0, batch=1), written(["b"]))
            assert await client.commit("bridge", "q", 1, [part(0, batch=1)]) == 1
            assert await client.commit("bridge", "q", 1, [part(0, batch=1)]) is None
            assert stored(bridge.store) == [b"a", b"b"]


async def test_a_query_whose_checkpoint_was_put_back_is_told_instead_of_losing_rows(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        for batch in (0, 1, 2):
            await client.stage("bridge", part(0, batch=batch), written([str(batch)]))
            await client.commit("bridge", "q", batch, [part(0, batch=batch)])
        await client.stage("bridge", part(0, batch=1), written(["1", "3", "4"]))
        with pytest.raises(StaleBatch, match=r"batch 1 of query q comes after batch 2, .* Begin with a new checkpoint"):
            await client.commit("bridge", "q", 1, [part(0, batch=1)])
        assert stored(bridge.store) == [b"0", b"1", b"2"]


async def test_only_the_attempts_that_the_driver_names_are_committed(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0, attempt=0), written(["slow"]))
        await client.stage("bridge", part(0, attempt=1), written(["fast"]))
        await client.commit("bridge", "q", 0, [part(0, attempt=1)])
        assert stored(bridge.store) == [b"fast"]
        assert staged_files(tmp_path) == []


async def test_what_is_staged_survives_the_member(tmp_path: Path) -> None:
    async with open_network() as network:
        async with open_pair(network, tmp_path) as (_, client):
            await client.stage("bridge", part(0), written(["a"]))
        async with open_pair(network, tmp_path) as (bridge, client):
            await client.commit("bridge", "q", 0, [part(0)])
            assert stored(bridge.store) == [b"a"]


async def test_a_batch_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"]))
        await client.abort("bridge", "q", 0)
        assert staged_files(tmp_path) == []
        with pytest.raises(Exception, match="missing"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


async def test_what_nobody_comes_back_to_is_forgotten_while_the_bridge_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.spark_bridge.server.sink_commits._LOOKED_FOR", 0.01)
    async with open_network() as network, open_pair(network, tmp_path) as (_, client):
        for batch in (0, 1):
            await client.stage("bridge", part(0, batch=batch), written(["a"]))
        os.utime(tmp_path / "staged" / "q" / "0", (0, 0))
        await wait_until(lambda: not (tmp_path / "staged" / "q" / "0").exists())
        assert staged_files(tmp_path) == ["0-0.arrow"]


class LookedAt:
    """A wall clock that can be set, and counts who looks."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return time.time() + self.ahead  # noqa: TID251 -- files have the system's date

    async def wait_passes(self, count: int = 4) -> None:
        """Wait until what looks twice each time has come round at least once."""
        wanted = self._looks + 2 * count
        await wait_until(lambda: self._looks >= wanted)


async def test_what_is_young_stays_when_the_clock_jumps_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.server.sink_commits._LOOKED_FOR", 0.01)
    clock = LookedAt()
    young = tmp_path / "staged" / "q" / "1"
    async with open_network() as network:
        async with open_pair(network, tmp_path, wall_clock=clock) as (_, client):
            await client.stage("bridge", part(0, batch=1), written(["a"]))
            clock.ahead = 100 * 24 * 3600.0
            await clock.wait_passes()
            assert young.exists()
        async with open_pair(network, tmp_path, wall_clock=clock) as (bridge, client):
            await clock.wait_passes()
            assert young.exists(), "nor does it go when the bridge is started while the clock is ahead"
            assert await client.commit("bridge", "q", 1, [part(0, batch=1)]) == 1
            assert stored(bridge.store) == [b"a"]


async def test_listeners_get_what_is_committed_and_see_that_spark_wrote_it(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (_, client),
        network.open_node("listener") as node,
        node.subscribe("out.*") as events,
    ):
        await client.stage("bridge", part(0), written(["a"], key="k"))
        await client.commit("bridge", "q", 0, [part(0)])
        with trio.fail_after(60):
            event = await anext(events)
        assert (event.topic, event.payload, event.key) == ("out.x", b"a", "k")
        assert event.headers == {"iris-sink": "q", "iris-bridge": "bridge"}
        assert event.sender.cluster == "bridge"


async def test_a_row_says_in_the_log_who_wrote_it(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"]))
        await client.commit("bridge", "q", 0, [part(0)])
        (state,) = bridge.states.values()
        (chunk,) = bridge.store.reader.read(0, state.epoch, 0, 1, max_bytes=1)
        (row,) = decode_events(chunk.data).to_pylist()
        assert row["headers"] == [{"key": "iris-sender", "value": b"spark"}]


async def test_keys_stay_together_in_their_shard(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path, shards=[0, 1, 2]) as (bridge, client):
        for number, key in enumerate("abcdef"):
            await client.stage("bridge", part(number), written([f"{key}{n}" for n in range(3)], key=key))
        await client.commit("bridge", "q", 0, [part(number) for number in range(6)])
        by_shard = [stored(bridge.store, shard) for shard in range(3)]
        assert sum(map(len, by_shard)) == 18
        for letter in (b"a", b"b", b"c", b"d", b"e", b"f"):
            assert [sum(value.startswith(letter) for value in values) for values in by_shard].count(3) == 1


async def test_a_staged_part_that_changes_on_the_disk_is_not_committed(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"] * 100))
        (path,) = (tmp_path / "staged").rglob("*.arrow")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(LogDamaged, match="checksum"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


@pytest.mark.parametrize("data", [b"", b"nonsense", written(["a"]).getvalue()[:-40]])
async def test_a_damaged_part_is_not_committed(tmp_path: Path, data: bytes) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), io.BytesIO(data))
        with pytest.raises(Exception, match=r"damaged|missing"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


async def test_rows_that_no_publisher_could_publish_are_refused(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), written(["a"], topic="not a topic"))
        with pytest.raises(Exception, match="not a topic"):
            await client.commit("bridge", "q", 0, [part(0)])
        assert stored(bridge.store) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"key": b"k" * 257}, "column key has 257 bytes in a row: the limit of an event is 256"),
        (
            {"headers": [{"key": "h", "value": b"v" * 8000}]},
            "column headers has 1 headers of 8001 bytes in a row: the limit",
        ),
        (
            {"headers": [{"key": "h", "value": None}] * 501},
            "column headers has 501 headers in a row: the limit of an event is 500",
        ),
        ({"value": bytes(MIB + 1)}, "column value has 1048577 bytes in a row"),
    ],
)
async def test_a_row_that_is_too_large_for_an_event_is_refused_before_anything_is_stored(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        await client.stage("bridge", part(0), rows({"value": b"good", "topic": "out.x"}))
        await client.stage("bridge", part(1), rows({"value": b"x", "topic": "out.x"} | row))
        with pytest.raises(RemoteError, match=message):
            await client.commit("bridge", "q", 0, [part(0), part(1)])
        assert stored(bridge.store) == []


async def test_a_row_that_cannot_be_published_is_stored_all_the_same_and_counted(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("spark") as other:
        network.credential("bridge", Rights(publishes=("other",)))
        async with open_member(network, tmp_path, topics=["in"]) as bridge:
            client = BridgeClient(other, "bridge", patience=5)
            await client.stage("bridge", part(0), written(["a", "b"]))
            assert await client.commit("bridge", "q", 0, [part(0)]) == 2
            assert stored(bridge.store) == [b"a", b"b"]
            assert bridge.statistics().unannounced == 2
            assert staged_files(tmp_path) == []


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [("server.sink_commits._TELLING", 20_000), ("client.client._COMMIT", None)],
    ids=["in time", "asked again"],
)
async def test_a_listener_that_makes_publishers_wait_does_not_hold_up_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, outcome: int | None
) -> None:
    monkeypatch.setattr(f"iris.spark_bridge.{limit}", 0.5)
    limits = SubscriptionLimits(events=10)
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (bridge, _),
        network.open_node("listener") as node,
        node.subscribe("out.*", overflow="wait", limits=limits) as events,
    ):
        client = BridgeClient(node, "bridge", patience=60)
        await client.stage("bridge", part(0), written([str(number) for number in range(20_000)]))
        assert await client.commit("bridge", "q", 0, [part(0)]) == outcome
        assert len(stored(bridge.store)) == 20_000
        untold = bridge.statistics().unannounced
        assert untold > 0
        with trio.fail_after(60):
            for number in range(20_000 - untold):
                assert (await anext(events)).payload == b"%d" % number
        assert staged_files(tmp_path) == []


async def test_a_listener_of_one_query_does_not_hold_up_another_one(tmp_path: Path) -> None:
    limits = SubscriptionLimits(events=10)
    one, other = (StagedPart(query=query, batch=0, partition=0, attempt=0) for query in "qr")
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (bridge, client),
        network.open_node("listener") as node,
        node.subscribe("out.*", overflow="wait", limits=limits) as events,
        trio.open_nursery() as nursery,
    ):
        told = trio.Event()

        async def commit() -> None:
            await client.commit("bridge", "q", 0, [one])
            told.set()

        await client.stage("bridge", one, written([str(number) for number in range(5_000)]))
        nursery.start_soon(commit)
        await anext(events)
        assert await client.commit("bridge", "r", 0, [other], {other: written(["b"], topic="in").getvalue()}) == 1
        assert not told.is_set()
        assert len(stored(bridge.store)) == 5_001
        with trio.fail_after(60):
            for _ in range(4_999):
                await anext(events)
            await told.wait()
        assert bridge.statistics().unannounced == 0


# -- who may write ---------------------------------------------------------------------------------------------


async def test_who_may_publish_nothing_writes_nothing(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        network.credential("analysts", Rights(publishes=(), subscribes=()))
        async with network.open_node("analysts") as node:
            reader = BridgeClient(node, "bridge", patience=5)
            assert await reader.shards(), "it may read"
            await client.stage("bridge", part(0), written(["a"]))
            for attempt in (
                partial(reader.stage, "bridge", part(1), written(["forged"])),
                partial(reader.commit, "bridge", "q", 0, [part(0)]),
                partial(reader.commit, "bridge", "q", 2**60, []),
                partial(reader.abort, "bridge", "q", 0),
            ):
                with pytest.raises(NotAllowed, match=r"'analysts' does not permit to publish.* needs a credential"):
                    await attempt()
        assert stored(bridge.store) == []
        assert await client.commit("bridge", "q", 0, [part(0)]) == 1


async def test_what_is_written_is_on_topics_that_its_writer_may_publish_on(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, _):
        network.credential("reports", Rights(publishes=("out.>",)))
        async with network.open_node("reports") as node:
            writer = BridgeClient(node, "bridge", patience=5)
            await writer.stage("bridge", part(0), written(["good"]))
            await writer.stage("bridge", part(1), written(["forged"], topic="in"))
            with pytest.raises(NotAllowed, match="'reports' does not permit to publish on 'in'"):
                await writer.commit("bridge", "q", 0, [part(0), part(1)])
            assert stored(bridge.store) == []
            assert await writer.commit("bridge", "q", 0, [part(0)]) == 1


@pytest.mark.parametrize("query", ["", "../escape", "a/b", "x" * 65])
def test_a_query_cannot_name_a_path(query: str) -> None:
    with pytest.raises(RemoteError, match="query"):
        StagedPart(query=query, batch=0, partition=0, attempt=0)
