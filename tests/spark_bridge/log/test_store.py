"""The log: what was appended is there, once, in order, whatever happened in between."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.admin import verify_log
from iris.spark_bridge.errors import DataLost, LogDamaged, StaleBatch
from iris.spark_bridge.log import publishers as publishers_module
from iris.spark_bridge.log.chunk_io import CHUNK_EVENTS
from iris.spark_bridge.log.index import Index
from iris.spark_bridge.log.quota import Quota
from iris.spark_bridge.log.records import CHUNKS, MEMBERS, SEGMENTS, SHARDS, ChunkPlace, SegmentRecord, all_shards
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.transaction import Transaction
from tests.support.arrivals import PUBLISHER, fake_event, fill, make_store, numbered, payloads, stored

SMALL_SEGMENT = 8192  # a few appends fill it


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make_store(tmp_path / "log", shards=(0, 1), segment_bytes=SMALL_SEGMENT)
    yield store
    store.close()


# -- appending and reading -----------------------------------------------------------------------------------


def test_events_are_numbered_from_0_in_each_shard(store: Store) -> None:
    appended = store.appender.append({0: numbered(1, 3), 1: numbered(4, 5)}, now=7)
    assert (appended.count, appended.repeats) == (5, 0)
    assert [(s.number, s.earliest, s.next, s.timestamp) for s in store.shards()] == [(0, 0, 3, 7), (1, 0, 2, 7)]
    assert stored(store, 0) == [b"1", b"2", b"3"]
    assert stored(store, 1) == [b"4", b"5"]


def test_reading_gives_the_chunks_that_hold_the_range(store: Store) -> None:
    fill(store, 5)
    epoch = store.shards()[0].epoch
    chunks = store.reader.read(0, epoch, 15, 35, max_bytes=1 << 20)
    assert [(c.first, c.end) for c in chunks] == [(10, 20), (20, 30), (30, 40)]
    assert payloads(chunks[:1]) == [b"%d" % n for n in range(10, 20)]


def test_reading_stops_at_its_limit_but_gives_one_chunk_in_any_case(store: Store) -> None:
    fill(store, 5)
    epoch = store.shards()[0].epoch
    assert [c.first for c in store.reader.read(0, epoch, 0, 50, max_bytes=1)] == [0]
    size = len(store.reader.read(0, epoch, 0, 1, max_bytes=1)[0].data)
    assert [c.first for c in store.reader.read(0, epoch, 0, 50, max_bytes=3 * size)] == [0, 10]


@pytest.mark.parametrize(("start", "end"), [(0, 51), (5, 5), (6, 5), (50, 51)])
def test_a_range_that_is_empty_or_beyond_the_end_is_refused(store: Store, start: int, end: int) -> None:
    fill(store, 5)
    with pytest.raises(ValueError, match="ends at 50"):
        store.reader.read(0, store.shards()[0].epoch, start, end, max_bytes=1)


def test_another_epoch_is_lost_data(store: Store) -> None:
    fill(store, 1)
    with pytest.raises(DataLost, match="wiped"):
        store.reader.read(0, "00" * 8, 0, 1, max_bytes=1)


def test_a_large_append_is_cut_into_chunks(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.appender.append({0: [fake_event(b"") for _ in range(CHUNK_EVENTS + 1)]}, now=0)
    store.appender.append({0: [fake_event(bytes(400_000)) for _ in range(3)]}, now=0)
    state = store.shards()[0]
    chunks = store.reader.read(0, state.epoch, 0, state.next, max_bytes=1 << 30)
    assert [c.count for c in chunks] == [CHUNK_EVENTS, 1, 2, 1]
    store.close()


def test_timestamps_never_decrease(store: Store) -> None:
    for now in (5, 3, 9):
        store.appender.append({0: [fake_event()]}, now=now)
    chunks = store.reader.read(0, store.shards()[0].epoch, 0, 3, max_bytes=1 << 20)
    assert [c.timestamp for c in chunks] == [5, 5, 9]


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(-1, 0), (0, 0), (1, 10), (1000, 10), (1001, 20), (4000, 40), (4001, 50)]
)
def test_an_offset_is_found_by_time(store: Store, timestamp: int, offset: int) -> None:
    fill(store, 5)
    assert store.reader.offset_at(0, timestamp) == offset


def test_an_offset_found_by_time_is_not_below_the_earliest(store: Store) -> None:
    fill(store, 5)
    store.retainer.trim(0, 15)
    assert [store.reader.offset_at(0, t) for t in (0, 1000, 1001)] == [15, 15, 20]


def test_an_empty_shard_has_no_offset_by_time_but_its_next(store: Store) -> None:
    assert store.reader.offset_at(1, 0) == 0


# -- repeats -------------------------------------------------------------------------------------------------


def test_repeats_are_stored_once(store: Store) -> None:
    store.appender.append({0: numbered(1, 5)}, now=0)
    again = store.appender.append({0: numbered(4, 8)}, now=1)
    assert (again.count, again.repeats) == (3, 2)
    assert stored(store) == [b"%d" % n for n in range(1, 9)]


def test_an_append_says_what_the_next_transaction_reads(store: Store) -> None:
    def change(view: Transaction) -> dict[int, list[EventRun]]:
        view.put(MEMBERS, 7, "bridge.7")
        return {1: [fake_event(b"more", topic="c")]}

    first = store.appender.append({0: [fake_event(first=1)], 1: [fake_event(first=3)]}, now=5, change=change)
    assert (first.number, first.shards) == store.numbered_shards()
    assert first.topics == {"a.b", "c"}
    gap = store.appender.append({0: [fake_event(first=6)]}, now=6)
    assert (gap.number, gap.shards, gap.missed) == (*store.numbered_shards(), 2)
    nothing = store.appender.append({}, now=7, change=lambda _: {})
    assert (nothing.number, nothing.shards, nothing.topics) == (gap.number, gap.shards, frozenset())


def test_an_append_of_repeats_alone_leaves_the_log_as_it_is(store: Store) -> None:
    store.appender.append({0: numbered(1, 5)}, now=0)
    before = store.shards()
    assert store.appender.append({0: numbered(1, 5)}, now=1).repeats == 5
    assert store.shards() == before


def test_repeats_are_known_after_the_log_was_opened_again(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.appender.append({0: numbered(1, 5)}, now=0)
    store.close()
    store = make_store(tmp_path)
    assert store.appender.append({0: numbered(3, 6)}, now=1).repeats == 3
    assert stored(store) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    store.close()


def test_publishers_that_are_silent_for_long_are_forgotten(store: Store) -> None:
    other = "cd" * 16
    store.appender.append({0: numbered(1, 2)}, now=100)
    store.appender.append({0: numbered(1, 2, publisher=other)}, now=200)
    assert store.retainer.forget_publishers(150) == 1
    assert store.appender.append({0: numbered(1, 2, publisher=other)}, now=300).repeats == 2
    assert store.appender.append({0: numbered(1, 2, publisher=PUBLISHER)}, now=300).repeats == 0


# -- verifying -----------------------------------------------------------------------------------------------


def tree(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path.relative_to(directory)), path.stat().st_size) for path in directory.rglob("*"))


def test_verifying_changes_nothing_and_goes_on_where_a_segment_is_missing(tmp_path: Path) -> None:
    store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
    fill(store, 12)
    epoch = store.shards()[0].epoch
    store.close()
    (tmp_path / "segments" / f"00000-{epoch}-{9999:020d}.segment").write_bytes(b"the rest of a crash")
    first, second, last, _ = sorted((tmp_path / "segments").iterdir())
    first.unlink()
    with last.open("r+b") as file:
        file.write(b"damage")
    left = int(second.stem.rpartition("-")[2])
    before = tree(tmp_path)
    findings = list(verify_log(tmp_path))
    assert [finding.offset for finding in findings if finding.damage] == [
        *range(0, left, 10),
        int(last.stem.rpartition("-")[2]),
    ]
    assert ["is missing" in finding.damage for finding in findings if finding.damage] == [True] * (left // 10) + [False]
    assert tree(tmp_path) == before


def test_a_batch_is_stored_behind_the_one_that_its_writer_went_on_from_and_behind_no_other(store: Store) -> None:
    def append(batch: int, after: int | None) -> bool:
        appended = store.appender.append_batch(
            "query", batch, [], sender="s", split=lambda rows: {0: rows}, now=1, after=after
        )
        return appended is not None

    assert store.appender.last_batch("query") is None
    with pytest.raises(StaleBatch, match="somebody else writes"):
        append(7, 3)
    assert append(7, 0)
    assert not append(7, 0)  # a repeat, of which the answer was lost
    with pytest.raises(StaleBatch, match="batch 7 is the last one"):
        append(9, 0)
    assert store.appender.last_batch("query") == 7
    assert append(9, 7)
    assert append(12, None)
    assert store.appender.last_batch("query") == 12


def test_verifying_finds_damage_in_what_repeats_are_known_by(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.appender.append({0: numbered(1, 5)}, now=0)
    store.appender.append_batch("query", 3, [], sender="s", split=lambda rows: {0: rows}, now=1)
    store.close()
    assert [finding.damage for finding in verify_log(tmp_path)] == [None]
    path = tmp_path / "index" / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.rindex(b"query")
    data[at + len(b"query")] ^= 1  # the number of its last batch
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match="table 'sinks'"):
        list(verify_log(tmp_path))


@pytest.mark.parametrize("there", [(), ("index",), ("index", "index/HEAD")])
def test_a_directory_without_a_log_is_not_made_one_by_looking_at_it(tmp_path: Path, there: tuple[str, ...]) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="there is no log in"):
        list(verify_log(tmp_path))
    assert tree(tmp_path) == before


def test_a_log_of_100_million_events_opens_at_once(tmp_path: Path) -> None:
    make_store(tmp_path).close()
    events, per_chunk = 100_000_000, 1000
    index = Index(tmp_path / "index", map_bytes=64 * 1024 * 1024)
    with index.write() as view:
        (shard,) = all_shards(view)
        for first in range(0, events, per_chunk):
            place = ChunkPlace(first=first, count=per_chunk, timestamp=first, segment=0, position=0, size=1)
            view.put(CHUNKS, (0, first), place)
        segment = SegmentRecord(first=0, end=events, size=1, written=0, last_timestamp=events)
        view.put(SEGMENTS, (0, 0), segment)
        view.put(SHARDS, 0, type(shard)(number=0, epoch=shard.epoch, earliest=0, next=events, timestamp=events))
    index.close()
    (tmp_path / "segments" / f"00000-{shard.epoch}-{0:020d}.segment").write_bytes(b"")
    begin = time.thread_time()
    store = make_store(tmp_path)
    state = store.shards()[0]
    found = store.reader.offset_at(0, events // 2)
    assert time.thread_time() - begin < 2
    assert (state.next, found) == (events, events // 2)
    store.close()


# -- damage --------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_reported_with_its_place_and_spares_the_rest(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    fill(store, 3)
    epoch = store.shards()[0].epoch
    size = len(store.reader.read(0, epoch, 0, 1, max_bytes=1)[0].data) + 64
    path = next((tmp_path / "segments").iterdir())
    with path.open("r+b") as file:
        file.seek(size + 200)
        byte = file.read(1)
        file.seek(size + 200)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(LogDamaged, match=path.name):
        store.reader.read(0, epoch, 10, 20, max_bytes=1)
    assert payloads(store.reader.read(0, epoch, 20, 30, max_bytes=1)) == [b"%d" % n for n in range(20, 30)]
    store.close()


def test_a_chunk_in_the_wrong_place_is_noticed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for _ in range(2):
        store.appender.append({0: [fake_event(b"same") for _ in range(10)]}, now=0)
    epoch = store.shards()[0].epoch
    path = next((tmp_path / "segments").iterdir())
    size = len(store.reader.read(0, epoch, 0, 1, max_bytes=1)[0].data) + 64
    with path.open("r+b") as file:
        first = file.read(size)
        file.seek(size)
        file.write(first)
    with pytest.raises(LogDamaged, match="not the one"):
        store.reader.read(0, epoch, 10, 20, max_bytes=1)
    store.close()


# -- cursors -------------------------------------------------------------------------------------------------


def test_a_pinned_cursor_stays_where_the_first_pin_put_it(store: Store) -> None:
    assert store.cursors.pin("g", {"0@x": 5}, now=1).start == {"0@x": 5}
    assert store.cursors.pin("g", {"0@x": 9}, now=2).start == {"0@x": 5}
    store.cursors.move("g", {"0@x": 7}, now=3)
    assert store.cursors.pin("g", {"0@x": 9}, now=4).start == {"0@x": 5}
    (cursor,) = store.cursors.all()
    assert (cursor.group, cursor.offsets, cursor.timestamp) == ("g", {"0@x": 7}, 3)


def test_a_dropped_cursor_can_be_pinned_anew(store: Store) -> None:
    store.cursors.pin("g", {"0@x": 5}, now=1)
    assert store.cursors.drop("g")
    assert not store.cursors.drop("g")
    assert store.cursors.pin("g", {"0@x": 9}, now=2).start == {"0@x": 9}


def test_cursors_survive(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.cursors.pin("g", {"0@x": 5}, now=1)
    store.close()
    store = make_store(tmp_path)
    assert [c.group for c in store.cursors.all()] == ["g"]
    store.close()


# -- trimming ------------------------------------------------------------------------------------------------


def segment_files(tmp_path: Path) -> int:
    return len(list((tmp_path / "log" / "segments").iterdir()))


def test_trimmed_events_are_gone_and_the_rest_stays(store: Store, tmp_path: Path) -> None:
    expected = fill(store, 20)
    before = segment_files(tmp_path)
    assert store.retainer.trim(0, 105) == 105
    assert stored(store) == expected[105:]
    assert segment_files(tmp_path) < before
    with pytest.raises(DataLost, match="trimmed"):
        store.reader.read(0, store.shards()[0].epoch, 104, 110, max_bytes=1)
    assert store.retainer.trim(0, 50) == 0


def test_a_log_that_was_trimmed_away_goes_on_numbering(store: Store, tmp_path: Path) -> None:
    fill(store, 20)
    assert store.retainer.trim(0, 1_000_000) == 200
    state = store.shards()[0]
    assert (state.earliest, state.next, state.size, segment_files(tmp_path)) == (200, 200, 0, 0)
    store.appender.append({0: [fake_event(b"more")]}, now=10**9)
    assert stored(store) == [b"more"]
    assert store.shards()[0].next == 201


def test_retention_removes_by_size_and_spares_unread_events(store: Store) -> None:
    fill(store, 20)
    state = store.shards()[0]
    store.cursors.pin("g", {state.id: 60}, now=0)
    limit = Retention(max_bytes=SMALL_SEGMENT, keep_unread=True)
    store.retainer.retain(limit, now=0)
    assert 0 < store.shards()[0].earliest <= 60
    store.cursors.move("g", {state.id: 200}, now=0)
    assert store.retainer.retain(limit, now=0) > 0
    assert SMALL_SEGMENT <= store.shards()[0].size < 2 * SMALL_SEGMENT


def test_events_stored_while_a_clock_was_ahead_do_not_keep_those_behind_them_for_ever(store: Store) -> None:
    second, year = 10**6, 365 * 24 * 3600 * 10**6
    kept = Retention(max_age=60)
    events = [fake_event(bytes(100))] * 20
    for now in (year, 50 * year, year + second, year + 2 * second):
        for _ in range(4):  # more than a segment
            store.appender.append({0: events}, now=now)
    assert store.retainer.retain(kept, now=year + 30 * second) == 0
    assert store.retainer.retain(kept, now=year + 90 * second) == 320


# -- anything in any order -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Append:
    shard: int
    numbers: list[int]


@dataclass(frozen=True)
class Trim:
    shard: int
    before: int


@dataclass(frozen=True)
class Reopen:
    pass


Step = Append | Trim | Reopen
shards = st.integers(0, 1)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Append, shards, st.lists(st.integers(1, 60), min_size=1, max_size=30)),
    st.builds(Trim, shards, st.integers(0, 120)),
    st.just(Reopen()),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=15))
def test_a_log_is_a_list_that_forgets_its_beginning(
    tmp_path_factory: pytest.TempPathFactory, plan: list[object]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    entropy = Random(0).randbytes

    def opened() -> Store:
        return open_store(
            directory, shards=(0, 1), entropy=entropy, segment_bytes=SMALL_SEGMENT, map_bytes=64 * 1024 * 1024
        )

    store = opened()
    model: dict[int, list[bytes]] = {0: [], 1: []}
    earliest = {0: 0, 1: 0}
    seen: set[int] = set()
    for now, step in enumerate(plan):
        match step:
            case Append(shard, numbers):
                store.appender.append({shard: [e for n in numbers for e in numbered(n, n)]}, now=now)
                model[shard] += [b"%d" % n for n in dict.fromkeys(numbers) if n not in seen]
                seen |= set(numbers)
            case Trim(shard, before):
                store.retainer.trim(shard, before)
                earliest[shard] = max(earliest[shard], min(before, len(model[shard])))
            case _:
                store.close()
                store = opened()
        for state in store.shards():
            assert (state.earliest, state.next) == (earliest[state.number], len(model[state.number]))
            assert stored(store, state.number) == model[state.number][state.earliest :]
    store.close()


def arrivals(publisher: int, *, cluster: str, numbers: Sequence[int]) -> list[EventRun]:
    """Return events of a node of a cluster, with these numbers."""
    node = NodeId(f"{publisher:032x}")
    sender = Sender(cluster, node)
    return [fake_event(b"x", sequence=number, publisher=node, sender=sender, first=number) for number in numbers]


def publishers_of(store: Store, cluster: str) -> int:
    with store.read_transaction() as view:
        return Quota(view, "publishers").used(cluster)


def test_what_is_known_of_publishers_is_counted_by_cluster_and_forgotten_of_those_silent_for_longest(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path)
    honest = arrivals(1, cluster="honest", numbers=range(1, 10))
    store.appender.append({0: honest}, now=1)
    most = 0
    wide = [1 + 4096 * block for block in range(200)]
    for publisher in range(2, 60):
        # Each uses as many blocks of its window as it can with few events.
        store.appender.append({0: arrivals(publisher, cluster="evil", numbers=wide)}, now=publisher)
        most = max(most, publishers_of(store, "evil"))
    assert 3 * MIB < most <= 4 * MIB, "a sixteenth of the 64 MiB of this log's index"
    assert store.appender.append({0: honest}, now=60).repeats == 9, "another cluster's are known"
    assert store.appender.append({0: arrivals(59, cluster="evil", numbers=wide)}, now=61).repeats == 200
    assert store.appender.append({0: arrivals(2, cluster="evil", numbers=wide[-1:])}, now=62).count == 1, (
        "was forgotten"
    )
    store.retainer.forget_publishers(100)
    assert publishers_of(store, "evil") == publishers_of(store, "honest") == 0
    store.close()


def test_topics_of_a_publisher_are_counted_too(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    sender = Sender("many", NodeId("cd" * 16))
    counted = 0
    for turn in (1, 2):
        runs = [
            fake_event(
                b"x", topic=f"t.{turn}.{n}", sequence=turn * 1000 + n, publisher="cd" * 16, sender=sender, first=1
            )
            for n in range(300)
        ]
        store.appender.append({0: runs}, now=turn)
        assert publishers_of(store, "many") - counted > 300 * 100
        counted = publishers_of(store, "many")
        store.close()
        store = make_store(tmp_path)
        assert publishers_of(store, "many") == counted
    store.appender.append({0: arrivals(int("cd" * 16, 16), cluster="many", numbers=[5000])}, now=3)
    assert 0 < publishers_of(store, "many") - counted < 2000
    store.retainer.forget_publishers(100)
    assert publishers_of(store, "many") == 0
    store.close()


def test_what_is_not_in_memory_of_a_publisher_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("_WINDOWS_OF_OWNER", "_NUMBERINGS_OF_OWNER"):
        monkeypatch.setattr(publishers_module, bound, 1)
    store = make_store(tmp_path)
    for number in (1, 2, 4):
        for publisher in (1, 2, 3):
            appended = store.appender.append({0: arrivals(publisher, cluster="many", numbers=[number])}, now=number)
            assert (appended.count, appended.repeats) == (1, 0)
    for publisher in (1, 2, 3):
        assert store.appender.append({0: arrivals(publisher, cluster="many", numbers=[1, 2, 4])}, now=5).repeats == 3
    assert {number for number, *_ in [(state.next,) for state in store.shards()]} == {9}
    store.close()
