"""Recovery: opens a log, takes the lock of its directory, and removes what unfinished appends have left behind.

Nothing that was acknowledged is cut off by a crash, if the disk keeps what it has synced.  Where one has not, the log
is opened all the same: what is there can be read, and new events are stored.  Missing events are reported at once, not
when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iris.kernel.errors import ConfigError, IrisError
from iris.kernel.names import Entropy
from iris.kernel.tasks import close_locked, try_lock
from iris.security.files import make_directories
from iris.spark_bridge.errors import LogDamaged, StoreBusy, StoreFull
from iris.spark_bridge.events.damage import Damage, DamageBook
from iris.spark_bridge.log.chunk_io import find_sound, read_stretches
from iris.spark_bridge.log.index import MAP_BYTES, Index
from iris.spark_bridge.log.open_log import open_log
from iris.spark_bridge.log.reader import say_damage
from iris.spark_bridge.log.records import IN_TIER, SEGMENTS, SHARDS, ShardState, all_shards, segments_of
from iris.spark_bridge.log.segments import (
    SEGMENT_BYTES,
    Disk,
    FileSystem,
    Reserve,
    SegmentFiles,
    is_full,
    sync_directory,
)
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.tiering import TierCatalog


@contextmanager
def existing_store(directory: Path) -> Generator[Store | None]:
    """Open the log in ``directory`` for a block; None: there is none, and none is made.

    Raises:
        StoreBusy, StoreFull, LogDamaged, ConfigError: see ``open_store``.
    """
    if not (directory / "index" / "data.mdb").exists():
        yield None
        return
    store = open_store(directory, shards=(), entropy=os.urandom)
    try:
        yield store
    finally:
        store.close()


def open_store(
    directory: Path,
    *,
    shards: Sequence[int],
    of: int | None = None,
    entropy: Entropy,
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    map_bytes: int = MAP_BYTES,
    look_only: bool = False,
) -> Store:
    """Open the log in ``directory``, made if it is not there.

    Takes the same short time for any number of events: nothing is scanned.

    Args:
        directory: directory of this log alone.
        shards: numbers of the shards to make, if they are not there; others that are there are kept.
        of: number of shards among which the members of the bridge divide the events; it is set when the log is made.
            None: they do not divide.
        entropy: makes the epochs of new shards.
        disk: disk to which segments are written; the real one by default.
        segment_bytes: size of a segment file.
        map_bytes: largest size of the index, in bytes.
        look_only: make nothing, and leave alone what appends that never finished have left behind.

    Raises:
        StoreBusy: another process has it open.
        StoreFull: there is no room.
        LogDamaged: what is there is not a log of this version, or files of it are missing or of another log.
        ConfigError: the directory cannot be used, or there is no log to look at, or its bridge has another number of
            shards.
    """
    segments = directory / "segments"
    if not (directory / "index" / "data.mdb").exists():
        if look_only:
            raise ConfigError(f"there is no log in {directory}")
        if left := sorted(segments.glob("*.segment")):
            raise LogDamaged(
                f"the index of the log in {directory} is gone, and {len(left)} segment files are there, {left[0]} the "
                "first: put the index back, or move them away to begin a new log"
            )
    try:
        if not look_only:
            for made in (directory, segments, directory / "index"):
                make_directories(made)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from None
    try:
        try:
            # The lock is the kernel's and ends with the process, however that dies; a file with a process id would
            # outlive it.
            try_lock(lock)
        except OSError:
            raise StoreBusy(f"the log in {directory} is open in another process") from None
        known = DamageBook()
        index = Index(directory / "index", map_bytes=map_bytes)
        try:
            catalog = TierCatalog(index)
            files = SegmentFiles(segments, disk or FileSystem(), segment_bytes, catalog)
            if not look_only:
                _remove_orphans(segments, index, files)
                known = _find_cut_tails(index, files)
                say_damage(known, directory)
                with index.write() as view:
                    if shards:
                        _check_of(directory, all_shards(view), of)
                    for number in shards:
                        if view.find(SHARDS, number) is None:
                            view.put(SHARDS, number, ShardState(number=number, epoch=entropy(8).hex(), of=of or 0))
                for made in (segments, directory / "index", directory, directory.parent):
                    sync_directory(made)
                Reserve(directory / "reserve").make()
        except BaseException:
            index.close()
            raise
    except OSError as error:
        close_locked(lock)
        raise _unusable(directory, error) from None
    except BaseException:
        close_locked(lock)
        raise
    return Store(open_log(directory, index, files, known), catalog, lock)


def _unusable(directory: Path, error: OSError) -> IrisError:
    if is_full(error):
        return StoreFull(f"no room in the log's directory {directory}: {error.strerror}")
    return ConfigError(f"the log's directory {directory} cannot be used: {error.strerror}")


def _check_of(directory: Path, shards: Sequence[ShardState], of: int | None) -> None:
    """Raise ConfigError unless the log was made for a bridge of so many shards: keys would be in other shards."""
    for shard in shards:
        if shard.of != (of or 0):
            raise ConfigError(
                f"the log in {directory} is of a bridge of {shard.of} shards: start it with --of {shard.of}, or begin "
                "another bridge, with a name and a directory of its own"
                if shard.of
                else f"the log in {directory} has all events of its topics: start it without --of, or begin another "
                "bridge, with a name and a directory of its own"
            )


def _find_cut_tails(index: Index, files: SegmentFiles) -> DamageBook:
    """Return what is missing of segments that are shorter than they should be, and newest events that are damaged."""
    found = DamageBook()
    with index.read() as view:
        for shard in all_shards(view):
            segments = [
                segment
                for segment in segments_of(view, shard.number)
                if segment.end > shard.earliest and segment.revision != IN_TIER
            ]
            for segment in segments:
                path = files.path(shard.number, shard.epoch, segment.first, segment.revision)
                size = path.stat().st_size
                if size >= segment.size and segment is not segments[-1]:
                    continue
                start = max(segment.first, shard.earliest)
                stretches = find_sound(view, shard, start, segment.end, segment.size)
                cut = [stretch for stretch in stretches if stretch.place is None or stretch.place.end_position > size]
                for stretch in cut or stretches[-1:]:
                    try:
                        read_stretches(files, shard.number, shard.epoch, [stretch])
                    except LogDamaged as error:
                        found.note(Damage(shard=shard.number, offset=stretch.first, end=stretch.end, reason=str(error)))
    return found


def _remove_orphans(directory: Path, index: Index, files: SegmentFiles) -> None:
    """Delete the segment files of appends that never became part of the log."""
    with index.read() as view:
        view.verify(SEGMENTS)  # a file without a record counts as the rest of a crash, and is deleted
        shards = all_shards(view)
        named = {
            files.path(shard.number, shard.epoch, segment.first, segment.revision)
            for shard in shards
            for segment in segments_of(view, shard.number)
            if segment.revision != IN_TIER
        }
    present = set(directory.glob("*.segment"))
    # An append begins with a shard that is on the disk.  A segment of an unknown one is no rest of an append.
    own = tuple(files.path(shard.number, shard.epoch, 0).name.rpartition("-")[0] for shard in shards)
    orphans = [path for path in present - named if not path.name.startswith(own)]
    if orphans:
        raise LogDamaged(
            f"{len(orphans)} segment files are of another log than the index beside them, {min(orphans)} the first: "
            "put back the index that belongs to them, or move them away"
        )
    missing = named - present
    if missing:
        raise LogDamaged(
            f"{len(missing)} segment files are missing, {min(missing)} the first: put them back, or make empty files "
            "of these names to go on without their events"
        )
    for path in present - named:
        # No index entry names them, so nothing in them was ever acknowledged.
        path.unlink()
