"""A damaged log: one clear error, or everything else exactly once and the rest counted."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log import EVERYTHING, Store, TopicFilter
from iris.spark_bridge.log.segments import FileSystem
from tests.support.arrivals import fake_event, fill, make_store

SEGMENT = 8192
TOPICS = ("a.x", "a.y")


def make_log(directory: Path) -> None:
    """Make a log of 240 events in 24 chunks and some segments; every third append is of one topic alone."""
    store = make_store(directory, segment_bytes=SEGMENT)
    for turn in range(24):
        names = TOPICS if turn % 3 else TOPICS[:1]
        events = [fake_event(b"%d" % (turn * 10 + n), topic=names[n % len(names)]) for n in range(10)]
        store.appender.append({0: events}, now=turn)
    store.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("damage") / "log"
    make_log(directory)
    return directory


def read(store: Store, wanted: TopicFilter = EVERYTHING, *, step: int = 1) -> list[int]:
    """Read all in pieces as a reader does that goes on without what is damaged; return the payloads as numbers."""
    (state,) = store.shards()
    found: list[int] = []
    at = 0
    while at < state.next:
        chunks = store.reader.read(0, state.epoch, at, state.next, max_bytes=step, wanted=wanted, pass_damage=True)
        assert chunks[0].first <= at < chunks[-1].end
        assert all(one.end == other.first for one, other in itertools.pairwise(chunks))
        for chunk in chunks:
            batch = wanted.keep(decode_events(chunk.data))
            found += [int(value) for value in batch.column("value").to_pylist()]
        at = chunks[-1].end
    return found


def damage_index(directory: Path, first: int, byte: int, bit: int) -> None:
    """Change a bit of the record that says where the chunk at an offset lies, also in pages that are not used now."""
    key = (0).to_bytes(4) + first.to_bytes(8)
    with lmdb.open(str(directory / "index"), max_dbs=20, readonly=True, lock=False) as environment:
        table = environment.open_db(b"chunks", create=False)
        with environment.begin(db=table) as transaction:
            record = bytearray(key + (transaction.get(key) or b""))
    path = directory / "index" / "data.mdb"
    data = path.read_bytes()
    assert record in data
    changed = bytearray(record)
    changed[byte % len(record)] ^= 1 << bit
    path.write_bytes(data.replace(record, changed))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_damaged_everything_else_is_read_once_and_the_rest_counted(
    log: Path, tmp_path: Path, data: st.DataObject
) -> None:
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    shutil.copytree(log, tmp_path / "log")
    segments = sorted((tmp_path / "log" / "segments").iterdir())
    for _ in range(data.draw(st.integers(1, 3), label="how often")):
        path = segments[data.draw(st.integers(0, len(segments) - 1), label="segment")]
        content = bytearray(path.read_bytes())
        if not content:
            continue
        at = data.draw(st.integers(0, len(content) - 1), label="byte")
        match data.draw(st.sampled_from(["flip", "zeros", "cut"]), label="kind"):
            case "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            case "zeros":
                content[at : at + 512] = bytes(len(content[at : at + 512]))
            case _:
                del content[at:]
        path.write_bytes(content)
    step = data.draw(st.sampled_from([1, 3000, 1 << 20]), label="bytes at a time")
    wanted = data.draw(st.sampled_from([EVERYTHING, TopicFilter(["a.y"]), TopicFilter([], "a[.]x")]), label="topics")
    store = make_store(tmp_path / "log", segment_bytes=SEGMENT)
    try:
        (state,) = store.shards()
        every = [n for n in range(240) if wanted is EVERYTHING or wanted.wants(topic_of(n))]
        found = read(store, wanted, step=step)
        damaged = {at for damage in store.reader.damage() for at in range(damage.offset, damage.end)}
        assert found == [n for n in every if n not in damaged], "in order, once, and nothing but the damage is left out"
        counted = store.reader.damage_between(0, 0, state.next, wanted)
        assert sum(count for _, count in counted) == len(every) - len(found)
        check_error(store, state.epoch, damaged, wanted)
    finally:
        store.close()


def topic_of(number: int) -> str:
    names = TOPICS if number // 10 % 3 else TOPICS[:1]
    return names[number % 10 % len(names)]


def check_error(store: Store, epoch: str, damaged: set[int], wanted: TopicFilter) -> None:
    """A reader that does not go on without them gets one error, which names shard and offsets."""
    if not any(wanted is EVERYTHING or wanted.wants(topic_of(n)) for n in damaged):
        store.reader.read(0, epoch, 0, 240, max_bytes=1 << 20, wanted=wanted)
        return
    with pytest.raises(LogDamaged) as caught:
        store.reader.read(0, epoch, 0, 240, max_bytes=1 << 20, wanted=wanted)
    named = re.match(rf"events (\d+) to (\d+) of shard 0@{epoch} cannot be read: ", str(caught.value))
    assert named is not None, str(caught.value)
    assert damaged.issuperset(range(int(named[1]), int(named[2]) + 1))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sets(st.integers(0, 23), min_size=1, max_size=3),
    st.integers(0, 1000),
    st.integers(0, 7),
    st.sampled_from([1, 3000]),
)
def test_a_damaged_index_of_chunks_is_passed_by(
    log: Path, tmp_path: Path, chunks: set[int], byte: int, bit: int, step: int
) -> None:
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    shutil.copytree(log, tmp_path / "log")
    for chunk in chunks:
        damage_index(tmp_path / "log", chunk * 10, byte, bit)
    store = make_store(tmp_path / "log", segment_bytes=SEGMENT)
    try:
        lost = {n for chunk in chunks for n in range(chunk * 10, chunk * 10 + 10)}
        for wanted in (EVERYTHING, TopicFilter(["a.x"])):
            every = [n for n in range(240) if wanted is EVERYTHING or wanted.wants(topic_of(n))]
            assert read(store, wanted, step=step) == [n for n in every if n not in lost]
        (state,) = store.shards()
        assert sum(count for _, count in store.reader.damage_between(0, 0, 240, EVERYTHING)) == len(lost)
        check_error(store, state.epoch, lost, EVERYTHING)
        assert all("the index names no chunk for offset" in damage.reason for damage in store.reader.damage())
    finally:
        store.close()


def test_damage_is_said_once(log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(log, tmp_path / "log")
    path = min((tmp_path / "log" / "segments").iterdir())
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    store = make_store(tmp_path / "log", segment_bytes=SEGMENT)
    read(store)
    read(store)
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert "events 0 to 9 of shard 0 cannot be read" in said
    assert f"iris bridge verify --data {tmp_path / 'log'}" in said
    store.retainer.trim(0, 50)
    assert store.reader.damage() == []
    store.close()


def test_a_sector_that_the_disk_cannot_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_good = FileSystem.read

    def read_bad(disk: FileSystem, descriptor: int, size: int, position: int) -> bytes:
        if position <= 2000 < position + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_good(disk, descriptor, size, position)

    monkeypatch.setattr(FileSystem, "read", read_bad)
    fill(store := make_store(tmp_path), 5)
    assert read(store, step=1 << 20) == [*range(10), *range(20, 50)]
    (state,) = store.shards()
    with pytest.raises(LogDamaged, match=rf"events 10 to 19 of shard {state.id} cannot be read: the disk cannot read"):
        store.reader.read(0, state.epoch, 0, 50, max_bytes=1 << 20)
    store.close()


def test_a_segment_that_is_gone_can_be_done_without(log: Path, tmp_path: Path) -> None:
    shutil.copytree(log, tmp_path / "log")
    path = min((tmp_path / "log" / "segments").iterdir())
    path.unlink()
    with pytest.raises(LogDamaged, match="or make empty files of these names to go on without their events"):
        make_store(tmp_path / "log", segment_bytes=SEGMENT)
    path.touch()
    store = make_store(tmp_path / "log", segment_bytes=SEGMENT)
    ((damage, count),) = store.reader.damage_between(0, 0, 240, EVERYTHING)
    assert read(store) == list(range(damage.end, 240))
    assert count == damage.end
    store.appender.append({0: [fake_event(b"240")]}, now=99)
    assert read(store)[-1] == 240
    store.close()
