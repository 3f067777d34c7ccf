"""Logs with a tier, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.dataset as ds
import trio

from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.tier.commits import ShardTier
from iris.spark_bridge.tier.manifest import Manifest, ManifestName, decode_manifest_untrusted
from iris.spark_bridge.tier.storage import Storage
from iris.spark_bridge.tier.uploads import Tier, TierUploads
from tests.support.arrivals import make_store

SEGMENT = 8192
SECOND = 1_000_000
LATE = 10**16
"""Microseconds since 1970, long after all events of tests."""


Forks = Callable[[int], Mapping[int, int]]


def no_forks(_term: int) -> Mapping[int, int]:
    """A log that was never promoted."""
    return {}


class TieredLog:
    """A log and its tier in a directory; ``writer`` is the seed of the bridge that opens it."""

    def __init__(
        self, directory: Path, url: str, *, writer: int, segment_bytes: int, term: int = 1, forks: Forks = no_forks
    ) -> None:
        self.copied = trio.lowlevel.checkpoint
        """Waits for copies."""
        self.bridge, self.shards, self.term, self.forks = "bridge", (0,), term, forks
        self.time = 0
        """Microseconds since 1970; segments are sealed that began a second before."""
        self.store = make_store(directory, segment_bytes=segment_bytes)
        settings = Tier(url=url, seal_after=1.0)
        self.uploads = TierUploads(self.store, settings, self, self, Random(writer).randbytes)
        storage = Storage(url)
        storage.open()
        self.tier = ShardTier(
            storage,
            bridge=self.bridge,
            shard=self.store.shards()[0].id,
            term=term,
            writer=Random(writer).randbytes(4).hex(),
        )
        """Tier of its shard, for commits of the same writer that its uploads do not make."""

    async def wait_copied(self, _timeout: float, /) -> None:
        """Wait until the copies have everything."""
        await self.copied()

    def now(self) -> int:
        """Return the time."""
        return self.time

    async def move(self) -> None:
        """Move what is sealed to the tier."""
        await self.uploads.advance(0)

    def leave(self) -> None:
        """Leave to the tier what it has."""
        self.store.retainer.retain(Retention(max_age=1e-6), now=LATE)

    async def move_all(self) -> None:
        """Move everything, and leave it to the tier."""
        self.time = LATE
        await self.move()
        self.leave()


@contextmanager
def open_tiered(
    directory: Path,
    url: str | Path,
    *,
    writer: int = 0,
    segment_bytes: int = SEGMENT,
    term: int = 1,
    forks: Forks = no_forks,
) -> Iterator[TieredLog]:
    """A log with a tier at a URL."""
    log = TieredLog(directory, str(url), writer=writer, segment_bytes=segment_bytes, term=term, forks=forks)
    try:
        yield log
    finally:
        log.store.close()


def local_segments(directory: Path) -> int:
    """Return how many segments are on the log's own disk."""
    return len(list((directory / "segments").iterdir()))


def read_parquet(folder: Path) -> list[dict[str, Any]]:
    """Return what anything that reads Parquet finds below a folder, by shard and offset."""
    rows: list[dict[str, Any]] = ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["shard"], row["offset"]))


def shard_folders(tier: Path) -> list[Path]:
    """Return the folders of the shards of all bridges."""
    return sorted(tier.glob("*/shard=*"))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest that counts in the folder of a shard."""
    names = sorted(filter(None, (ManifestName.parse(path.name) for path in (folder / "_manifest").iterdir())))
    data = (folder / "_manifest" / str(names[-1])).read_bytes()
    return decode_manifest_untrusted(data, shard=folder.name.removeprefix("shard="), name=str(names[-1]))


def objects_in(folder: Path) -> list[str]:
    """Return the names of all objects in the folder of a shard, also of those that are not whole."""
    return sorted(path.name for path in folder.iterdir() if path.is_file())


class Killed(BaseException):
    """The process ends here."""


class Killing:
    """Ends the process at a call of one of some methods.

    Args:
        at: the number of the call; None: never.
    """

    def __init__(self, at: int | None) -> None:
        self._at = at
        self.calls = 0

    def wrap(self, method: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
        """Return the method, or one that is killed before it does something, or after."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            fatal = self._at == self.calls
            if fatal and not after:
                raise Killed
            result = method(*arguments, **options)
            if fatal:
                raise Killed
            return result

        return call
