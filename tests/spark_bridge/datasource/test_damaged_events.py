"""Readers of a bridge whose log is damaged: an error, or all that is left, with a count of the rest."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client import BlockingPortal, BridgeClient, BridgeWatch, Offsets, Range
from iris.spark_bridge.datasource import source
from iris.spark_bridge.datasource.losses import count_damaged
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.source import IrisStreamReader
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import EVERYTHING, TopicFilter
from iris.testing import open_network
from tests.spark_bridge.datasource.test_losses import InThread, open_reader
from tests.support.arrivals import fill, make_store, payloads
from tests.support.bridge_members import open_member


def make_damaged_log(directory: Path) -> None:
    """Make a log of 50 events in chunks of ten, whose second and last chunk are damaged."""
    fill(store := make_store(directory), 5)
    (state,) = store.shards()
    store.close()
    (path,) = (directory / "segments").iterdir()
    content = bytearray(path.read_bytes())
    content[state.size * 3 // 10] ^= 1
    content[state.size - 5] ^= 1
    path.write_bytes(content)


async def read(client: BridgeClient, shard: str, wanted: TopicFilter = EVERYTHING) -> list[bytes]:
    found: list[bytes] = []
    async for chunks in client.read("bridge", shard, 0, 50, wanted, pass_damage=True):
        found += payloads(chunks)
    return found


async def test_a_reader_gets_an_error_or_all_the_rest_and_the_status_names_what_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_damaged_log(tmp_path)
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["a.>"]) as bridge,
        network.open_node("reader") as reader,
    ):
        client = BridgeClient(reader, "bridge", patience=5)
        (shard,) = (shard.id for shard in await client.shards())
        with pytest.raises(LogDamaged, match=f"events 10 to 19 of shard {shard} cannot be read: .*checksum"):
            async for _ in client.read("bridge", shard, 0, 50):
                pass
        assert await read(client, shard) == [b"%d" % n for n in (*range(10), *range(20, 40))]
        status = await read_status(client)
        assert [(name, damage.offset, damage.end) for name, damage in status.damage] == [
            (shard, 10, 20),
            (shard, 40, 50),
        ]
        assert status.counters["bridge"]["damaged"] == bridge.statistics().damaged == 20
        said = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
        assert list(dict.fromkeys(text.split(":")[0] for text in said)) == [
            "events 40 to 49 of shard 0 cannot be read",
            "events 10 to 19 of shard 0 cannot be read",
        ], "the damaged tail at the start, the other place when somebody came by"
        watch = BridgeWatch(None)
        await watch.look(client)
        portal = InThread(client)
        count = partial(count_damaged, SourceOptions(), cast("BlockingPortal", portal), watch)
        for start, end, expected in ((0, 50, 20), (15, 45, 10), (0, 10, 0), (20, 40, 0)):
            ranges = [Range(shard=shard, start=start, end=end)]
            assert await trio.to_thread.run_sync(count, ranges) == expected
        assert "has gone on without 20 events that are damaged in the log of bridge bridge: events 10" in caplog.text


async def test_what_a_batch_met_is_counted_behind_it_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_damaged_log(tmp_path)
    async with open_reader(tmp_path) as client:
        portal = InThread(client)

        def open_portal(_: object) -> InThread:
            return portal

        monkeypatch.setattr(source, "portal_to", open_portal)
        options = SourceOptions(fail_on_data_loss=False, max_offsets=30)

        def plan(stream: IrisStreamReader, start: dict[str, object]) -> dict[str, object]:
            return stream.latestOffset(start, stream.getDefaultReadLimit())

        stream = IrisStreamReader(options)
        initial = await trio.to_thread.run_sync(stream.initialOffset)
        (shard,) = (name for name in initial if "@" in name)
        first = await trio.to_thread.run_sync(plan, stream, initial)
        assert first == {shard: 30, "from": {shard: 0}}
        await read(client, shard)
        second = await trio.to_thread.run_sync(plan, stream, first)
        assert second == {shard: 50, "from": {shard: 30}, "lost": 10}
        (begun,) = await trio.to_thread.run_sync(stream.partitions, first, second)
        assert str(begun.value) == f"{shard}: 30 to 50"
        # The driver dies here: another one goes on from what Spark has written down.
        with caplog.at_level(logging.WARNING):
            stream = IrisStreamReader(options)
            assert await trio.to_thread.run_sync(plan, stream, second) == second, "there is nothing more"
        assert (stream.reportLatestOffset() or {})["lost"] == 20
        asked = portal.calls
        assert await trio.to_thread.run_sync(plan, stream, second) == second
        assert portal.calls <= asked + 2, "of an idle query nothing is counted again"


def test_the_damage_that_a_strange_member_tells_of_is_refused() -> None:
    from iris.kernel.errors import RemoteProtocolError
    from iris.patterns.bridge_protocol import read_reply
    from iris.spark_bridge.protocol import DamageList

    places = [[1, 5, "so it is"]]
    found = read_reply(DamageList, {"count": 4, "places": places})
    assert found == DamageList(count=4, places=((1, 5, "so it is"),))
    strange: list[object] = [
        None,
        {},
        {"count": -1, "places": []},
        {"count": 1, "places": [[5, 1, ""]]},
        {"count": 1, "places": [[1, 2]]},
        {"count": 1, "places": 300 * places},
        {"count": 1, "places": [[1, 2**63, ""]]},
        {"count": True, "places": []},
    ]
    for reply in strange:
        with pytest.raises(RemoteProtocolError):
            read_reply(DamageList, reply)


def test_where_a_batch_began_stands_in_its_offsets() -> None:
    from iris.spark_bridge.client import ranges_before, with_beginnings

    start = Offsets(next={"0@a": 5, "1@b": 7})
    end = with_beginnings(start, Offsets(next={"0@a": 9, "1@b": 7, "2@c": 4}, began={"2@c": 1}))
    assert end.began == {"0@a": 5, "2@c": 1}
    assert ranges_before(end) == [Range(shard="0@a", start=5, end=9), Range(shard="2@c", start=1, end=4)]
