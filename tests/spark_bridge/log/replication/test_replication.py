"""Copies of a log: they catch up from any lag, repeat each transaction, and let go of what is not the primary's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

import msgspec
import pytest

from iris.patterns.pubsub.subscribe.events import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.chunk_io import ShardAppend
from iris.spark_bridge.log.records import CURSORS, REPLICATION, TABLES, Cursor
from iris.spark_bridge.log.replication.journal import (
    ABANDONED,
    ChangeHead,
    LogChange,
    Write,
    decode_change_untrusted,
    encode_head,
)
from iris.spark_bridge.log.replication.replication import Position
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.transaction import Transaction
from tests.support.arrivals import fake_event, fill, make_store, numbered, stored
from tests.support.power_cut import TornDisk
from tests.support.replicas import catch_up, travelled

SEGMENT = 8192


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Store]:
    store = make_store(tmp_path / "primary", segment_bytes=SEGMENT)
    yield store
    store.close()


@pytest.fixture
def open_copy(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the copy, which is closed before it is opened again."""
    opened: list[Store] = []

    def open_it() -> Store:
        while opened:
            opened.pop().close()
        opened.append(make_store(tmp_path / "copy", shards=(), segment_bytes=SEGMENT))
        return opened[-1]

    yield open_it
    while opened:
        opened.pop().close()


def contents(store: Store) -> object:
    """All that two logs have in common if one is a whole copy of the other."""
    with store.read_transaction() as view:
        tables = [[*view.sealed(table)] for table in TABLES.values() if not table.is_own]
    return tables, stored(store)


def test_a_copy_is_the_same_as_its_primary(primary: Store, open_copy: Callable[[], Store]) -> None:
    fill(primary, 50)
    primary.appender.append({0: numbered(1, 20)}, now=50_000)
    primary.cursors.move("group", {"0@x": 7}, now=1)
    copy = open_copy()
    catch_up(primary, copy)
    assert contents(copy) == contents(primary)
    assert copy.replication.position() == Position(1, primary.replication.number(), True)
    assert contents(open_copy()) == contents(primary)


def test_a_copy_that_is_not_whole_can_be_written(primary: Store, open_copy: Callable[[], Store]) -> None:
    """It was promoted by force: it knows the topics of no segment yet."""
    events = fill(primary, 50)
    copy = open_copy()
    catch_up(primary, copy, steps=3)
    (shard,) = copy.shards()
    assert 0 < shard.next < 500
    copy = open_copy()
    copy.appender.append({0: numbered(1, 20)}, now=50_000)
    assert stored(copy) == events[: shard.next] + [b"%d" % number for number in range(1, 21)]


def test_a_copy_of_large_tables_gets_them_in_several_transactions_and_is_whole_after_the_last(
    primary: Store, open_copy: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.spark_bridge.log.replication.replication._REST_BYTES", 1000)
    fill(primary, 50)
    for number in range(100):
        primary.cursors.move(f"group {number}", {"0@x": number}, now=1)
    copy = open_copy()
    catch_up(primary, copy)
    primary.cursors.drop("group 7")
    rest = list(primary.replication.rest({0: 500}, None))
    assert len(rest) > 5
    for change in rest:
        assert copy.replication.position().whole is (change is rest[0])
        copy.replication.repeat([travelled(change)], term=1)
    assert copy.replication.position() == Position(1, primary.replication.number(), True)
    assert contents(copy) == contents(primary)


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "segments").iterdir())


def test_a_copy_repeats_each_transaction(primary: Store, open_copy: Callable[[], Store], tmp_path: Path) -> None:
    copy = open_copy()
    catch_up(primary, copy)
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)
    for turn in range(30):  # over the ends of several segments
        primary.appender.append({0: numbered(turn * 10 + 1, turn * 10 + 10)}, now=turn)
        primary.cursors.move("group", {"0@x": turn}, now=turn)
    primary.retainer.trim(0, 100)
    primary.retainer.retain(Retention(max_bytes=SEGMENT), now=31)
    primary.cursors.drop("group")
    copy.replication.repeat([travelled(change) for change in changes[:7]], term=1)
    for change in changes[7:]:
        copy.replication.repeat([travelled(change)], term=1)
    assert contents(copy) == contents(primary)
    assert copy.replication.position() == Position(1, primary.replication.number(), True)
    assert segments(tmp_path / "copy") == segments(tmp_path / "primary")
    # A repeat that reaches the copy is one there, too.
    assert open_copy().appender.append({0: numbered(295, 300)}, now=40).repeats == 6


def test_what_was_not_committed_is_not_repeated(primary: Store) -> None:
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)

    def fail(view: Transaction) -> NoReturn:
        view.put(CURSORS, "group", Cursor(group="group", start={}, offsets={}, timestamp=1))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        primary.appender.append({}, now=1, change=fail)
    primary.appender.append({0: [fake_event(b"a")]}, now=1)
    (change,) = changes
    assert "cursors" not in {table for table, _, _ in change.head.records}


LARGE = b"a" * 100_000


def test_chunks_of_a_large_transaction_are_written_before_it_is_committed_and_count_with_it(
    primary: Store, tmp_path: Path
) -> None:
    disk = TornDisk(Random(0))
    copy = make_store(tmp_path / "copy", shards=(), segment_bytes=SEGMENT, disk=disk)
    catch_up(primary, copy)
    before = contents(copy)
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)
    primary.appender.append({0: [fake_event(LARGE) for _ in range(45)]}, now=1)
    numbers = [change.head.number for change in changes]
    assert numbers == [0, 0, primary.replication.number()]
    for change in changes[:2]:
        assert copy.replication.repeat([travelled(change)], term=1) is None
    assert contents(copy) == before
    assert copy.replication.repeat([travelled(changes[2])], term=1) == Position(1, numbers[2], True)
    assert disk.lose() == 0
    assert contents(copy) == contents(primary)
    assert len(stored(copy)) == 45
    copy.close()


def _fail(_append: ShardAppend) -> None:
    raise ZeroDivisionError


def test_chunks_of_a_transaction_that_fails_count_nowhere(
    primary: Store, open_copy: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(primary, 3)
    copy = open_copy()
    catch_up(primary, copy)
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)
    with monkeypatch.context() as patch:
        patch.setattr(ShardAppend, "finish", _fail)
        with pytest.raises(ZeroDivisionError):
            primary.appender.append({0: [fake_event(LARGE) for _ in range(45)]}, now=1)
    assert [change.head.number for change in changes] == [0, 0, 0]
    assert changes[-1] is ABANDONED
    primary.appender.append({0: [fake_event(b"b" * 100_000) for _ in range(45)]}, now=1)
    for change in changes:
        copy.replication.repeat([travelled(change)], term=1)
    assert contents(copy) == contents(primary)


def test_chunks_that_come_early_are_not_removed_with_a_former_file_of_their_name(
    primary: Store, open_copy: Callable[[], Store]
) -> None:
    fill(primary, 3)
    copy = open_copy()
    catch_up(primary, copy)
    fork = copy.replication.held()[0].next
    copy = open_copy()
    copy.appender.append({0: [fake_event(LARGE)]}, now=1)
    cuts = primary.replication.cuts(copy.replication.held(), {0: fork})
    changes = list(primary.replication.rest({0: fork}, primary.replication.begin(cuts)))
    primary.replication.listen(changes.append)
    primary.appender.append({0: [fake_event(LARGE) for _ in range(45)]}, now=1)
    assert [segment.first for segment in primary.replication.held()[0].segments][1] == fork
    copy.replication.repeat([travelled(change) for change in changes[:-1]], term=1)
    copy.replication.repeat([travelled(changes[-1])], term=1)
    assert contents(copy) == contents(primary)


def test_of_a_part_that_fails_nothing_is_kept_or_repeated(primary: Store, open_copy: Callable[[], Store]) -> None:
    copy = open_copy()
    catch_up(primary, copy)
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)

    def write(view: Transaction, name: str, *, fails: bool = False) -> None:
        with view.part() as part:
            part.put(CURSORS, name, Cursor(group=name, start={}, offsets={}, timestamp=1))
            part.put(REPLICATION, b"of this log", name.encode())
            if fails:
                raise ZeroDivisionError

    def change(view: Transaction) -> Mapping[int, Sequence[EventRun]]:
        write(view, "first")
        with pytest.raises(ZeroDivisionError):
            write(view, "second", fails=True)
        write(view, "third")
        return {}

    primary.appender.append({}, now=1, change=change)
    with primary.read_transaction() as view:
        assert [name for name, _ in view.items(CURSORS)] == ["first", "third"]
    copy.replication.repeat([travelled(change) for change in changes], term=1)
    assert contents(copy) == contents(primary)


def test_a_copy_knows_what_publishers_have_numbered(primary: Store, open_copy: Callable[[], Store]) -> None:
    """Promoted, it would report as missing what is in its log."""
    copy = open_copy()
    catch_up(primary, copy)
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)
    for number in range(1, 6):
        primary.appender.append({0: [fake_event(b"%d" % number, first=number)]}, now=number)
    copy.replication.repeat([travelled(change) for change in changes], term=1)
    assert contents(copy) == contents(primary)
    assert open_copy().appender.append({0: [fake_event(b"6", first=6)]}, now=6).missed == 0


def test_each_change_has_a_number_of_its_own(primary: Store) -> None:
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)
    primary.keep_subscribers([])  # changes nothing
    primary.cursors.drop("none")
    primary.cursors.move("group", {"0@x": 1}, now=1)
    primary.replication.put_state(b"{}")  # concerns no copy, and has a number that copies have to reach
    assert primary.cursors.drop("group")
    numbers = [change.head.number for change in changes]
    assert len(numbers) == 3
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == primary.replication.number()
    assert changes[1].head.records == []


def test_a_copy_that_was_away_catches_up(primary: Store, open_copy: Callable[[], Store]) -> None:
    fill(primary, 13)
    copy = open_copy()
    catch_up(primary, copy)
    fill(primary, 40)
    primary.retainer.trim(0, 200)
    catch_up(primary, copy)
    assert contents(copy) == contents(primary)


def test_a_copy_that_died_on_the_way_says_so_and_goes_on(primary: Store, open_copy: Callable[[], Store]) -> None:
    fill(primary, 60)
    copy = open_copy()
    for steps in (0, 1, 2, 3):
        copy = open_copy()
        catch_up(primary, copy, steps=steps)
        assert not copy.replication.position().whole
    before = copy.replication.held()[0].next
    assert 0 < before < 600
    copy = open_copy()
    cuts = primary.replication.cuts(copy.replication.held(), {})
    assert cuts[0].offset == before
    catch_up(primary, copy)
    assert copy.replication.position().whole
    assert contents(copy) == contents(primary)


def test_an_end_that_is_not_the_primarys_is_cut_off(primary: Store, open_copy: Callable[[], Store]) -> None:
    for common, own in ((12, 1), (12, 30)):  # in the same segment, and in later ones
        fill(primary, common)
        copy = open_copy()
        catch_up(primary, copy)
        fork = copy.replication.held()[0].next
        copy = open_copy()
        copy.appender.append({0: [fake_event(b"lost %d" % n) for n in range(10)] * own}, now=10**9)
        copy.appender.append({0: numbered(1, 5)}, now=10**9)
        fill(primary, 25)
        cuts = primary.replication.cuts(copy.replication.held(), {0: fork})
        assert copy.replication.held()[0].next > fork
        assert cuts[0].offset == fork
        catch_up(primary, copy, forks={0: fork})
        assert contents(copy) == contents(primary)


def test_a_copy_of_another_log_is_refused(tmp_path: Path, primary: Store) -> None:
    other = make_store(tmp_path / "other", seed=9)
    with pytest.raises(ValueError, match=r"it has shard 0@.*, which is of another log"):
        primary.replication.cuts(other.replication.held(), {})
    other.close()


def test_a_primary_that_was_put_back_is_noticed(primary: Store, open_copy: Callable[[], Store]) -> None:
    copy = open_copy()
    catch_up(primary, copy)
    copy.appender.append({0: [fake_event()]}, now=1)
    with pytest.raises(ValueError, match=r"up to 1, and the primary only up to 0: .* put back"):
        primary.replication.cuts(copy.replication.held(), {})


def test_damage_on_the_way_is_noticed(primary: Store, open_copy: Callable[[], Store]) -> None:
    copy = open_copy()
    catch_up(primary, copy)
    before = contents(copy)
    changes: list[LogChange] = []
    primary.replication.listen(changes.append)
    primary.appender.append({0: [fake_event(b"a" * 100)]}, now=1)
    change = travelled(changes[0])
    flipped = bytearray(change.data[0])
    flipped[-1] ^= 1
    with pytest.raises(LogDamaged, match="checksum"):
        copy.replication.repeat([LogChange(change.head, [bytes(flipped)])], term=1)
    table, key, sealed = change.head.records[0]
    assert sealed is not None
    wrong = msgspec.structs.replace(change.head, records=[(table, key, sealed[:-1] + b"\0")])
    with pytest.raises(LogDamaged, match="not what was written"):
        copy.replication.repeat([LogChange(wrong, change.data)], term=1)
    foreign = msgspec.structs.replace(change.head, records=[("replication", b"state", b"")])
    with pytest.raises(LogDamaged, match="which a copy has not"):
        copy.replication.repeat([LogChange(foreign, change.data)], term=1)
    assert contents(copy) == before
    copy.replication.repeat([change], term=1)
    assert contents(copy) == contents(primary)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_head(ChangeHead(1, True, (), (), [Write(0, "", 0, 0, 5)])),
        encode_head(ChangeHead(1, True, (), (), ())) + b"x",
    ],
)
def test_a_change_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(LogDamaged, match="a change that the primary sent"):
        decode_change_untrusted(data, len(data) - data.endswith(b"x"))
