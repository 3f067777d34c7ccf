"""Staging: rows that Spark has written and not committed yet, one file for each query, batch, partition and attempt.

A file is written under another name and renamed when it is whole, so a file that has its name is complete.  It holds an
Arrow IPC stream of ``iris.spark_bridge.events.schema.SINK_SCHEMA`` and its CRC-32.  A batch that is committed becomes
part of the log in one transaction, together with the commit note; then its files are removed.  A small part needs no
file and travels with the commit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.config import MIB
from iris.kernel.errors import RemoteError, RemoteProtocolError
from iris.security.files import make_directories
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.events.record_batches import read_rows_untrusted
from iris.spark_bridge.events.runs import EVENT_OVERHEAD
from iris.spark_bridge.events.schema import SINK_SCHEMA, check_rows
from iris.spark_bridge.log import CHUNK_EVENTS, QUERY, ROOM, crc32, is_full, sync_directory
from iris.spark_bridge.staging.usage import LEAST, Usage

_LARGEST: Final = 2**63
_CHECKSUM: Final = 4
_UNFINISHED: Final = ".writing"

_HEADER_PAIRS: Final = 2 * CHUNK_EVENTS
"""Headers of all rows of one batch: each takes 300 bytes as a Python object, and as few as 4 in the batch."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """A staged part: the rows that one attempt of one task wrote.

    Raises:
        RemoteError: the query is no name that can be part of a path.
    """

    query: str
    batch: int
    partition: int
    attempt: int

    def __post_init__(self) -> None:
        if not QUERY.match(self.query):  # it becomes a folder, and a user may have named it
            raise RemoteError("bad_request", f"query is {self.query!r}: use 1 to 64 letters, digits, '-' and '_'")


def new_part(*, query: str, batch: int, partition: int) -> StagedPart:
    """Return the part of a new attempt.

    Spark numbers attempts from 0 again in each application.  A task that outlives its driver must not be taken for
    one of the next driver, which may have divided the rows in another way.
    """
    return StagedPart(query=query, batch=batch, partition=partition, attempt=uuid.uuid4().int >> 65)


def cut_rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows of SINK_SCHEMA into batches that fit into one chunk of the log, and that a member accepts."""
    if not batch.num_rows:
        return
    if batch.num_rows == 1 or (
        batch.num_rows <= CHUNK_EVENTS
        and batch.nbytes + EVENT_OVERHEAD * batch.num_rows <= ROOM
        and (pc.sum(pc.list_value_length(batch.column("headers"))).as_py() or 0) <= _HEADER_PAIRS
    ):
        yield batch
        return
    # Rows differ in size, so none is taken for the mean: a chunk beyond its limit could not be read again.
    middle = batch.num_rows // 2
    yield from cut_rows(batch.slice(0, middle))
    yield from cut_rows(batch.slice(middle))


def write_rows(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> None:
    """Write a stream of rows of SINK_SCHEMA that a member accepts; the batches may be of any size."""
    with pa.ipc.new_stream(file, SINK_SCHEMA) as stream:
        for batch in batches:
            for part in cut_rows(batch):
                stream.write_batch(part)


@final
class Staging:
    """The staged files of one member.  Calls block.

    Args:
        directory: directory of the files.
        usage: quota of the clusters there.
    """

    def __init__(self, directory: Path, usage: Usage) -> None:
        self._directory = directory
        self._usage = usage
        self._turn = itertools.count()
        self._moving = threading.Lock()
        """Held where files come and go, in any thread: a batch is given up while a part of it, or of the next one, is
        written, and what it counts is known by then or never."""

    def look(self, owner_of: Callable[[str], str | None]) -> None:
        """Count the parts of an earlier run, and delete unfinished files.

        Args:
            owner_of: returns the cluster to which a query belongs; None if it has no owner.
        """
        for home in self._directory.glob("*"):
            owner = owner_of(home.name) or ""
            for path in home.glob("*/*"):
                if path.suffix == _UNFINISHED:
                    path.unlink(missing_ok=True)
                elif path.parent.name.isdigit():
                    size = max(path.stat().st_size, LEAST)
                    self._usage.put_found(owner, home.name, int(path.parent.name), size)

    def _batch(self, query: str, batch: int) -> Path:
        return self._directory / query / str(batch)

    def path(self, part: StagedPart) -> Path:
        """Return where a part lies."""
        return self._batch(part.query, part.batch) / f"{part.partition}-{part.attempt}.arrow"

    @contextlib.contextmanager
    def write(self, part: StagedPart, owner: str) -> Iterator[Callable[[bytes], None]]:
        """Write a part with the function that is given; at the end of the block it is on the disk, or not at all.

        Args:
            part: identity of the part.
            owner: the cluster to which its query belongs.

        Raises:
            QuotaExceeded: that cluster, or all together, would have staged too much.
            RemoteError: the batch was committed or given up meanwhile.
            StoreFull: there is no room for it.
        """
        path = self.path(part)
        # A task that lost its tunnel sends again, perhaps before this end has noticed: each has a file of its own.
        aside = path.with_name(f"{path.stem}-{next(self._turn)}{_UNFINISHED}")
        taken = size = 0

        def reserve(more: int) -> None:
            nonlocal taken
            if more > 0:
                self._usage.reserve(owner, more)
                taken += more

        reserve(LEAST)
        try:
            checksum = 0
            with self._moving:
                make_directories(path.parent)
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                descriptor = os.open(aside, flags, 0o600)  # under any umask
            with os.fdopen(descriptor, "wb") as file:

                def write(data: bytes) -> None:
                    nonlocal checksum, size
                    size += len(data)
                    reserve(size + _CHECKSUM - taken)
                    checksum = crc32(data, checksum)
                    file.write(data)

                yield write
                file.write(checksum.to_bytes(_CHECKSUM))
                # The bytes before the name: a file with its final name is whole after any crash.
                file.flush()
                os.fsync(file.fileno())
            with self._moving:
                aside.rename(path)
                # One that takes the place of another, because its writer got no reply, counts beside it until the
                # batch is gone.
                self._usage.put(owner, part.query, part.batch, taken)
                taken = 0
            # A name is on disk when its directory is. From here the part survives a power cut, and Spark's task may
            # count it as written.
            for made in (path.parent, path.parent.parent, self._directory):
                sync_directory(made)
        except BaseException as error:
            self._usage.give_back(owner, taken)
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            if isinstance(error, OSError) and is_full(error):
                raise StoreFull(f"no room in {self._directory} for what Spark writes: {error.strerror}") from None
            if isinstance(error, FileNotFoundError) and not path.parent.exists():
                raise RemoteError(
                    "given_up", f"batch {part.batch} of query {part.query!r} was committed or given up meanwhile"
                ) from None
            raise

    def rows(self, parts: Sequence[StagedPart], carried: Mapping[StagedPart, bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of parts in order, in batches that fit into one chunk.

        Args:
            parts: all of them.
            carried: those that are no files, because they came with the commit.

        Raises:
            LogDamaged: a part is missing or is not what was written.
            RemoteError: what came with the commit is no such stream.
            ConfigError: rows cannot be published.
        """
        for part in parts:
            data = carried.get(part)
            if data is not None:
                try:
                    yield from _read(io.BytesIO(data))
                except RemoteProtocolError as error:
                    raise RemoteError("bad_request", f"the rows of partition {part.partition}: {error}") from None
                continue
            path = self.path(part)
            try:
                with path.open("rb") as file:
                    _verify(file)
                with path.open("rb") as file:
                    yield from _read(file)
            except FileNotFoundError:
                raise LogDamaged(f"the staged file {path} is missing") from None
            except (RemoteProtocolError, OSError) as error:
                raise LogDamaged(f"the staged file {path} is damaged: {error}") from None

    def discard(self, query: str, batch: int) -> None:
        """Delete the parts of a batch, and of those before it."""
        home = self._directory / query
        with self._moving:
            for path in home.glob("*"):
                if path.name.isdigit() and int(path.name) <= batch:
                    self._remove(path)
            with contextlib.suppress(OSError):
                home.rmdir()

    def newest(self) -> float | None:
        """Return when the last batch was touched, in seconds since 1970; None if there is none."""
        times: list[float] = []
        for path in self._directory.glob("*/*"):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times, default=None)

    def discard_older(self, seconds: float) -> None:
        """Delete batches last touched before a time, in seconds since 1970: their queries will not come back."""
        for path in self._directory.glob("*/*"):
            with self._moving, contextlib.suppress(OSError):
                if path.stat().st_mtime < seconds:
                    self._remove(path)
                    path.parent.rmdir()

    def _remove(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        if path.name.isdigit():
            self._usage.forget(path.parent.name, int(path.name))


def _read(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    for batch in read_rows_untrusted(file, SINK_SCHEMA):
        for rows in cut_rows(batch):
            check_rows(rows)
            yield rows


def _verify(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END) - _CHECKSUM
    file.seek(0)
    checksum = 0
    while file.tell() < size:
        checksum = crc32(file.read(min(MIB, size - file.tell())), checksum)
    if size < 0 or file.read() != checksum.to_bytes(_CHECKSUM):
        raise OSError("its checksum does not fit")
