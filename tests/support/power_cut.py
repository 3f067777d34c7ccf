"""Power cuts: a log at work, cut off at any write, sync or commit, with what was not synchronized lost or torn.

``python -m tests.support.power_cut 10000`` runs many cases and says what they showed.
"""

from __future__ import annotations

import collections
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from iris.patterns.pubsub.subscribe.events import EventRun
from iris.spark_bridge.log.segments import FileSystem
from iris.spark_bridge.log.store import Store
from tests.support.arrivals import make_store, numbered, stored

SEGMENT = 16_384
PAGE = 4096
SECTOR = 512


class PowerCut(BaseException):
    """The machine stops here."""


class TornDisk:
    """A real disk that stops before the operation number ``stop_at`` and then forgets what was not synchronized."""

    def __init__(self, random: Random) -> None:
        self._real = FileSystem()
        self._random = random
        self._paths: dict[int, Path] = {}
        self._pending: list[tuple[Path, int, bytes, bytes]] = []
        self.operations = 0
        self.stop_at: int | None = None

    def _tick(self) -> None:
        if self.stop_at is not None and self.operations >= self.stop_at:
            raise PowerCut
        self.operations += 1

    def create(self, path: Path, size: int) -> int:
        self._tick()
        return self._opened(path, self._real.create(path, size))

    def open(self, path: Path) -> int:
        return self._opened(path, self._real.open(path))

    def _opened(self, path: Path, descriptor: int) -> int:
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], position: int) -> None:
        self._tick()
        data = b"".join(parts)
        before = self._real.read(descriptor, len(data), position).ljust(len(data), b"\0")
        self._pending.append((self._paths[descriptor], position, before, data))
        self._real.write(descriptor, [data], position)

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        return self._real.read(descriptor, size, position)

    def sync(self, descriptor: int) -> None:
        self._tick()
        path = self._paths[descriptor]
        self._pending = [write for write in self._pending if write[0] != path]

    def truncate(self, descriptor: int, size: int) -> None:
        self._real.truncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        self._real.close(descriptor)

    def remove(self, path: Path) -> None:
        self._tick()
        self._real.remove(path)

    def lose(self) -> int:
        """Lose what was not synchronized, sector by sector as chance has it; return how many writes that were."""
        for path, position, before, data in self._pending:
            kept = bytearray(before)
            for start in range(0, len(data), SECTOR):
                if self._random.random() < 0.5:
                    kept[start : start + SECTOR] = data[start : start + SECTOR]
            with path.open("r+b") as file:
                file.seek(position)
                file.write(kept)
        return len(self._pending)


def half_written(before: bytes, after: bytes, random: Random) -> bytes:
    """Return an index file in the middle of a commit: some of its new pages, and its first two as they were.

    LMDB writes the pages, synchronizes them, and writes one of the first two; a sector is written whole or not at all.
    """
    mixed = bytearray(before.ljust(len(after), b"\0"))
    for start in range(2 * PAGE, len(after), SECTOR):
        if random.random() < 0.5:
            mixed[start : start + SECTOR] = after[start : start + SECTOR]
    return bytes(mixed)


def cut_power(directory: Path, seed: int) -> str:
    """Run one case and check the log afterwards; return what kind of cut it was.

    Raises:
        AssertionError: an acknowledged event is lost, or one is there twice.
    """
    random = Random(seed)
    index, witness = directory / "index" / "data.mdb", directory / "index" / "witness"
    disk = TornDisk(random)
    store = make_store(directory, disk=disk, segment_bytes=SEGMENT)
    acknowledged: list[bytes] = []
    at = 1
    for number in range(random.randrange(7)):
        count = random.randrange(1, 60)
        store.appender.append({0: numbered(at, at + count - 1)}, now=number)
        acknowledged += [b"%d" % n for n in range(at, at + count)]
        at += count
    count = random.randrange(1, 60)
    events = numbered(at, at + count - 1)
    payloads = [b"%d" % n for n in range(at, at + count)]
    before = index.read_bytes(), witness.read_bytes()
    disk.stop_at = disk.operations + random.randrange(6)
    kind = "in the middle of the segment"
    try:
        store.appender.append({0: events}, now=99)
    except PowerCut:
        pass
    else:
        kind = random.choice(("in the middle of the commit", "after the commit"))
    store.close()
    lost = disk.lose()
    if kind == "in the middle of the commit":
        index.write_bytes(half_written(before[0], index.read_bytes(), random))
        witness.write_bytes(before[1])
    else:
        if kind == "after the commit":
            acknowledged += payloads
            assert not lost, "the index names bytes that are not on the disk"
        witness.write_bytes(random.choice((witness.read_bytes(), before[1], witness.read_bytes()[:7], b"")))
    _check(directory, acknowledged, events, payloads)
    return kind


def _check(directory: Path, acknowledged: list[bytes], events: Sequence[EventRun], payloads: list[bytes]) -> None:
    store: Store = make_store(directory, segment_bytes=SEGMENT)
    try:
        found = stored(store)
        assert found == acknowledged, "acknowledged events are lost, or others are there"
        # The publisher got no confirmation, or it was lost: it sends them again.
        store.appender.append({0: events}, now=99)
        expected = acknowledged if acknowledged[-len(payloads) :] == payloads else acknowledged + payloads
        assert stored(store) == expected
        assert not [damage for _, _, damage in store.reader.verify() if damage]
    finally:
        store.close()


def main(cases: int) -> None:
    """Run cases and print what they were."""
    kinds: collections.Counter[str] = collections.Counter()
    for seed in range(cases):
        directory = Path(tempfile.mkdtemp(prefix="iris-power-"))
        try:
            kinds[cut_power(directory, seed)] += 1
        except BaseException:
            sys.stderr.write(f"case {seed} failed, see {directory}\n")
            raise
        shutil.rmtree(directory)
    sys.stdout.write(f"{cases} power cuts, nothing acknowledged lost, nothing doubled: {dict(kinds)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
