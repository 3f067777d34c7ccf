"""Segment files: the chunks of a shard, one after the other, and a reserve of disk space for removals.

Rules of this file:

- What the index names is committed.  Bytes behind it are the rest of an append that did not get that far, and are
  overwritten.  So nothing has to be scanned or repaired at start.
- A file is allocated in full when it is made.  A full disk is noticed there, before anything is half written, and
  appending does not have to grow the file each time: 981,000 rows/s instead of 543,000 in the measurements.
- Write-out begins with each chunk and not with ``sync``: 20 to 30 % more events/s, where the disk is the limit.
- ``Disk`` is all that touches the file system, so that tests can put a failing or forgetful one in its place.
- ``Reserve`` keeps a little of the disk occupied.  It is released when the disk is full and something is to be removed,
  because a removal needs room too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, final

import pyarrow as pa

from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log.replication.journal import Journal

SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""Retention removes whole segments, and reading opens few of them."""

_PROBE: Final = 4 * 1024 * 1024

_BEGIN_BYTES: Final = 64 * 1024
"""Size of a write that the disk begins with at once, in bytes.  For a small one that took half as long as its sync."""

_NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that pass: no room on the disk, in the process's or the system's table of open files, or in memory."""


class Disk(Protocol):
    """The calls that segments make of ``FileSystem``; those of ``os``, with paths and descriptors."""

    def create(self, path: Path, size: int) -> int: ...
    def open(self, path: Path) -> int: ...
    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], position: int) -> None: ...
    def read(self, descriptor: int, size: int, position: int) -> bytes: ...
    def sync(self, descriptor: int) -> None: ...
    def truncate(self, descriptor: int, size: int) -> None: ...
    def close(self, descriptor: int) -> None: ...
    def remove(self, path: Path) -> None: ...


class GroupReader(Protocol):
    """Reads segments whose files are gone."""

    def read_group(self, shard: int, epoch: str, segment: int, group: int) -> pa.RecordBatch: ...


@final
class FileSystem:
    """The real disk."""

    def create(self, path: Path, size: int) -> int:
        """Make a file of ``size`` bytes, durably, and open it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, size)
            os.fsync(descriptor)
            sync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        return descriptor

    def open(self, path: Path) -> int:
        """Open an existing file for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], position: int) -> None:
        """Write all of the parts, one behind the other, and let the disk begin with them."""
        left = sum(map(len, parts))
        written = os.pwritev(descriptor, parts, position)
        if written >= _BEGIN_BYTES and hasattr(os, "posix_fadvise"):
            # Linux writes dirty pages out before it drops them: the disk works while the next chunk is encoded.
            os.posix_fadvise(descriptor, position, written, os.POSIX_FADV_DONTNEED)
        if written < left:
            rest = memoryview(b"".join(parts))[written:]
            self.write(descriptor, [rest], position + written)

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        """Read ``size`` bytes, fewer only at the end of the file."""
        return os.pread(descriptor, size, position)

    def sync(self, descriptor: int) -> None:
        """Wait until what was written is on the disk."""
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Give back what was allocated behind ``size``."""
        os.ftruncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Delete a file, if it is there."""
        path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_full(error: OSError) -> bool:
    """Return whether an error of the operating system means that there is no room, or no descriptor, at the moment."""
    return error.errno in _NO_SPACE


def has_room(directory: Path) -> bool:
    """Return whether a file of 4 MiB can be made, by making one; quotas are found so, too."""
    path = directory / "room"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return not is_full(error)
    try:
        os.posix_fallocate(descriptor, 0, _PROBE)
    except (OSError, AttributeError) as error:
        return not (isinstance(error, OSError) and is_full(error))
    finally:
        os.close(descriptor)
        path.unlink()
    return True


@final
class SegmentFiles:
    """The segment files of a log, by shard and first offset.  Not safe for several threads writing at once.

    Args:
        directory: directory of the files.
        disk: writes them.
        segment_bytes: size from which on a segment is full, in bytes.
        tier: reads what lies in the tier.
    """

    def __init__(self, directory: Path, disk: Disk, segment_bytes: int, tier: GroupReader) -> None:
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._active: dict[int, tuple[Path, int]] = {}
        self.journal: Journal | None = None
        """Gets what is written, for the copies of this log."""
        self.tier: Final = tier

    def path(self, shard: int, epoch: str, first: int, revision: int = 0) -> Path:
        """Return where the segment of ``shard`` that starts at offset ``first`` lies."""
        written = f"-{revision}" if revision else ""
        return self._directory / f"{shard:05d}-{epoch}-{first:020d}{written}.segment"

    def is_full(self, position: int, size: int) -> bool:
        """Return whether a frame of ``size`` bytes at ``position`` belongs into a new segment."""
        return position > 0 and position + size > self._segment_bytes

    def begin(self, shard: int, epoch: str, first: int, size: int, revision: int = 0) -> None:
        """Make a new active segment for ``shard``; the one before is closed by ``finish``.

        Raises:
            StoreFull: there is no room for another segment; nothing was made.
        """
        path = self.path(shard, epoch, first, revision)
        try:
            descriptor = self._disk.create(path, max(size, self._segment_bytes))
        except OSError as error:
            if is_full(error):
                raise StoreFull(f"no room for a new segment in {self._directory}: {error.strerror}") from None
            raise
        self._activate(shard, path, descriptor)

    def _activate(self, shard: int, path: Path, descriptor: int) -> None:
        before = self._active.pop(shard, None)
        if before is not None:
            self._disk.close(before[1])
        self._active[shard] = (path, descriptor)

    def write(
        self,
        shard: int,
        epoch: str,
        first: int,
        position: int,
        parts: Sequence[bytes | memoryview],
        revision: int = 0,
    ) -> None:
        """Write a frame into the segment at ``first``, durable after ``sync``; raise StoreFull if there is no room."""
        descriptor = self._descriptor(self.path(shard, epoch, first, revision), shard)
        try:
            self._disk.write(descriptor, parts, position)
        except OSError as error:
            if is_full(error):
                raise StoreFull(f"no room for events in {self._directory}: {error.strerror}") from None
            raise
        if self.journal is not None:
            self.journal.write(shard, epoch, first, position, parts, revision)

    def has(self, shard: int, epoch: str, first: int, revision: int) -> bool:
        """Return whether there is a file for the segment of ``shard`` that starts at ``first``."""
        return self.path(shard, epoch, first, revision).exists()

    def sync(self, shard: int) -> None:
        """Wait until what was written to the shard's active segment is on the disk."""
        self._disk.sync(self._active[shard][1])

    def finish(self, shard: int, epoch: str, first: int, size: int, revision: int = 0) -> None:
        """Give back the room behind the last frame of a segment that is complete."""
        descriptor = self._open(self.path(shard, epoch, first, revision))
        try:
            self._disk.truncate(descriptor, size)
        finally:
            self._disk.close(descriptor)

    def _descriptor(self, path: Path, shard: int) -> int:
        active = self._active.get(shard)
        if active is None or active[0] != path:
            self._activate(shard, path, self._open(path))
        return self._active[shard][1]

    def _open(self, path: Path) -> int:
        try:
            return self._disk.open(path)
        except FileNotFoundError:
            raise LogDamaged(f"the segment {path} is missing") from None

    def read(self, shard: int, epoch: str, first: int, position: int, size: int, revision: int = 0) -> bytes:
        """Read ``size`` bytes of a segment.  Safe in any thread.

        Raises:
            LogDamaged: the file is missing or shorter, or the disk cannot read it.
        """
        path = self.path(shard, epoch, first, revision)
        descriptor = self._open(path)
        try:
            data = self._disk.read(descriptor, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise LogDamaged(f"the disk cannot read {path}, bytes {position} to {position + size}") from None
        finally:
            self._disk.close(descriptor)
        if len(data) < size:
            raise LogDamaged(f"the segment {path} ends at {position + len(data)}, short of {position + size}")
        return data

    def identify(self, shard: int, epoch: str, first: int, revision: int = 0) -> tuple[str, int, int]:
        """Return the path of a segment, its device and its inode: another process can make sure that it has this file.

        Raises:
            LogDamaged: it is missing.
        """
        path = self.path(shard, epoch, first, revision).absolute()
        try:
            status = path.stat()
        except FileNotFoundError:
            raise LogDamaged(f"the segment {path} is missing") from None
        return str(path), status.st_dev, status.st_ino

    def remove(self, shard: int, epoch: str, first: int, revision: int = 0) -> None:
        """Delete a segment whose events the index no longer names."""
        self._disk.remove(self.path(shard, epoch, first, revision))

    def close(self) -> None:
        """Close the active segments."""
        for _, descriptor in self._active.values():
            self._disk.close(descriptor)
        self._active.clear()


_SIZE: Final = 1024 * 1024
"""Size of the reserve, in bytes: the index needs less than that to record a removal."""


@final
class Reserve:
    """A file that occupies a little of the disk.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """Occupy it, if there is room and it is not there."""
        if not self._path.exists():
            try:
                os.close(FileSystem().create(self._path, _SIZE))
            except OSError:
                return

    def give_up(self) -> None:
        """Leave its room to others."""
        self._path.unlink(missing_ok=True)
