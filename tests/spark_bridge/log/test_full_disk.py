"""A full disk: appending is refused in one piece, reading goes on, and room makes it work again."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from iris.kernel.errors import RequestTimeout
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.events.gaps import GapBook
from iris.spark_bridge.log import appender, retention
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.log.retention import Retainer
from iris.spark_bridge.log.segments import FileSystem
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.transaction import Transaction
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.support.arrivals import fake_event, make_store, numbered, stored
from tests.support.bridge_members import open_member

SEGMENT = 8192


class SmallDisk:
    """A disk with room for so many segments, whose writes fail on demand."""

    def __init__(self, segments: int) -> None:
        self.room = segments
        self.full = False
        self.shrinks = True
        self._real = FileSystem()

    def create(self, path: Path, size: int) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        return self._real.create(path, size)

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], position: int) -> None:
        if self.full:
            self._real.write(descriptor, [memoryview(parts[1])[:10]], position)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        self._real.write(descriptor, parts, position)

    def remove(self, path: Path) -> None:
        self._real.remove(path)
        self.room += 1

    def open(self, path: Path) -> int:
        return self._real.open(path)

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        return self._real.read(descriptor, size, position)

    def sync(self, descriptor: int) -> None:
        self._real.sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        if not self.shrinks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._real.truncate(descriptor, size)

    def close(self, descriptor: int) -> None:
        self._real.close(descriptor)


def append_until_full(store: Store) -> tuple[list[bytes], str]:
    """Append ten numbered events at a time until there is no room; return what was taken and the error."""
    taken: list[bytes] = []
    while True:
        at = len(taken) + 1
        try:
            store.appender.append({0: numbered(at, at + 9)}, now=at)
        except StoreFull as error:
            return taken, str(error)
        taken += [b"%d" % n for n in range(at, at + 10)]


def test_an_append_without_room_stores_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path, disk=SmallDisk(2), segment_bytes=SEGMENT)
    taken, error = append_until_full(store)
    assert taken
    assert stored(store) == taken
    assert "No space left" in error
    store.close()


def test_appending_finds_the_room_that_trimming_makes(tmp_path: Path) -> None:
    store = make_store(tmp_path, disk=SmallDisk(2), segment_bytes=SEGMENT)
    taken, _ = append_until_full(store)
    store.retainer.trim(0, len(taken) // 2 + 10)
    at = len(taken) + 1
    assert store.appender.append({0: numbered(at, at + 9)}, now=at).count == 10, (
        "what was refused is not taken for a repeat"
    )
    assert stored(store)[-1] == b"%d" % (at + 9)
    store.close()


def test_what_is_committed_is_acknowledged_though_no_room_can_be_given_back(tmp_path: Path) -> None:
    disk = SmallDisk(9)
    store = make_store(tmp_path, disk=disk, segment_bytes=SEGMENT)
    disk.shrinks = False  # a file system that copies on writing needs room for that
    taken, _ = append_until_full(store)
    assert stored(store) == taken
    store.close()


def test_half_a_write_leaves_no_trace(tmp_path: Path) -> None:
    disk = SmallDisk(9)
    store = make_store(tmp_path, disk=disk)
    store.appender.append({0: numbered(1, 3)}, now=0)
    disk.full = True
    with pytest.raises(StoreFull, match="quota"):
        store.appender.append({0: numbered(4, 6)}, now=0)
    disk.full = False
    assert store.appender.append({0: numbered(4, 6)}, now=0).count == 3
    assert stored(store) == [b"%d" % n for n in range(1, 7)]
    store.close()
    store = make_store(tmp_path)
    assert stored(store) == [b"%d" % n for n in range(1, 7)]
    store.close()


def test_an_index_that_has_reached_its_size_refuses_appends_until_it_may_grow(tmp_path: Path) -> None:
    store = open_store(tmp_path, shards=[0], entropy=os.urandom, map_bytes=128 * 1024)
    taken, error = append_until_full(store)
    assert stored(store) == taken
    assert "larger" in error
    store.close()
    store = open_store(tmp_path, shards=[0], entropy=os.urandom, map_bytes=1024 * 1024)
    store.appender.append({0: [fake_event(b"more")]}, now=0)
    assert stored(store) == [*taken, b"more"]
    store.close()


# -- a disk that is really small -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", directory], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield directory
    subprocess.run(["umount", directory], check=True)


def fill(directory: Path, leave: int) -> Path:
    """Leave so many bytes of a disk."""
    room = os.statvfs(directory)
    ballast = directory / f"ballast-{leave}"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize - leave))
    return ballast


def until_full(act: Callable[[int], object]) -> int:
    """Do something until there is no room for it; return how often there was."""
    for turn in range(100_000):
        try:
            act(turn)
        except StoreFull:
            return turn
    raise AssertionError("the disk is never full")


def open_small(directory: Path) -> Store:
    return make_store(directory / "log", segment_bytes=256 * 1024)


@pytest.mark.parametrize("leave", [0, 8192, 49152])
def test_a_log_is_not_begun_on_a_full_disk_and_is_with_room(small_disk: Path, leave: int) -> None:
    ballast = fill(small_disk, leave)
    with pytest.raises(StoreFull):
        open_small(small_disk)
    ballast.unlink()
    store = open_small(small_disk)
    store.appender.append({0: numbered(1, 9)}, now=1)
    assert len(stored(store)) == 9
    store.close()


def test_trimming_makes_room_also_when_the_index_has_none_left(small_disk: Path) -> None:
    store = open_small(small_disk)
    events = [fake_event(bytes(1000))] * 100
    taken = 100 * until_full(lambda _: store.appender.append({0: events}, now=1))
    assert taken == store.shards()[0].next
    fill(small_disk, 0)
    cursors = until_full(lambda turn: store.cursors.pin(f"group-{turn}", {"0@x": 1}, now=1))
    assert len(store.cursors.all()) == cursors
    with pytest.raises(StoreFull):  # LMDB calls it an input/output error from now on
        store.cursors.pin("another", {"0@x": 1}, now=1)
    assert store.retainer.trim(0, taken // 2) == taken // 2
    assert store.appender.append({0: events}, now=1).count == 100
    assert store.cursors.pin("another", {"0@x": 1}, now=1).group == "another"
    assert len(stored(store)) == taken - taken // 2 + 100
    assert [damage for *_, damage in store.reader.verify() if damage] == []
    store.close()


@pytest.mark.parametrize("work", ["retain", "forget_publishers"])
async def test_what_finds_no_room_in_the_background_ends_no_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    tried = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def refuse(*_: object, **__: object) -> int:
        token.run_sync_soon(tried.set)
        raise StoreFull("no room for that")

    monkeypatch.setattr(Retainer, work, refuse)
    async with (
        open_network() as network,
        open_member(network, tmp_path) as bridge,
        network.open_node("publisher") as node,
    ):
        await tried.wait()
        await node.publish_confirmed("t", b"x", timeout=60)
        assert stored(bridge.store) == [b"x"]


async def test_publishers_are_not_told_that_it_is_stored_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(open_store, disk=SmallDisk(2), segment_bytes=SEGMENT)
    monkeypatch.setattr("iris.spark_bridge.server.bridge.open_store", small)
    async with (
        open_network() as network,
        network.open_node("bridge") as member,
        open_bridge(member, topics=[">"], directory=tmp_path) as bridge,
        network.open_node("publisher") as node,
    ):
        told = 0

        async def publish_until_refused() -> None:
            nonlocal told
            while True:
                await node.publish_confirmed("t", b"%d" % told + bytes(1000), timeout=5)
                told += 1

        with pytest.raises(RequestTimeout, match=f"within 5 s; node {member.id} says: its log has no room"):
            await publish_until_refused()
        assert told > 5
        assert len(stored(bridge.store)) == told
        assert bridge.statistics().refusals > 0
        with pytest.raises(RequestTimeout, match=f"within 5 s; node {member.id} says: its log has no room"):
            async with node.confirming(timeout=5) as events:
                await events.publish("t", b"too late")
        async with node.confirming(timeout=60) as events:
            await events.publish("t", b"last")
            await trio.to_thread.run_sync(bridge.store.retainer.trim, 0, told // 2 + 2)
        left = [int(value.rstrip(b"\0")) for value in stored(bridge.store)[:-2]]
        assert left == list(range(left[0], told + 1)), "the one that was refused was kept, and is stored once"
        assert stored(bridge.store)[-2:] == [b"too late", b"last"]


@pytest.mark.parametrize("failures", [1, 2])
def test_what_is_missing_is_known_as_long_as_the_events_beside_it_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    left = failures

    def write_gaps(view: Transaction, gaps: GapBook) -> None:
        nonlocal left
        appender.write_gaps(view, gaps)
        if left:
            left -= 1
            raise StoreFull("no room for that")

    store = make_store(tmp_path, segment_bytes=SEGMENT)
    for number in (1, 2, 5, 6, 7):
        event = fake_event(b"x" * 3000, sequence=number, first=number)
        store.appender.append({0: [event]}, now=number)
    monkeypatch.setattr(retention, "write_gaps", write_gaps)
    if failures == 1:  # with the reserve there is room
        assert store.retainer.trim(0, 4) == 4
    else:
        with pytest.raises(StoreFull):
            store.retainer.trim(0, 4)
    for _ in range(2):
        assert [gap.count for gap in store.reader.gaps()] == [2] * (failures - 1)
        store.close()
        store = make_store(tmp_path, segment_bytes=SEGMENT)
    store.close()
