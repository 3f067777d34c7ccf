"""Rules of topics: what is to go goes, the last value of a key stays whatever happens, and offsets stay."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError
from iris.kernel.wire import encode_payload
from iris.spark_bridge.errors import DataLost, LogDamaged, StoreFull
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.records import last_segment, segments_of
from iris.spark_bridge.log.retention import Retention, TopicRetention, parse_rule
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.topics import compaction
from iris.spark_bridge.log.topics.filter import TopicFilter
from tests.support.arrivals import fake_event, make_store
from tests.support.power_cut import PowerCut, TornDisk

ROOT = Path(__file__).resolve().parents[4]
SMALL_SEGMENT = 16_384
SECOND = 1_000_000
LAST = Retention(rules=(TopicRetention(pattern="state.>", last_value=True),))

Row = tuple[str, str | None, bytes]
"""Topic, key and payload."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
    yield store
    store.close()


def append(store: Store, rows: Sequence[Row], *, now: int = 0) -> None:
    store.appender.append({0: [fake_event(payload, topic=topic, key=key) for topic, key, payload in rows]}, now=now)


def rows_of(store: Store, start: int | None = None, *patterns: str) -> dict[int, Row]:
    """Return the events by offset, as a reader gets them; every offset is covered once."""
    (state,) = store.shards()
    found: dict[int, Row] = {}
    at = state.earliest if start is None else start
    while at < state.next:
        chunks = store.reader.read(
            0, state.epoch, at, state.next, max_bytes=3000, wanted=TopicFilter(patterns), exact=True
        )
        for chunk in chunks:
            assert chunk.first <= at < chunk.end, "a gap between chunks"
            for row in decode_events(chunk.data).to_pylist():
                assert chunk.first <= row["offset"] < chunk.end
                if row["offset"] >= at:
                    key = None if row["key"] is None else row["key"].decode()
                    found[row["offset"]] = (row["topic"], key, row["value"])
            at = chunk.end
    return found


def changes(turns: int, keys: int = 8) -> list[list[Row]]:
    """Return appends in which each key gets a new value."""
    return [
        [("state.x", f"k{key}", b"%d of %d" % (turn, key) + bytes(100)) for key in range(keys)] for turn in range(turns)
    ]


def fill(store: Store, turns: int, keys: int = 8) -> dict[int, Row]:
    """Append changes; return what stands at which offset."""
    every: list[Row] = []
    for rows in changes(turns, keys):
        append(store, rows)
        every += rows
    return dict(enumerate(every))


def segment_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "segments").iterdir())


# -- the last value of each key --------------------------------------------------------------------------------


def test_of_each_key_the_last_value_stays_and_offsets_do(store: Store) -> None:
    every = fill(store, 60)
    before = store.shards()[0]
    assert store.retainer.retain(LAST, now=0) > 300
    left = rows_of(store)
    assert left.items() <= every.items(), "an event has another offset or other contents"
    assert [left[at] for at in range(472, 480)] == changes(60)[-1]
    after = store.shards()[0]
    assert (after.epoch, after.next) == (before.epoch, before.next)
    assert after.size < before.size / 2
    assert store.retainer.retain(LAST, now=0) == 0
    assert not [damage for _, _, damage in store.reader.verify() if damage]


def test_a_key_that_has_not_changed_for_long_keeps_its_value(store: Store) -> None:
    append(store, [("state.x", "old", b"precious"), ("state.y", None, b"alone"), ("state.y", "k", b"another")])
    fill(store, 60)
    store.retainer.retain(LAST, now=0)
    assert [rows_of(store)[at][2] for at in range(3)] == [b"precious", b"alone", b"another"]


def test_a_value_in_the_segment_that_grows_supersedes_and_stays(store: Store, tmp_path: Path) -> None:
    fill(store, 30)
    count = len(segment_files(tmp_path))
    append(store, [("state.x", f"k{key}", b"new") for key in range(8)])
    assert len(segment_files(tmp_path)) == count, "it is not the only one of its segment"
    store.retainer.retain(LAST, now=0)
    left = rows_of(store)
    assert [left[at][2] for at in range(240, 248)] == [b"new"] * 8
    with_growing = make_growing(store)
    assert all(at in with_growing for at in left), "what was closed is superseded by what still grows"


def make_growing(store: Store) -> range:
    """Return the offsets of the segment that is appended to."""
    with store.read_transaction() as view:
        segment = last_segment(view, 0)
    assert segment is not None
    return range(segment.first, segment.end)


def test_topics_without_the_rule_keep_everything(store: Store) -> None:
    every: dict[int, Row] = {}
    for turn, rows in enumerate(changes(60)):
        rows.insert(4, ("log.x", "k", b"line %d" % turn))
        every |= dict(enumerate(rows, len(every)))
        append(store, rows)
    store.retainer.retain(LAST, now=0)
    logs = {at: row for at, row in every.items() if row[0] == "log.x"}
    assert {at: row for at, row in rows_of(store).items() if row[0] == "log.x"} == logs
    assert rows_of(store, 0, "log.>") == logs


def test_reading_from_an_offset_that_was_compacted_goes_on_at_the_next_event(store: Store) -> None:
    fill(store, 60)
    store.retainer.retain(LAST, now=0)
    left = rows_of(store, 0)
    for start in range(0, 480, 7):
        assert rows_of(store, start) == {at: row for at, row in left.items() if at >= start}
        found = store.reader.look(0, start, TopicFilter(["state.x"]), limit=3)
        assert [at for at in left if start <= at < found.upto] == [at for at in left if at >= start][:3]


def test_few_superseded_events_are_no_reason_to_write_a_segment_anew(store: Store, tmp_path: Path) -> None:
    append(store, [("state.x", "k", b"old"), *(("state.x", f"other{number}", bytes(100)) for number in range(30))])
    append(store, [("log", None, bytes(SMALL_SEGMENT))])
    append(store, [("state.x", "k", b"new")])
    before = segment_files(tmp_path)
    store.retainer.retain(LAST, now=0)
    assert segment_files(tmp_path) == before


def test_a_full_map_of_keys_ends_a_run_and_the_next_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_KEYS", 10)
    every = fill(store, 40, keys=16)
    for _ in range(60):
        store.retainer.retain(LAST, now=0)
    left = rows_of(store)
    assert len(left) < 300
    assert left.items() <= every.items()
    assert all(at in left for at in range(624, 640))


# -- age and size ------------------------------------------------------------------------------------------------


def timed(store: Store, seconds: int) -> None:
    for now in range(seconds):
        rows: list[Row] = [("short.x", None, bytes(200)), ("long.x", None, bytes(200)), ("other", None, bytes(200))]
        append(store, rows * 5, now=now * SECOND)


def oldest(store: Store, topic: str) -> int:
    """Return the second in which the oldest event of a topic was stored."""
    return min(at for at, row in rows_of(store).items() if row[0] == topic) // 15


def test_each_topic_is_kept_for_as_long_as_its_rule_says(store: Store) -> None:
    timed(store, 200)
    kept = Retention(
        max_age=120, rules=(TopicRetention(pattern="short.>", max_age=30), TopicRetention(pattern="long.*"))
    )
    store.retainer.retain(kept, now=200 * SECOND)
    assert oldest(store, "long.x") == 0
    assert 75 < oldest(store, "other") <= 80
    assert 165 < oldest(store, "short.x") <= 170
    assert rows_of(store, 0, "long.x").keys() == {15 * second + at for second in range(200) for at in (1, 4, 7, 10, 13)}


def test_each_topic_is_kept_up_to_its_size(store: Store) -> None:
    timed(store, 100)
    each = store.shards()[0].size / 1500
    rule = TopicRetention(pattern="short.>", max_bytes=50_000)
    store.retainer.retain(Retention(rules=(rule,)), now=0)
    left = sum(row[0] == "short.x" for row in rows_of(store).values())
    assert 50_000 <= left * each < 50_000 + SMALL_SEGMENT
    assert oldest(store, "other") == 0


def test_segments_in_which_everything_is_to_go_are_not_written_anew(store: Store) -> None:
    timed(store, 100)
    kept = Retention(max_age=20, rules=(TopicRetention(pattern="short.>", max_age=20),))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(SegmentFiles, "rewrite")
        assert store.retainer.retain(kept, now=150 * SECOND) > 1000
    assert store.shards()[0].earliest > 1000


def test_the_first_rule_that_matches_counts(store: Store) -> None:
    timed(store, 100)
    rules = (TopicRetention(pattern="short.x"), TopicRetention(pattern="short.>", max_age=1))
    assert store.retainer.retain(Retention(rules=rules), now=200 * SECOND) == 0


def test_a_segment_that_grows_slowly_is_ended_when_its_age_matters(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    kept = Retention(rules=(TopicRetention(pattern="short", max_age=400),))
    for now in range(0, 1000, 50):
        append(store, [("short", None, b"s"), ("other", None, b"o")], now=now * SECOND)
        store.retainer.retain(kept, now=now * SECOND)
    left = rows_of(store)
    assert [row[0] for row in left.values()].count("other") == 20
    assert 8 <= [row[0] for row in left.values()].count("short") <= 14
    store.close()


def test_what_a_group_has_not_read_stays_if_that_is_wanted(store: Store) -> None:
    every = fill(store, 60)
    state = store.shards()[0]
    store.cursors.pin("g", {state.id: 200}, now=0)
    store.retainer.retain(Retention(rules=LAST.rules, keep_unread=True), now=0)
    left = rows_of(store, 0)
    assert {at: row for at, row in left.items() if at >= 200} == {at: row for at, row in every.items() if at >= 200}
    assert len(left) < 400


def test_what_a_rule_removes_with_its_segment_is_known_to_be_gone(store: Store) -> None:
    timed(store, 100)
    append(store, [("silent", None, b"x")], now=0)
    kept = Retention(max_age=20, rules=(TopicRetention(pattern="short.>", max_age=20),))
    store.retainer.retain(kept, now=150 * SECOND)
    with pytest.raises(DataLost):
        rows_of(store, 0, "other")
    assert list(rows_of(store, 0, "silent")) == [1500]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prices.>=24h", TopicRetention(pattern="prices.>", max_age=86_400)),
        ("a=1.5m", TopicRetention(pattern="a", max_age=90)),
        ("logs.*=7d, 10GiB", TopicRetention(pattern="logs.*", max_age=604_800, max_bytes=10 * 2**30)),
        ("s=last,30 s", TopicRetention(pattern="s", max_age=30, last_value=True)),
    ],
)
def test_a_rule_is_read(text: str, expected: TopicRetention) -> None:
    assert parse_rule(text) == expected


@pytest.mark.parametrize("text", ["", "a", "a=", "=24h", "a b=1h", "a=24", "a=1h,2h", "a=0h", "a=last,last", "a=-1h"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_rule(text)


# -- what comes in between -----------------------------------------------------------------------------------------


def test_a_segment_that_is_trimmed_meanwhile_stays_trimmed(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    every = fill(store, 60)
    real = SegmentFiles.rewrite

    def trim_first(files: SegmentFiles, *where: object, **options: object) -> None:
        store.retainer.trim(0, 300)
        real(files, *where, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentFiles, "rewrite", trim_first)
    store.retainer.retain(LAST, now=0)
    assert min(rows_of(store)) >= 300
    assert rows_of(store).items() <= every.items()
    with store.read_transaction() as view:
        assert len(segment_files(tmp_path)) == len(segments_of(view, 0))


def test_a_reader_whose_segment_is_written_anew_meanwhile_reads_the_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 60)
    real, compacted = SegmentFiles.read, False

    def compact_first(files: SegmentFiles, *where: int, **options: int) -> bytes:
        nonlocal compacted
        if not compacted:
            compacted = True
            store.retainer.retain(LAST, now=0)
        return real(files, *where, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentFiles, "read", compact_first)
    assert min(rows_of(store, 0)) > 300


def test_a_full_disk_leaves_everything_as_it_is(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = fill(store, 60)
    before = segment_files(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentFiles, "rewrite", full)
        assert store.retainer.retain(LAST, now=0) == 0
    assert (segment_files(tmp_path), rows_of(store)) == (before, every)


def test_a_damaged_segment_stays_and_is_said(store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    fill(store, 60)
    path = tmp_path / "segments" / segment_files(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        store.retainer.retain(LAST, now=0)
    assert path.read_bytes() == bytes(data)
    assert sum("keeps events that are to go" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(LogDamaged):
        rows_of(store)


# -- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", range(19))
def test_a_power_cut_in_the_middle_loses_nothing(tmp_path: Path, operation: int) -> None:
    disk = TornDisk(random.Random(operation))
    store = make_store(tmp_path, disk=disk, segment_bytes=SMALL_SEGMENT)
    every = fill(store, 40)
    disk.stop_at = disk.operations + operation
    with pytest.raises(PowerCut):
        store.retainer.retain(LAST, now=0)
    store.close()
    disk.lose()
    store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
    left = rows_of(store)
    assert left.items() <= every.items()
    assert [left[at] for at in range(312, 320)] == changes(40)[-1]
    assert not [damage for _, _, damage in store.reader.verify() if damage]
    store.retainer.retain(LAST, now=0)
    assert rows_of(store).items() <= left.items()
    with store.read_transaction() as view:
        assert len(segment_files(tmp_path)) == len(segments_of(view, 0))
    store.close()


COMPACTOR = """
import sys, threading
from pathlib import Path
from tests.spark_bridge.log.topics.test_compaction import LAST, append, make_store, SMALL_SEGMENT
store = make_store(Path(sys.argv[1]), segment_bytes=SMALL_SEGMENT)
compacted = threading.Event()
def compact():
    while True:
        store.retainer.retain(LAST, now=0)
        compacted.set()
threading.Thread(target=compact, daemon=True).start()
at = store.shards()[0].next
while True:
    append(store, [("state.x", f"k{n % 32}", b"%d" % n + bytes(100)) for n in range(at, at + 16)])
    at += 16
    sys.stdout.write(f"{at}\\n")
    sys.stdout.flush()
    if at % 128 == 0:  # however busy the machine is
        compacted.clear()
        compacted.wait()
"""
"""Appends an event for each offset, which is its payload, and compacts all the while."""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_one_that_is_killed_while_it_compacts_loses_nothing(tmp_path: Path, kills: int) -> None:
    chance = random.Random(3)
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", COMPACTOR, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            acknowledged = 0
            for _ in range(chance.randrange(20, 120)):
                acknowledged = int(child.stdout.readline())
            os.kill(child.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, child.stdout)])
        store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
        (state,) = store.shards()
        assert state.next >= acknowledged
        left = rows_of(store)
        assert all(row == ("state.x", f"k{at % 32}", b"%d" % at + bytes(100)) for at, row in left.items())
        assert all(at in left for at in range(max(0, state.next - 32), state.next)), "a key has lost its last value"
        assert len(left) < state.next, "it has not compacted at all"
        assert not [damage for _, _, damage in store.reader.verify() if damage]
        store.close()


# -- anything in any order -----------------------------------------------------------------------------------------

events = st.tuples(st.sampled_from(["state.a", "state.b", "log"]), st.sampled_from([None, "k1", "k2", "k3"]))
steps = st.one_of(
    st.lists(events, min_size=1, max_size=12),
    st.sampled_from(["retain", "retain", "reopen"]),
    st.integers(0, 150),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=40))
def test_a_log_that_compacts_never_loses_the_last_value_of_a_key(
    tmp_path_factory: pytest.TempPathFactory, plan: list[object]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    store = make_store(directory, segment_bytes=4096)
    model: list[Row] = []
    for step in plan:
        match step:
            case list():
                named = cast("list[tuple[str, str]]", step)
                rows: list[Row] = [(topic, key, b"%d" % at) for at, (topic, key) in enumerate(named, len(model))]
                append(store, rows)
                model += rows
            case int():
                store.retainer.trim(0, step)
            case "retain":
                store.retainer.retain(LAST, now=0)
            case _:
                store.close()
                store = make_store(directory, segment_bytes=4096)
        (state,) = store.shards()
        left = rows_of(store)
        assert left.items() <= dict(enumerate(model)).items()
        last = {(topic, key): at for at, (topic, key, _) in enumerate(model)}
        needed = {at for at, row in enumerate(model) if row[0] == "log" or last[row[:2]] == at}
        assert {at for at in needed if at >= state.earliest} <= left.keys()
        assert state.next == len(model)
    store.close()


DAY = 86_400 * SECOND


def values_of(store: Store, key: str) -> list[bytes | None]:
    return [value for _, found, value in rows_of(store).values() if found == key]


def end_segment(store: Store, turns: int = 60) -> None:
    """Append so much of other keys that what stands before is in a segment that does not grow any more."""
    fill(store, turns)


def forget(store: Store, key: str, *, now: int = 0) -> None:
    append(store, [("state.x", key, cast("bytes", encode_payload(None, 16)))], now=now)


def test_a_null_value_forgets_its_key_and_is_itself_forgotten_a_day_later(store: Store) -> None:
    append(store, [("state.x", "gone", b"1"), ("state.x", "stays", b"2")])
    end_segment(store)
    forget(store, "gone")
    end_segment(store)
    store.retainer.retain(LAST, now=0)
    assert values_of(store, "gone") == [None], "readers learn of it"
    for turn in range(3):
        store.retainer.retain(LAST, now=DAY - SECOND)
        assert values_of(store, "gone") == [None], turn
    store.retainer.retain(LAST, now=DAY + SECOND)
    assert values_of(store, "gone") == []
    assert values_of(store, "stays") == [b"2"]
    assert store.retainer.retain(LAST, now=2 * DAY) == 0


def test_a_log_that_was_opened_again_forgets_as_well_and_never_the_tombstone_first(tmp_path: Path) -> None:
    for turn in range(6):
        store = make_store(tmp_path, segment_bytes=SMALL_SEGMENT)
        if not turn:
            append(store, [("state.x", "gone", b"1")])
            end_segment(store)
            forget(store, "gone")
            end_segment(store)
        store.retainer.retain(LAST, now=3 * DAY)
        assert values_of(store, "gone") in ([None], []), turn
        store.retainer.retain(LAST, now=3 * DAY)
        assert values_of(store, "gone") == []
        store.close()


def test_a_key_that_comes_back_stays(store: Store) -> None:
    append(store, [("state.x", "k", b"1")])
    end_segment(store)
    forget(store, "k")
    append(store, [("state.x", "k", b"2")])
    end_segment(store)
    for day in range(4):
        store.retainer.retain(LAST, now=day * DAY)
    assert values_of(store, "k") == [b"2"]


def test_a_tombstone_stays_while_what_it_supersedes_cannot_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, [("state.x", "gone", b"1")])
    end_segment(store)
    forget(store, "gone")
    end_segment(store)

    def refuse(*_: object, **__: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentFiles, "rewrite", refuse)
        store.retainer.retain(LAST, now=0)
    for day in range(1, 4):
        store.retainer.retain(LAST, now=day * DAY)
        assert values_of(store, "gone")[-1:] == [None], "without it the former value would be the last one"
    store.retainer.retain(LAST.without_ages(), now=9 * DAY)
    assert values_of(store, "gone")[-1:] == [None]


def test_other_topics_keep_events_without_a_value(store: Store) -> None:
    append(store, [("other", "k", b"1"), ("other", "k", cast("bytes", encode_payload(None, 16)))])
    end_segment(store)
    for day in range(3):
        store.retainer.retain(LAST, now=day * DAY)
    assert values_of(store, "k") == [b"1", None]
