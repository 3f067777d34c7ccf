"""Topics inside the log: a reader is given, and waits for, its own alone, and nothing else changes for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import lmdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.spark_bridge.errors import DataLost, LogDamaged, StoreFull
from iris.spark_bridge.events.schema import SINK_SCHEMA, decode_events
from iris.spark_bridge.log.chunk import Chunk, crc32
from iris.spark_bridge.log.local_read import read_file_range
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.topics.filter import TopicFilter
from tests.support.arrivals import fake_event, make_store

SMALL_SEGMENT = 16_384


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make_store(tmp_path / "log", segment_bytes=SMALL_SEGMENT)
    yield store
    store.close()


def append(store: Store, *topics: str, now: int = 0) -> None:
    store.appender.append({0: [fake_event(topic.encode(), topic=topic) for topic in topics]}, now=now)


def offsets(chunks: Sequence[Chunk]) -> list[int]:
    return [offset for chunk in chunks for offset in decode_events(chunk.data).column("offset").to_pylist()]


def read(store: Store, *patterns: str, start: int = 0, exact: bool = True) -> list[int]:
    """Return the offsets of wanted events; every offset is covered once."""
    (state,) = store.shards()
    wanted = TopicFilter(patterns)
    found: list[int] = []
    at = start
    while at < state.next:
        chunks = store.reader.read(0, state.epoch, at, state.next, max_bytes=5000, wanted=wanted, exact=exact)
        for chunk in chunks:
            assert chunk.first <= at < chunk.end, "a gap between chunks"
            at = chunk.end
        found += offsets(chunks)
    return [offset for offset in found if offset >= start]


def first(store: Store, *patterns: str, start: int = 0) -> int:
    return store.reader.look(0, start, TopicFilter(patterns)).first


# -- reading -------------------------------------------------------------------------------------------------


def test_a_reader_is_given_its_topics_and_the_offsets_of_the_others_are_covered(store: Store) -> None:
    for turn in range(40):
        append(store, *(f"noise.{number}" for number in range(10)), *(["rare.x"] if turn % 10 == 9 else []))
    rare = [10 * (turn + 1) + turn // 10 for turn in range(40) if turn % 10 == 9]
    assert read(store, "rare.>") == rare
    assert read(store, "rare.x", "nothing") == rare
    assert read(store, "nothing") == []
    assert read(store, "noise.3") == [at + turn // 10 for turn, at in enumerate(range(3, 400, 10))]
    assert read(store) == list(range(404))


def test_chunks_without_wanted_events_are_not_read_from_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for turn in range(40):
        append(store, *["noise"] * 10, *(["rare"] if turn == 25 else []))
    seen: list[int] = []
    real = SegmentFiles.read

    def count(
        files: SegmentFiles, shard: int, epoch: str, first: int, position: int, size: int, revision: int = 0
    ) -> bytes:
        seen.append(size)
        return real(files, shard, epoch, first, position, size, revision)

    monkeypatch.setattr(SegmentFiles, "read", count)
    assert read(store, "rare") == [260]
    assert len(seen) == 1
    assert read(store, "silent") == []
    assert len(seen) == 1


def test_what_most_of_a_chunk_is_not_wanted_of_is_sent_without_the_rest(store: Store) -> None:
    append(store, *["noise"] * 90, *["rare"] * 10)
    append(store, *["noise"] * 10, *["rare"] * 90)
    assert len(read(store, "rare", exact=False)) == 10 + 100, (
        "to sort out the second one would cost more than to send it"
    )


def test_files_are_named_for_wanted_chunks_alone(store: Store) -> None:
    for turn in range(40):
        append(store, *["noise"] * 10, *(["rare"] if turn % 20 == 5 else []))
    (state,) = store.shards()
    found: list[int] = []
    at = turns = 0
    while at < state.next:
        turns += 1
        file = store.reader.locate(0, state.epoch, at, state.next, max_bytes=1 << 20, wanted=TopicFilter(["rare"]))
        found += offsets(list(read_file_range(file)))
        at = file.end
    assert [offset for offset in found if offset in (60, 261)] == [60, 261]
    assert len(found) == 22, "two whole chunks"
    assert turns == 2
    silent = store.reader.locate(0, state.epoch, 0, state.next, max_bytes=1 << 20, wanted=TopicFilter(["silent"]))
    assert (silent.end, list(read_file_range(silent))) == (state.next, [])


# -- waiting and counting ------------------------------------------------------------------------------------


def test_a_silent_topic_has_no_news_whatever_else_is_appended(store: Store) -> None:
    append(store, "silent")
    for _ in range(30):
        append(store, *["noise"] * 10)
    assert first(store, "silent") == 0
    assert first(store, "silent", start=1) == 301
    append(store, "noise", "silent")
    assert first(store, "silent", start=1) == 301
    assert first(store, "silent", start=303) == 303
    assert first(store, "noise", start=302) == 303, "the first event of the last chunk is behind it"


def test_a_limit_counts_wanted_events_and_ends_behind_the_last_of_them(store: Store) -> None:
    for _ in range(10):
        append(store, "a", "b", "b", "a", "c")
    found = store.reader.look(0, 0, TopicFilter(["a"]), limit=5)
    assert (found.first, found.count, found.upto) == (0, 5, 11)
    assert store.reader.look(0, 11, TopicFilter(["a"]), limit=5).upto == 25, (
        "behind the chunk, as nothing of it is left"
    )
    assert store.reader.look(0, 0, TopicFilter(["c"]), limit=50) == store.reader.look(
        0, 0, TopicFilter(["c"]), limit=11
    )
    assert store.reader.look(0, 0, TopicFilter(["c"]), limit=50).upto == 50
    assert store.reader.look(0, 3, TopicFilter(), limit=20).upto == 23
    assert store.reader.look(0, 50, TopicFilter(["c"]), limit=5).count == 0


def test_topics_of_an_append_that_failed_are_not_taken_for_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(store, "a")

    def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentFiles, "sync", full)
        with pytest.raises(StoreFull):
            append(store, "b", "c")
        rows = pa.RecordBatch.from_pylist([{"value": b"", "topic": "d"}], schema=SINK_SCHEMA)
        with pytest.raises(StoreFull):
            store.appender.append_batch("q", 1, [rows], sender="s", split=lambda rows: {0: rows}, now=1)
    append(store, "c", "b")
    assert [read(store, topic) for topic in "abcd"] == [[0], [2], [1], []]


def test_topics_are_known_after_the_log_was_opened_again(tmp_path: Path) -> None:
    for turn in range(3):
        store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
        append(store, "a", f"turn.{turn}")
        assert read(store, "turn.*") == list(range(1, 2 * turn + 2, 2))
        assert read(store, "a") == list(range(0, 2 * turn + 2, 2))
        store.close()


def test_events_whose_topics_a_promoted_copy_did_not_get_are_all_looked_at(tmp_path: Path) -> None:
    store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
    append(store, "a", "b")
    append(store, "c")
    store.close()
    with lmdb.open(str(tmp_path / "index"), max_dbs=32, map_size=64 * 1024 * 1024) as environment:
        segments, topics, contents = (environment.open_db(name) for name in (b"segments", b"topics", b"contents"))
        with environment.begin(write=True) as transaction:
            for key, value in list(transaction.cursor(segments).iternext()):
                bare = value[:-12]  # without what it says of topics, and the checksum
                transaction.put(key, bare + crc32(bare, crc32(key)).to_bytes(4), db=segments)
            for table in (topics, contents):
                transaction.drop(table, delete=False)
    (tmp_path / "index" / "witness").unlink()
    store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
    append(store, "a", "d")
    assert [read(store, topic) for topic in "abcd"] == [[0, 3], [1], [2], [4]]
    assert [first(store, topic) for topic in "abcd"] == [0, 0, 2, 3]
    assert first(store, "b", start=2) == 5, "the chunks themselves name their topics"
    store.retainer.trim(0, 2)
    with pytest.raises(DataLost):
        read(store, "d")  # of which topics those were is not known
    store.close()


@pytest.mark.parametrize(
    ("table", "number"),
    [("topics", 0), ("topics", -1), ("chunks", 3), ("chunks", -1), ("segments", 1), ("segments", -1)],
)
def test_what_the_index_lacks_is_not_taken_for_what_is_not_wanted(tmp_path: Path, table: str, number: int) -> None:
    store = make_store(tmp_path, segment_bytes=4096)
    for turn in range(20):
        append(store, *["noise"] * 10, f"topic.{turn}")
    store.close()
    with lmdb.open(str(tmp_path / "index"), max_dbs=16, map_size=64 * 1024 * 1024) as environment:
        database = environment.open_db(table.encode())
        with environment.begin(write=True) as transaction:
            keys = list(transaction.cursor(database).iternext(values=False))
            transaction.delete(keys[number], db=database)
    (tmp_path / "index" / "witness").unlink()
    with pytest.raises(LogDamaged):  # by opening it, or by reading
        read_again(tmp_path)


def read_again(directory: Path) -> None:
    with closing(make_store(directory, segment_bytes=4096)) as store:
        read(store, "topic.*")


def test_what_a_chunk_holds_is_looked_up_in_it_if_the_index_has_forgotten(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    append(store, "a", "b")
    append(store, "b", "c")
    store.close()
    with lmdb.open(str(tmp_path / "index"), max_dbs=16, map_size=64 * 1024 * 1024) as environment:
        database = environment.open_db(b"contents")
        with environment.begin(write=True) as transaction:
            for key in list(transaction.cursor(database).iternext(values=False)):
                transaction.delete(key, db=database)
    (tmp_path / "index" / "witness").unlink()
    store = make_store(tmp_path)
    assert [read(store, topic) for topic in "abcd"] == [[0], [1, 2], [3], []]
    assert [first(store, topic, start=1) for topic in "abcd"] == [4, 1, 2, 4]
    store.close()


# -- what is gone --------------------------------------------------------------------------------------------


def test_who_reads_other_topics_has_lost_nothing(store: Store) -> None:
    append(store, "silent", "noise")
    for _ in range(40):
        append(store, *["noise"] * 10)
    store.retainer.trim(0, 300)
    assert store.reader.look(0, 1, TopicFilter(["silent"])).earliest == 2, "the chunk with its last event"
    assert read(store, "silent", start=2) == []
    assert read(store, "none", start=0) == []
    for lost in (["silent"], ["noise"], ["si*", "silent"], [">"]):
        with pytest.raises(DataLost, match="trimmed"):
            read(store, *lost, start=0)
    append(store, "silent")
    assert read(store, "silent", start=2) == [402]
    assert first(store, "silent", start=2) == 402


def test_what_was_removed_is_known_after_the_log_was_opened_again(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    append(store, "a")
    append(store, "b")
    store.retainer.trim(0, 1)
    store.close()
    store = make_store(tmp_path)
    assert read(store, "b") == [1]
    with pytest.raises(DataLost):
        read(store, "a")
    store.close()


def test_of_many_topics_those_that_went_first_are_put_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.log.topics.removals.MAX_REMOVALS", 8)
    for number in range(12):
        append(store, f"t.{number}")
    store.retainer.trim(0, 12)
    append(store, "end")
    assert read(store, "t.11", start=12) == []
    assert read(store, "unheard", start=6) == []
    with pytest.raises(DataLost):
        read(store, "unheard", start=5)  # six are named, the others are known to be gone up to there


# -- anything in any order -----------------------------------------------------------------------------------

topics = st.sampled_from(["a", "b", "c.x", "c.y"])
steps = st.one_of(st.lists(topics, min_size=1, max_size=12), st.integers(0, 60), st.just("reopen"))


@settings(max_examples=25, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([("a",), ("c.*",), ("b", "c.x"), (">",), ("none",)]))
def test_filtered_reading_is_reading_and_filtering(
    tmp_path_factory: pytest.TempPathFactory, plan: list[object], patterns: tuple[str, ...]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    store = make_store(directory, segment_bytes=4096)
    model: list[str] = []
    wanted = TopicFilter(patterns)
    for step in plan:
        match step:
            case list():
                topics = cast("list[str]", step)
                append(store, *topics)
                model += topics
            case int():
                store.retainer.trim(0, step)
            case _:
                store.close()
                store = make_store(directory, segment_bytes=4096)
        (state,) = store.shards()
        expected = [at for at in range(state.earliest, len(model)) if wanted.wants(model[at])]
        if state.earliest < state.next:
            assert read(store, *patterns, start=state.earliest) == expected
        for start in range(state.earliest, state.next + 1):
            left = [at for at in expected if at >= start]
            found = store.reader.look(0, start, wanted)
            assert (found.first < found.next) == bool(left)
            assert not left or found.first <= left[0]
            limited = store.reader.look(0, start, wanted, limit=3)
            assert limited.count == min(3, len(left))
            assert [at for at in left if at < limited.upto] == left[:3]
    store.close()
