"""The tier: what is sealed goes there, the log goes on behind it, and a crash at any step loses and doubles nothing."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.admin import verify_log
from iris.spark_bridge.errors import LogDamaged, TierUnreachable
from iris.spark_bridge.events.schema import SCHEMA, decode_events
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.tiering import Tiering, TierObject
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.tier import parquet
from iris.spark_bridge.tier.manifest import encode_manifest
from iris.spark_bridge.tier.storage import UNFINISHED, Storage
from iris.spark_bridge.tier.uploads import Tier
from tests.support.arrivals import fake_event, fill, make_store, numbered, stored
from tests.support.tiers import (
    LATE,
    SECOND,
    Killed,
    Killing,
    TieredLog,
    local_segments,
    objects_in,
    open_tiered,
    read_manifest,
    read_parquet,
    shard_folders,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TieredLog]:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        yield log


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


# -- reading through both ----------------------------------------------------------------------------------------


async def test_a_reader_goes_from_the_tier_to_the_disk_without_a_seam(log: TieredLog, tmp_path: Path) -> None:
    events = fill(log.store, 60)
    await log.move()
    before = local_segments(tmp_path / "log")
    log.leave()
    assert before > 5
    assert local_segments(tmp_path / "log") == 1, "the last one is not sealed"
    (state,) = log.store.shards()
    assert (state.earliest, state.next) == (0, 600)
    assert stored(log.store) == events
    (segment,) = (tmp_path / "log" / "segments").iterdir()
    assert 0 < state.size < segment.stat().st_size, "what is in the tier is not on this disk"
    for start in (0, 1, 299, 599):
        chunks = log.store.reader.read(0, state.epoch, start, 600, max_bytes=1)
        assert chunks[0].first <= start < chunks[0].end
        assert chunks[0].epoch == state.epoch


async def test_anything_that_reads_parquet_reads_the_events(log: TieredLog, tmp_path: Path) -> None:
    log.store.appender.append(
        {0: [fake_event(b"\xff", topic="a.b", key="k", headers={"h": "x"}), fake_event(b"2", topic="a.c")]}, now=5
    )
    await log.move_all()
    rows = read_parquet(tmp_path / "tier" / "bridge")
    assert [(row["topic"], row["key"], row["value"], row["offset"]) for row in rows] == [
        ("a.b", b"k", b"\xff", 0),
        ("a.c", None, b"2", 1),
    ]
    assert {"key": "h", "value": b"x"} in rows[0]["headers"]
    assert rows[0]["timestamp"].timestamp() == 5e-6
    (state,) = log.store.shards()
    assert {row["shard"] for row in rows} == {state.id}
    (folder,) = shard_folders(tmp_path / "tier")
    (name,) = objects_in(folder)
    assert pq.ParquetFile(str(folder / name)).schema_arrow.equals(SCHEMA), "the columns are those of Spark's source"


async def test_a_log_with_a_tier_answers_as_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 2000)
    random = Random(5)
    plain = make_store(tmp_path / "plain", segment_bytes=8192)
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        for turn in range(80):
            topics = random.choices(["a.x", "a.y", "b.z", "rare"], weights=[9, 9, 5, 0.1], k=random.randint(1, 12))
            events = [fake_event(random.randbytes(random.randint(0, 90)), topic=topic) for topic in topics]
            for store in (plain, log.store):
                store.appender.append({0: events}, now=turn * SECOND)
            if turn % 23 == 22:
                log.time = turn * SECOND
                await log.move()
                log.leave()
        (state,) = log.store.shards()
        assert local_segments(tmp_path / "log") < local_segments(tmp_path / "plain") // 2
        for wanted in (TopicFilter([]), TopicFilter(["a.>"]), TopicFilter(["rare"]), TopicFilter((), "b.*|rare")):
            for start in [0, *random.sample(range(state.next), 3), state.next - 1]:
                assert rows_from(log.store, start, wanted) == rows_from(plain, start, wanted)
                for limit in (1, 40):
                    mine = log.store.reader.look(0, start, wanted, limit)
                    other = plain.reader.look(0, start, wanted, limit)
                    assert (mine.count, mine.next, mine.earliest) == (other.count, other.next, other.earliest)
                    assert count_wanted(plain, start, mine.upto, wanted) == mine.count
                    assert count_wanted(plain, start, mine.first, wanted) == 0
        for when in range(-1, 122, 9):
            assert log.store.reader.offset_at(0, when * SECOND) == plain.reader.offset_at(0, when * SECOND)
            assert log.store.reader.offset_at(0, when * SECOND + 1) == plain.reader.offset_at(0, when * SECOND + 1)
        assert all(damage is None for _, _, damage in log.store.reader.verify())
    plain.close()


def rows_from(store: Store, start: int, wanted: TopicFilter, end: int | None = None) -> list[dict[str, Any]]:
    (state,) = store.shards()
    end = state.next if end is None else end
    found: list[dict[str, Any]] = []
    at = start
    while at < end:
        for chunk in store.reader.read(0, state.epoch, at, end, max_bytes=3000, wanted=wanted, exact=True):
            assert chunk.first <= at < chunk.end
            at = chunk.end
            found += decode_events(chunk.data).to_pylist()
    return [row for row in found if start <= row["offset"] < end]


def count_wanted(store: Store, start: int, end: int, wanted: TopicFilter) -> int:
    return len(rows_from(store, start, wanted, end)) if start < end else 0


async def test_a_reader_of_files_is_sent_to_the_member_for_what_is_in_the_tier(log: TieredLog) -> None:
    fill(log.store, 60)
    await log.move()
    (state,) = log.store.shards()
    assert log.store.reader.locate(0, state.epoch, 7, 600, max_bytes=1 << 20).end > 7
    log.leave()
    assert log.store.reader.locate(0, state.epoch, 7, 600, max_bytes=1 << 20).end == 7
    assert log.store.reader.locate(0, state.epoch, 599, 600, max_bytes=1 << 20).end == 600


# -- what is sealed, and when files go -----------------------------------------------------------------------------


async def test_nothing_leaves_the_disk_that_the_tier_has_not_got(log: TieredLog, tmp_path: Path) -> None:
    events = fill(log.store, 60)
    log.leave()
    assert stored(log.store) == events
    assert log.uploads.statuses()[0].behind > 0
    (status,) = log.uploads.statuses()
    assert (status.objects, status.next, status.problem) == (0, 0, "")
    await log.move()
    (status,) = log.uploads.statuses()
    assert (status.behind, status.behind_bytes) == (0, 0)
    assert status.next == sum(len(values([row])) for row in read_parquet(tmp_path / "tier"))


async def test_a_segment_that_is_not_full_is_sealed_in_time(log: TieredLog, tmp_path: Path) -> None:
    log.store.appender.append({0: numbered(1, 3)}, now=SECOND)
    log.time = 2 * SECOND
    await log.move()
    assert log.store.tiering.objects(0) == []
    log.time += 1
    await log.move()
    assert values(read_parquet(tmp_path / "tier")) == [b"1", b"2", b"3"]
    log.store.appender.append({0: numbered(4, 5)}, now=3 * SECOND)
    log.leave()
    assert stored(log.store) == [b"1", b"2", b"3", b"4", b"5"]
    assert len(log.store.tiering.objects(0)) == 1


async def test_a_log_that_is_opened_again_goes_on_behind_what_is_in_the_tier(tmp_path: Path) -> None:
    for turn in range(4):
        with open_tiered(tmp_path / "log", tmp_path / "tier", writer=turn) as log:
            log.store.appender.append({0: numbered(turn * 10 + 1, turn * 10 + 10)}, now=turn * SECOND)
            await log.move_all()
            assert local_segments(tmp_path / "log") == 0
    with open_tiered(tmp_path / "log", tmp_path / "tier", writer=9) as log:
        assert stored(log.store) == [b"%d" % number for number in range(1, 41)]
    assert values(read_parquet(tmp_path / "tier")) == [b"%d" % number for number in range(1, 41)]


async def test_publishers_are_known_and_repeats_left_out_whatever_is_in_the_tier(log: TieredLog) -> None:
    log.store.appender.append({0: numbered(1, 20)}, now=0)
    await log.move_all()
    assert log.store.appender.append({0: numbered(1, 25)}, now=LATE).count == 5
    assert stored(log.store) == [b"%d" % number for number in range(1, 26)]


async def test_what_is_trimmed_by_hand_goes_from_the_tier_too(log: TieredLog, tmp_path: Path) -> None:
    fill(log.store, 60)
    await log.move_all()
    first, second = log.store.tiering.objects(0)[:2]
    log.store.retainer.trim(0, second.first + 1)
    (folder,) = shard_folders(tmp_path / "tier")
    await log.move()
    assert first.name not in objects_in(folder)
    assert read_manifest(folder).objects[0].first == second.first
    (state,) = log.store.shards()
    assert state.earliest == second.first + 1
    assert stored(log.store) == [b"%d" % number for number in range(second.first + 1, 600)]
    log.store.retainer.trim(0, 600)
    await log.move()
    assert objects_in(folder) == []
    assert stored(log.store) == []


async def test_a_damaged_segment_stays_where_it_is_and_the_others_go(
    log: TieredLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(log.store, 60)
    path = sorted((tmp_path / "log" / "segments").iterdir())[1]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "iris"):
        await log.move()
        await log.move()
    assert len([record for record in caplog.records if "does not go to the tier" in record.message]) == 1
    assert "checksum" in log.uploads.statuses()[0].problem
    log.leave()
    assert path.exists()
    assert local_segments(tmp_path / "log") == 2


# -- crashes ------------------------------------------------------------------------------------------------------

STEPS = 28
QUICK = (8, 14, 15, 20, 24, 26)


def kill_at(patch: pytest.MonkeyPatch, number: int | None) -> Killing:
    """Kill before and after each thing that lasts: of the storage, of the index, of the disk."""
    killing = Killing(number)
    for owner, name in (
        *((Storage, "put"), (Storage, "remove"), (Storage, "names"), (Storage, "get")),
        *((Tiering, "note"), (SegmentFiles, "remove")),
    ):
        method = getattr(owner, name)
        patch.setattr(owner, name, killing.wrap(killing.wrap(method), after=True))
    return killing


async def is_killed(directory: Path, number: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, number)
        try:
            with open_tiered(directory / "log", directory / "tier", writer=1) as log:
                await log.move_all()
        except Killed:
            return True
    return False


@pytest.mark.parametrize(
    "number", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in range(1, STEPS + 1)]
)
async def test_a_bridge_killed_at_any_step_loses_and_doubles_nothing(number: int, tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        events = fill(log.store, 12)
        await log.move_all()
        events += [b"%d" % number for number in range(1, 101)]
        log.store.appender.append({0: numbered(1, 100)}, now=SECOND)
    assert await is_killed(tmp_path, number)
    with open_tiered(tmp_path / "log", tmp_path / "tier", writer=2) as log:
        assert stored(log.store) == events
        await log.move_all()
        assert stored(log.store) == events
        assert local_segments(tmp_path / "log") == 0
        (folder,) = shard_folders(tmp_path / "tier")
        assert objects_in(folder) == sorted(found.name for found in read_manifest(folder).objects)
    assert values(read_parquet(tmp_path / "tier")) == events


async def test_there_are_no_more_steps(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        fill(log.store, 12)
        await log.move_all()
        log.store.appender.append({0: numbered(1, 100)}, now=SECOND)
    assert not await is_killed(tmp_path, STEPS + 1)


async def test_an_upload_that_dies_half_way_is_swept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        events = fill(log.store, 60)
        await log.move()
        (folder,) = shard_folders(tmp_path / "tier")
        named = objects_in(folder)
        whole = (folder / named[0]).read_bytes()
        # What two bridges have left: a part of an object, and a whole one that no manifest names.
        half = folder / f"{UNFINISHED}{590:020d}-{600:020d}-1.parquet"
        half.write_bytes(whole[: len(whole) // 2])
        orphan = folder / f"{0:020d}-{5:020d}-1.parquet"
        orphan.write_bytes(whole)
        (folder / "notes.txt").write_text("not the tier's")
        assert stored(log.store) == events, "no reader of the log looks at what no manifest names"
    with open_tiered(tmp_path / "log", tmp_path / "tier", writer=1) as log, caplog.at_level(logging.WARNING, "iris"):
        await log.move()
        assert objects_in(folder) == sorted([*named, "notes.txt"])
    (record,) = (record for record in caplog.records if "unfinished" in record.message)
    assert half.name in record.message
    assert orphan.name in record.message


# -- two writers ---------------------------------------------------------------------------------------------------


async def test_a_bridge_on_a_copy_of_the_log_takes_the_tier_and_the_first_one_stops(tmp_path: Path) -> None:
    """The directory of a log was copied, and both are run: in the index nothing distinguishes them."""
    with open_tiered(tmp_path / "log", tmp_path / "tier") as first:
        events = fill(first.store, 30)
        await first.move()
    copy_log(tmp_path / "log", tmp_path / "copy")
    with (
        open_tiered(tmp_path / "log", tmp_path / "tier", writer=1) as first,
        open_tiered(tmp_path / "copy", tmp_path / "tier", writer=2) as second,
    ):
        await first.move()
        more = [b"%d" % number for number in range(1, 201)]
        first.store.appender.append({0: numbered(1, 200)}, now=SECOND)
        await second.move()
        (folder,) = shard_folders(tmp_path / "tier")
        manifest = read_manifest(folder)
        first.time = LATE
        with pytest.raises(ConfigError, match="another bridge has the tier of shard 0@"):
            await first.move()
        assert read_manifest(folder) == manifest, "its manifest was not written over"
        first.store.tiering.trust(0, trusted=False)  # as ``TierUploads.run`` does then
        first.leave()
        assert stored(first.store) == events + more, "and it keeps what is on its disk"
        await second.move()


async def test_of_two_that_commit_at_a_time_at_least_one_stops_and_neither_removes_files(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as first:
        fill(first.store, 30)
        await first.move()
    copy_log(tmp_path / "log", tmp_path / "copy")
    with (
        open_tiered(tmp_path / "log", tmp_path / "tier", writer=1) as first,
        open_tiered(tmp_path / "copy", tmp_path / "tier", writer=2) as second,
    ):
        await first.move()
        first.store.appender.append({0: numbered(1, 50)}, now=SECOND)
        first.time = LATE
        with pytest.MonkeyPatch.context() as patch:
            put = Storage.put

            def put_after_the_other(storage: Storage, path: str, data: Any) -> None:
                if path.endswith(".json"):
                    patch.setattr(Storage, "put", put)
                    # The first one has looked, and has not written yet: now the second one takes the tier.
                    second.tier.newest()
                    second.tier.commit(second.store.tiering.objects(0))
                put(storage, path, data)

            patch.setattr(Storage, "put", put_after_the_other)
            with pytest.raises(ConfigError, match="another bridge has the tier"):
                await first.move()
        with open_tiered(tmp_path / "third", tmp_path / "tier", writer=3):
            pass
        with pytest.raises(ConfigError, match="two bridges have written the tier of shard"):
            second.tier.newest()


def copy_log(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


async def test_a_log_that_was_put_back_does_not_touch_what_the_tier_has_of_later(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        fill(log.store, 20)
    copy_log(tmp_path / "log", tmp_path / "backup")
    with open_tiered(tmp_path / "log", tmp_path / "tier", writer=1) as log:
        log.store.appender.append({0: numbered(1, 300)}, now=SECOND)
        await log.move_all()
    (folder,) = shard_folders(tmp_path / "tier")
    before = objects_in(folder)
    with open_tiered(tmp_path / "backup", tmp_path / "tier", writer=2) as log:
        with pytest.raises(ConfigError, match="was put back to an older state"):
            await log.move()
        log.leave()
        assert local_segments(tmp_path / "backup") > 0
    assert objects_in(folder) == before


async def test_the_tier_of_another_log_is_left_alone(tmp_path: Path) -> None:
    """Epochs distinguish logs: one that was begun anew writes beside the former one's objects."""
    with open_tiered(tmp_path / "one", tmp_path / "tier") as log:
        events = fill(log.store, 30)
        await log.move_all()
    other = make_store(tmp_path / "two", seed=7, segment_bytes=8192)
    other.appender.append({0: numbered(1, 10)}, now=0)
    other.close()
    with open_tiered(tmp_path / "two", tmp_path / "tier", writer=1) as log:
        await log.move_all()
        assert len(shard_folders(tmp_path / "tier")) == 2
    with open_tiered(tmp_path / "one", tmp_path / "tier", writer=2) as log:
        await log.move()
        assert stored(log.store) == events


async def test_a_wrong_tier_is_told_and_nothing_leaves_the_disk(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        fill(log.store, 30)
        await log.move()
        log.leave()
    with open_tiered(tmp_path / "log", tmp_path / "elsewhere", writer=1) as log:
        with pytest.raises(ConfigError, match="which this log has nowhere else: give the --tier"):
            await log.move()
        with pytest.raises(LogDamaged, match="is missing"):
            stored(log.store)


async def test_a_tier_that_was_emptied_is_filled_again_from_the_disk(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        events = fill(log.store, 30)
        log.time = LATE
        await log.move()
    with open_tiered(tmp_path / "log", tmp_path / "elsewhere", writer=1) as log:
        await log.move_all()
        assert stored(log.store) == events
    assert values(read_parquet(tmp_path / "elsewhere")) == events


# -- damage, and storage that does not answer ----------------------------------------------------------------------


async def test_a_truncated_object_is_found_and_the_rest_is_read(log: TieredLog, tmp_path: Path) -> None:
    fill(log.store, 60)
    await log.move_all()
    (folder,) = shard_folders(tmp_path / "tier")
    found = log.store.tiering.objects(0)[1]
    path = folder / found.name
    data = path.read_bytes()
    (state,) = log.store.shards()
    for broken in (data[:-1], data[: len(data) // 2], b"", data + b"\0"):
        path.write_bytes(broken)
        with pytest.raises(
            LogDamaged, match=f"{found.name} in the tier .* has {len(broken)} bytes, and had {len(data)}"
        ):
            log.store.reader.read(0, state.epoch, found.first, found.end, max_bytes=1)
    assert log.store.reader.read(0, state.epoch, found.end, state.next, max_bytes=1)
    path.unlink()
    with pytest.raises(LogDamaged, match="is missing"):
        log.store.reader.read(0, state.epoch, found.first, found.end, max_bytes=1)
    assert [damage for _, _, damage in log.store.reader.verify() if damage is not None]


async def test_verify_reads_the_tier_if_it_is_told_where_that_is(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        fill(log.store, 60)
        await log.move()
        log.leave()
        found = log.store.tiering.objects(0)[1]
    (folder,) = shard_folders(tmp_path / "tier")
    with (folder / found.name).open("ab") as file:
        file.write(b"x")

    def damaged(tier: Path | None) -> list[int]:
        findings = list(verify_log(tmp_path / "log", tier=None if tier is None else str(tier)))
        assert findings, "what is on the disk is read in any case"
        return [finding.offset for finding in findings if finding.damage is not None]

    assert damaged(None) == []
    assert damaged(tmp_path / "tier") == [found.first]
    with closing(make_store(tmp_path / "log")) as store:
        (state,) = store.shards()
        with pytest.raises(TierUnreachable, match="are in the tier alone: give --tier"):
            store.reader.read(0, state.epoch, 0, 1, max_bytes=1)


async def test_a_flipped_bit_in_an_object_is_never_passed_on(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        events = fill(log.store, 60)
        await log.move_all()
        found = log.store.tiering.objects(0)[0]
    (folder,) = shard_folders(tmp_path / "tier")
    path = folder / found.name
    data = path.read_bytes()
    random = Random(3)
    wrong = 0
    for _ in range(24):
        broken = bytearray(data)
        broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
        path.write_bytes(broken)
        store = make_store(tmp_path / "log", segment_bytes=8192)
        store.tiering.attach(parquet.TierReader(Storage(str(tmp_path / "tier")), "bridge"))
        try:
            assert stored(store) == events
        except LogDamaged:
            wrong += 1
        finally:
            store.close()
    assert wrong > 16, "most of the bytes are pages, which have checksums"


# -- objects that others have written ---------------------------------------------------------------------------


def forge(path: Path, *, keeps_size: bool = True) -> None:
    """Put other values into an object: the same row groups and numbers of rows, and pages whose checksums fit."""
    before = pq.ParquetFile(str(path))
    forged = pa.BufferOutputStream()
    with pq.ParquetWriter(forged, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for group in range(before.metadata.num_row_groups):
            rows = [{**row, "value": b"forged"} for row in before.read_row_group(group).to_pylist()]
            table = pa.Table.from_batches([pa.RecordBatch.from_pylist(rows, SCHEMA)], SCHEMA)
            writer.write_table(table, row_group_size=table.num_rows)
    data = forged.getvalue().to_pybytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    # Between the pages and the footer there may be anything.
    room = path.stat().st_size - len(data) if keeps_size else 0
    path.write_bytes(data[:-footer] + bytes(room) + data[-footer:])


async def test_an_object_of_somebody_else_is_refused_before_it_is_looked_into_and_counted(
    log: TieredLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [Random(number).randbytes(100) for number in range(200)]
    for at in range(0, 200, 10):
        log.store.appender.append({0: [fake_event(value) for value in events[at : at + 10]]}, now=at)
    await log.move_all()
    (folder,) = shard_folders(tmp_path / "tier")
    found = log.store.tiering.objects(0)[1]
    forge(folder / found.name)
    assert (folder / found.name).stat().st_size == found.size
    rows = values(read_parquet(folder.parent))
    assert rows.count(b"forged") == found.rows, "others take it for what it is not"
    (state,) = log.store.shards()
    log.store.tiering.attach(parquet.TierReader(Storage(str(tmp_path / "tier")), "bridge"))
    with monkeypatch.context() as patch:
        patch.delattr(pq, "ParquetFile")
        patch.delattr(pq, "read_metadata")
        with pytest.raises(LogDamaged, match="is not what was written: its hash is another"):
            log.store.reader.read(0, state.epoch, found.first, found.end, max_bytes=1)
    with pytest.raises(LogDamaged, match="is not what was written"):
        stored(log.store)
    (damage,) = log.store.reader.damage()
    assert (damage.offset, damage.end) == (found.first, found.end)
    passed = log.store.reader.read(0, state.epoch, 0, state.next, max_bytes=10**9, pass_damage=True)
    read = [value for chunk in passed for value in decode_events(chunk.data).column("value").to_pylist()]
    assert read == events[: found.first] + events[found.end :]


async def test_a_manifest_of_somebody_else_makes_no_event(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        events = fill(log.store, 10)
        await log.move_all()
    (folder,) = shard_folders(tmp_path / "tier")
    manifest = read_manifest(folder)
    forged: list[TierObject] = []
    for found in manifest.objects:
        path = folder / found.name
        forge(path, keeps_size=False)
        data = pa.py_buffer(path.read_bytes())
        forged.append(msgspec.structs.replace(found, size=data.size, parts=parquet._parts(data)))
    newest = max((folder / "_manifest").iterdir(), key=lambda path: path.name)
    newest.write_bytes(encode_manifest(msgspec.structs.replace(manifest, objects=forged)))
    # The same log, whose bridge has died before it noted anything of the tier.
    with open_tiered(tmp_path / "another", tmp_path / "tier", writer=1) as other:
        assert fill(other.store, 10) == events
        await other.move_all()
        assert stored(other.store) == events
        assert local_segments(tmp_path / "another") == 0
    assert values(read_parquet(tmp_path / "tier" / "bridge")) == events


async def test_a_directory_that_cannot_be_written_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "tier").write_text("a file")
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        events = fill(log.store, 30)
        with pytest.raises(TierUnreachable, match="does not answer, or refuses"):
            await log.move()
        log.leave()
        assert stored(log.store) == events


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "is empty"),
        ("ftp://host/x", "a tier cannot be at ftp://"),
        ("s3:///x", "names no bucket"),
        ("s3://key:secret@bucket/x", "holds a password"),
        ("s3://[/x", "is no URL"),
    ],
)
def test_a_url_that_is_none_is_told_at_once(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Tier(url=url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_told_at_once(seconds: float) -> None:
    with pytest.raises(ConfigError, match="seal_after is"):
        Tier(url="x", seal_after=seconds)


def test_retention_says_that_nothing_is_gone(log: TieredLog) -> None:
    fill(log.store, 30)
    assert log.store.retainer.retain(Retention(max_bytes=1), now=LATE) == 0
