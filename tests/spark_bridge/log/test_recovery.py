"""A log that is opened again, and what is refused instead of being taken for one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lmdb
import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import LogDamaged, StoreBusy
from tests.support.arrivals import fake_event, fill, make_store, payloads, stored


def test_a_log_is_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    store = make_store(tmp_path, segment_bytes=8192)
    expected = fill(store, 12)
    before = store.shards()
    store.close()
    store = make_store(tmp_path, seed=1, segment_bytes=8192)
    assert store.shards() == before
    assert stored(store) == expected
    store.appender.append({0: [fake_event(b"more")]}, now=99)
    assert stored(store)[-1] == b"more"
    store.close()


def test_a_wiped_log_has_another_epoch(tmp_path: Path) -> None:
    first, second = (make_store(tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    assert first.shards()[0].epoch != second.shards()[0].epoch
    assert first.shards()[0].id == f"0@{first.shards()[0].epoch}"
    first.close()
    second.close()


def test_shards_can_be_added_later(tmp_path: Path) -> None:
    make_store(tmp_path).close()
    store = make_store(tmp_path, shards=(0, 7))
    assert [s.number for s in store.shards()] == [0, 7]
    store.close()


def test_two_writers_cannot_have_the_same_log(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(StoreBusy, match="open in another process"):
        make_store(tmp_path)
    store.close()
    make_store(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        make_store(tmp_path / "file" / "log")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(LogDamaged):
        make_store(tmp_path)


def test_a_missing_segment_is_noticed_at_once(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    fill(store, 1)
    store.close()
    next((tmp_path / "segments").iterdir()).unlink()
    with pytest.raises(LogDamaged, match="missing"):
        make_store(tmp_path)


def test_files_of_appends_that_never_finished_are_removed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    epoch = store.shards()[0].epoch
    store.close()
    stranger = tmp_path / "segments" / f"00000-{epoch}-00000000000000000000.segment"
    stranger.write_bytes(b"half a chunk")
    make_store(tmp_path).close()
    assert not stranger.exists()


def test_segments_whose_index_is_gone_are_not_removed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    expected = fill(store, 3)
    store.close()
    (tmp_path / "index").rename(tmp_path / "elsewhere")
    with pytest.raises(LogDamaged, match=r"the index of the log .* is gone, and 1 segment files are there"):
        make_store(tmp_path, seed=1)
    (tmp_path / "elsewhere").rename(tmp_path / "index")
    store = make_store(tmp_path, seed=1)
    assert stored(store) == expected
    store.close()


def test_segments_of_another_log_are_not_removed(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        store = make_store(tmp_path / name, seed=seed)
        fill(store, 3)
        store.close()
    (tmp_path / "a" / "index").rename(tmp_path / "old")
    shutil.copytree(tmp_path / "b" / "index", tmp_path / "a" / "index")
    with pytest.raises(LogDamaged, match="1 segment files are of another log than the index beside them"):
        make_store(tmp_path / "a")
    assert len(list((tmp_path / "a" / "segments").iterdir())) == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_tail_that_is_cut_off_is_found_at_start_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    store = make_store(tmp_path)
    expected = fill(store, 12)
    (state,) = store.shards()
    store.close()
    (path,) = (tmp_path / "segments").iterdir()
    if at_once:
        os.truncate(path, state.size - 10)
    else:  # the file is as long as it was, and the disk has forgotten what was in it
        with path.open("r+b") as file:
            file.seek(state.size - 1000)
            file.write(bytes(1000))
    store = make_store(tmp_path)
    (said,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert "events 110 to 119 of shard 0 cannot be read" in said.getMessage()
    assert f"iris bridge verify --data {tmp_path}" in said.getMessage()
    assert payloads(store.reader.read(0, state.epoch, 0, 110, max_bytes=1 << 20)) == expected[:110]
    with pytest.raises(LogDamaged):
        store.reader.read(0, state.epoch, 110, 120, max_bytes=1)
    store.appender.append({0: [fake_event(b"more")]}, now=10**9)
    assert payloads(store.reader.read(0, state.epoch, 120, 121, max_bytes=1)) == [b"more"]
    store.close()


def test_a_closed_segment_that_is_cut_off_is_found_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(tmp_path, segment_bytes=8192)
    fill(store, 12)
    store.close()
    first = min((tmp_path / "segments").iterdir())
    os.truncate(first, 100)
    make_store(tmp_path, segment_bytes=8192).close()
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert "events 0 to 49 of shard 0 cannot be read" in said
    assert f"{first} ends at 100, short of" in said


@pytest.mark.parametrize("version", [8, 10])
def test_a_log_of_another_version_is_refused_in_words_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    make_store(tmp_path).close()
    with (
        lmdb.open(str(tmp_path / "index"), max_dbs=64) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"format", b"iris log %d" % version)
    for _ in range(2):
        with pytest.raises(
            LogDamaged, match=rf"of another version of Iris \(iris log {version}; this one reads iris log 9\)"
        ):
            make_store(tmp_path)
