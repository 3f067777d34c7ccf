"""A log with a tier and a copy: a primary that dies at any step of an upload costs the promoted copy nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import NotCopied
from iris.spark_bridge.log.records import TABLES
from iris.spark_bridge.log.replication.journal import LogChange
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.tiering import Tiering
from iris.spark_bridge.tier.commits import reconcile
from iris.spark_bridge.tier.storage import Storage
from tests.support.arrivals import fake_event, fill, make_store, numbered, stored
from tests.support.replicas import catch_up, travelled
from tests.support.tiers import (
    LATE,
    SECOND,
    SEGMENT,
    Killed,
    Killing,
    TieredLog,
    local_segments,
    no_forks,
    objects_in,
    open_tiered,
    read_manifest,
    read_parquet,
    shard_folders,
)


@contextmanager
def open_copy(directory: Path) -> Iterator[Store]:
    store = make_store(directory, shards=(), segment_bytes=SEGMENT)
    try:
        yield store
    finally:
        store.close()


def follow(log: TieredLog, copy: Store) -> list[LogChange]:
    """Let a copy follow from now on; return the changes that are on their way to it."""
    catch_up(log.store, copy)
    sent: list[LogChange] = []
    log.store.replication.listen(sent.append)

    async def copied() -> None:
        await trio.lowlevel.checkpoint()
        repeat(copy, sent)

    log.copied = copied
    return sent


def repeat(copy: Store, sent: list[LogChange]) -> None:
    if sent:
        copy.replication.repeat([travelled(change) for change in sent], term=1)
        sent.clear()


def contents(store: Store) -> object:
    with store.read_transaction() as view:
        return [[*view.sealed(table)] for table in TABLES.values() if not table.is_own]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "segments").iterdir())


async def test_a_copy_lets_go_of_what_the_primary_has_left_to_the_tier(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log, open_copy(tmp_path / "copy") as copy:
        sent = follow(log, copy)
        events = fill(log.store, 60)
        await log.move()
        log.leave()
        repeat(copy, sent)
        assert files(tmp_path / "copy") == files(tmp_path / "log")
        assert contents(copy) == contents(log.store)
        await log.move_all()
        repeat(copy, sent)
        assert files(tmp_path / "copy") == []
    with open_tiered(tmp_path / "copy", tmp_path / "tier", writer=1, term=2) as promoted:
        assert stored(promoted.store) == events


@pytest.mark.parametrize("held", [0, 7, 33, 60])
async def test_a_copy_that_was_away_gets_what_the_tier_has_not(held: int, tmp_path: Path) -> None:
    """It had followed for so many appends; none: it begins now."""
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log, open_copy(tmp_path / "copy") as copy:
        if held:
            fill(log.store, held)
            catch_up(log.store, copy)
        fill(log.store, 60 - held)
        await log.move()
        log.leave()
        catch_up(log.store, copy, steps=0)
        assert copy.replication.position().whole is (held == 60)
        catch_up(log.store, copy)
        assert contents(copy) == contents(log.store)
        assert files(tmp_path / "copy") == files(tmp_path / "log")
        log.store.appender.append({0: numbered(1, 100)}, now=SECOND)
        await log.move_all()
        catch_up(log.store, copy)
        assert contents(copy) == contents(log.store)
        assert files(tmp_path / "copy") == []


async def test_what_goes_to_the_tier_while_a_copy_catches_up_leaves_no_trace(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log, open_copy(tmp_path / "copy") as copy:
        fill(log.store, 60)
        replication = log.store.replication
        cuts = replication.cuts(copy.replication.held(), {})
        copy.replication.repeat([replication.begin(cuts)], term=1)
        offset = 0
        for turn in range(4):
            change, offset = replication.piece(0, offset)
            assert change is not None
            copy.replication.repeat([travelled(change)], term=1)
            if turn == 2:
                assert replication.lacking({0: offset}) > 0
                await log.move()
                log.leave()
                assert 0 < replication.lacking({0: offset}) < SEGMENT
        copy.replication.repeat([travelled(change) for change in replication.rest({0: offset}, None)], term=1)
        assert contents(copy) == contents(log.store)
        assert files(tmp_path / "copy") == files(tmp_path / "log")


@pytest.mark.parametrize("steps", range(5))
async def test_a_copy_that_is_promoted_by_force_while_it_catches_up_goes_on_with_what_it_has(
    steps: int, tmp_path: Path
) -> None:
    """It got so many pieces; the primary left events to the tier before the first one, and again before the last."""
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log, open_copy(tmp_path / "copy") as copy:
        events = fill(log.store, 22)
        await log.move()
        log.leave()
        events += fill(log.store, 22)
        replication = log.store.replication
        (cut,) = replication.cuts(copy.replication.held(), {})
        copy.replication.repeat([travelled(replication.begin([cut]))], term=1)
        offset = cut.offset
        for turn in range(steps):
            if turn == 3:
                await log.move()
                log.leave()
            change, offset = replication.piece(0, offset)
            assert change is not None
            copy.replication.repeat([travelled(change)], term=1)
        (shard,) = copy.shards()
        assert shard.next == offset >= 200
        assert not copy.replication.position().whole
    forks = {0: offset}
    with open_tiered(tmp_path / "copy", tmp_path / "tier", writer=1, term=2, forks=lambda _: forks) as promoted:
        assert stored(promoted.store) == events[:offset]
        promoted.store.appender.append({0: numbered(1, 100)}, now=SECOND)
        events[offset:] = [b"%d" % number for number in range(1, 101)]
        await promoted.move_all()
        assert stored(promoted.store) == events
        (folder,) = shard_folders(tmp_path / "tier")
        assert objects_in(folder) == sorted(found.name for found in read_manifest(folder).objects)
        assert [row["value"] for row in read_parquet(tmp_path / "tier")] == events


async def test_what_was_given_up_by_force_is_in_the_tier_no_more(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log, open_copy(tmp_path / "copy") as copy:
        events = fill(log.store, 30)
        catch_up(log.store, copy)
        log.store.appender.append({0: [fake_event(b"lost %d" % n) for n in range(400)]}, now=SECOND)
        await log.move_all()
    forks = {0: 300}
    with (
        open_tiered(tmp_path / "copy", tmp_path / "tier", writer=1, term=2, forks=lambda _: forks) as promoted,
        open_tiered(tmp_path / "log", tmp_path / "tier") as former,
    ):
        promoted.store.appender.append({0: numbered(1, 500)}, now=SECOND)
        events += [b"%d" % number for number in range(1, 501)]
        await promoted.move_all()
        assert stored(promoted.store) == events
        (folder,) = shard_folders(tmp_path / "tier")
        assert objects_in(folder) == sorted(found.name for found in read_manifest(folder).objects)
        assert [row["value"] for row in read_parquet(tmp_path / "tier")] == events
        with pytest.raises(ConfigError, match="another bridge has the tier of shard 0@"):
            await former.move()
        # It becomes a copy, whatever it had left to the tier.
        catch_up(promoted.store, former.store, forks=forks)
        assert contents(former.store) == contents(promoted.store)
        assert local_segments(tmp_path / "log") == 0
        assert stored(promoted.store) == events


@pytest.mark.parametrize(
    ("method", "number"),
    [
        pytest.param("names", 1, id="before it has looked"),
        pytest.param("put", 1, id="before it has written"),
        pytest.param("names", 2, id="before it has looked again"),
    ],
)
async def test_a_former_primary_that_goes_on_with_a_commit_changes_nothing(
    method: str, number: int, tmp_path: Path
) -> None:
    """It was stopped for a while, and meanwhile its copy was promoted and has taken the tier."""
    with open_tiered(tmp_path / "log", tmp_path / "tier") as former:
        with open_copy(tmp_path / "copy") as copy:
            follow(former, copy)
            events = fill(former.store, 60)
            await former.move()
            former.store.appender.append({0: numbered(1, 100)}, now=SECOND)
            events += [b"%d" % number for number in range(1, 101)]
            await former.copied()
        with (
            open_tiered(tmp_path / "copy", tmp_path / "tier", writer=1, term=2) as promoted,
            pytest.MonkeyPatch.context() as patch,
        ):
            real, calls = getattr(Storage, method), [0]

            def stop(storage: Storage, path: str, *arguments: Any) -> Any:
                calls[0] += "_manifest" in path
                if calls[0] == number:
                    patch.undo()
                    found = promoted.tier.newest()
                    promoted.tier.commit(reconcile(promoted.store, 0, found, forks=no_forks))
                return real(storage, path, *arguments)

            patch.setattr(Storage, method, stop)
            former.copied = trio.lowlevel.checkpoint
            former.time = LATE
            with pytest.raises(ConfigError, match="another bridge has the tier of shard 0@"):
                await former.move()
            assert calls == [number]
            former.leave()
            assert stored(former.store) == events
            await promoted.move_all()
            assert stored(promoted.store) == events
            (folder,) = shard_folders(tmp_path / "tier")
            assert objects_in(folder) == sorted(found.name for found in read_manifest(folder).objects)


async def test_a_former_primary_that_goes_on_while_a_promoted_copy_looks_does_not_keep_it_from_the_tier(
    tmp_path: Path,
) -> None:
    """It is still writing manifests, and removes the one that has just been found."""
    with open_tiered(tmp_path / "log", tmp_path / "tier") as former:
        with open_copy(tmp_path / "copy") as copy:
            events = fill(former.store, 30)
            catch_up(former.store, copy)
            await former.move()
        with (
            open_tiered(tmp_path / "copy", tmp_path / "tier", writer=1, term=2) as promoted,
            pytest.MonkeyPatch.context() as patch,
        ):
            (folder,) = shard_folders(tmp_path / "tier")
            real = Storage.get

            def get(storage: Storage, path: str, *arguments: Any, **options: Any) -> bytes:
                patch.undo()
                objects = read_manifest(folder).objects
                assert objects
                former.tier.commit(objects)
                former.tier.commit(objects)
                assert not (tmp_path / "tier" / path).exists()
                return real(storage, path, *arguments, **options)

            patch.setattr(Storage, "get", get)
            await promoted.move_all()
            assert stored(promoted.store) == events
            assert [row["value"] for row in read_parquet(tmp_path / "tier")] == events


STEPS = 28
QUICK = (6, 9, 14, 15, 20, 22, 26)


@pytest.mark.parametrize(
    ("number", "lags"),
    [
        pytest.param(n, lags, marks=() if n in QUICK and lags else pytest.mark.long)
        for n in range(1, STEPS + 1)
        for lags in (True, False)
    ],
)
async def test_a_primary_killed_at_any_step_of_an_upload(number: int, lags: bool, tmp_path: Path) -> None:
    """The copy is promoted, with or without what it had not confirmed, and has all that was confirmed, once."""
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log, open_copy(tmp_path / "copy") as copy:
        sent = follow(log, copy)
        events = fill(log.store, 12)
        await log.move_all()
        events += [b"%d" % number for number in range(1, 101)]
        log.store.appender.append({0: numbered(1, 100)}, now=SECOND)
        await log.copied()
    with (
        open_tiered(tmp_path / "log", tmp_path / "tier", writer=1) as log,
        open_copy(tmp_path / "copy") as copy,
        pytest.MonkeyPatch.context() as patch,
    ):
        sent = follow(log, copy)
        killing = Killing(number)
        for owner, name in (
            *((Storage, "put"), (Storage, "remove"), (Storage, "names"), (Storage, "get")),
            *((Tiering, "note"), (SegmentFiles, "remove")),
        ):
            patch.setattr(owner, name, killing.wrap(killing.wrap(getattr(owner, name)), after=True))
        with pytest.raises(Killed):
            await log.move_all()
        patch.undo()
        if not lags:
            repeat(copy, sent)
    with open_tiered(tmp_path / "copy", tmp_path / "tier", writer=2, term=2, forks=lambda _: {0: 220}) as promoted:
        assert stored(promoted.store) == events
        events += [b"%d" % number for number in range(101, 121)]
        assert promoted.store.appender.append({0: numbered(91, 120)}, now=SECOND).repeats == 10
        await promoted.move_all()
        assert stored(promoted.store) == events
        assert files(tmp_path / "copy") == []
        (folder,) = shard_folders(tmp_path / "tier")
        assert objects_in(folder) == sorted(found.name for found in read_manifest(folder).objects)
        assert [row["value"] for row in read_parquet(tmp_path / "tier")] == events
        with open_tiered(tmp_path / "log", tmp_path / "tier", writer=3) as former:
            catch_up(promoted.store, former.store, forks={0: 220})
            assert contents(former.store) == contents(promoted.store)
            assert files(tmp_path / "log") == []


async def test_what_too_few_copies_have_does_not_go_to_the_tier(tmp_path: Path) -> None:
    with open_tiered(tmp_path / "log", tmp_path / "tier") as log:
        fill(log.store, 30)
        await log.move()
        (folder,) = shard_folders(tmp_path / "tier")
        manifest = read_manifest(folder)

        async def copied() -> None:
            await trio.lowlevel.checkpoint()
            raise NotCopied("too few copies have it")

        log.copied = copied
        await log.move()  # there is nothing to do
        fill(log.store, 30)
        with pytest.raises(NotCopied):
            await log.move()
        log.store.retainer.trim(0, 200)
        with pytest.raises(NotCopied):
            await log.move()
        assert read_manifest(folder) == manifest
        assert objects_in(folder) == sorted(found.name for found in manifest.objects)
