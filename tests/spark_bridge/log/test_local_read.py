"""Reading segments as files: only the file that the member means, only by those who may, and what was stored."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import NotAllowed, RemoteError, RemoteProtocolError
from iris.patterns.bridge_protocol import read_reply
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.reader import read_chunks
from iris.spark_bridge.errors import DataLost, LogDamaged
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.chunk_io import split_pieces
from iris.spark_bridge.log.local_read import FileRange, machine, read_file_range
from iris.spark_bridge.log.records import ChunkPlace
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.protocol import Extent
from iris.testing import open_network
from tests.support.arrivals import numbered, payloads
from tests.support.bridge_members import open_member
from tests.support.bridge_requests import ask_raw

EVENTS = 60
EACH = 10
"""Events of one append, which is one chunk."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A log of six chunks in three segments."""
    opened = open_store(tmp_path, shards=[0], entropy=os.urandom, segment_bytes=4000)
    for first in range(1, EVENTS + 1, EACH):
        opened.appender.append({0: numbered(first, first + EACH - 1)}, now=first)
    yield opened
    opened.close()


def locate(store: Store, start: int, end: int, max_bytes: int = 1 << 20) -> FileRange:
    return store.reader.locate(0, store.shards()[0].epoch, start, end, max_bytes=max_bytes)


def read(found: FileRange) -> list[bytes]:
    return payloads(list(read_file_range(found)))


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def test_a_range_is_read_from_its_file_up_to_the_end_of_that_file(store: Store) -> None:
    assert len(list(Path(locate(store, 0, 1).path).parent.glob("*.segment"))) == 3
    assert read(locate(store, 0, 60)) == numbers(1, 20)
    assert read(locate(store, 15, 60)) == numbers(11, 20), "whole chunks, as by session"
    assert read(locate(store, 25, 26)) == numbers(21, 30)
    assert read(locate(store, 0, 60, max_bytes=1)) == numbers(1, 10), "one chunk in any case"
    assert read(locate(store, 59, 60)) == numbers(51, 60)


def test_chunks_are_read_in_pieces_and_a_large_one_alone(store: Store) -> None:
    def place(first: int, position: int, size: int, segment: int = 0) -> ChunkPlace:
        return ChunkPlace(first=first, count=1, timestamp=0, segment=segment, position=position, size=size)

    places = [place(0, 5, 10), place(1, 15, 10), place(2, 25, 30), place(3, 55, 5), place(4, 60, 5)]
    assert split_pieces([*places, place(5, 0, 5, segment=1)], 20) == [(0, 5, 20), (2, 25, 30), (3, 55, 10)]
    assert split_pieces([place(0, 0, 5), place(2, 5, 5)], 20) == [(0, 0, 5), (2, 5, 5)], "nothing wanted in between"


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        pytest.param({"inode": 1}, False, id="another file"),
        pytest.param({"device": 0}, False, id="another disk"),
        pytest.param({"path": "/dev/null"}, False, id="no file"),
        pytest.param({"path": "/nowhere/at/all"}, True, id="nothing"),
    ],
)
def test_another_file_than_the_members_is_not_read(store: Store, change: dict[str, Any], gone: bool) -> None:
    found = dataclasses.replace(locate(store, 0, 60), **change)
    if gone:
        with pytest.raises(OSError, match="No such file"):
            read(found)
    else:
        assert read(found) == []


def test_a_path_that_leads_elsewhere_is_not_followed(store: Store, tmp_path: Path) -> None:
    found = locate(store, 0, 60)
    (tmp_path / "link").symlink_to(found.path)
    assert read(dataclasses.replace(found, path=str(tmp_path / "link"))) == []


def test_what_is_no_file_is_not_even_opened(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    at = (tmp_path / "pipe").stat()
    found = locate(store, 0, 60)
    assert read(dataclasses.replace(found, path=str(tmp_path / "pipe"), device=at.st_dev, inode=at.st_ino)) == []


def test_a_reader_keeps_what_it_has_opened_while_retention_removes_it(store: Store) -> None:
    found = locate(store, 0, 60)
    sizes = [(chunk.first, len(chunk.frame)) for chunk in read_file_range(found)]
    ends = itertools.accumulate((size for _, size in sizes), initial=found.pieces[0][1])
    singly = dataclasses.replace(found, pieces=[(at, end, size) for (at, size), end in zip(sizes, ends, strict=False)])
    chunks = read_file_range(singly)
    first = next(chunks)
    store.retainer.retain(Retention(max_age=1e-6), now=10**12)
    assert not Path(found.path).exists()
    assert payloads([first, *chunks]) == numbers(1, 20)
    with pytest.raises(DataLost):
        locate(store, 0, 60)


def test_a_flipped_bit_is_noticed_by_the_reader(store: Store) -> None:
    found = locate(store, 0, 60)
    data = bytearray(Path(found.path).read_bytes())
    data[found.pieces[0][1] + found.pieces[0][2] - 1] ^= 1
    Path(found.path).write_bytes(data)
    with pytest.raises(LogDamaged):
        read(found)


def test_a_segment_that_is_missing_is_said(store: Store) -> None:
    Path(locate(store, 0, 60).path).unlink()
    with pytest.raises(LogDamaged, match="is missing"):
        locate(store, 0, 60)


@pytest.mark.parametrize(
    "change",
    [
        {"path": 5},
        {"inode": -1},
        {"end": "0"},
        {"end": True},
        {"pieces": [[0, 0, 0]]},
        {"pieces": [[0, 0, 1 << 40]]},
        {"pieces": [[0, -1, 10]]},
        {"pieces": [[0, True, 10]]},
        {"pieces": [[0, 10]]},
        {"pieces": [10]},
        {"pieces": "10"},
    ],
)
def test_what_a_member_says_is_checked(change: dict[str, Any]) -> None:
    good = {"path": "/x", "device": 1, "inode": 2, "end": 9, "pieces": [[0, 0, 10]]}
    assert read_reply(FileRange, good) == FileRange(path="/x", device=1, inode=2, end=9, pieces=[(0, 0, 10)])
    for fields in (good | change, {}, None, [1]):
        with pytest.raises(RemoteProtocolError):
            read_reply(FileRange, fields)


# -- files first, then a session -----------------------------------------------------------------------------


class Reached:
    """A portal and a client in one: to a log without a bridge.  It counts the events that a session brought."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.change: Callable[[FileRange], FileRange | None] = lambda found: found
        self.by_session: list[int] = []

    def call(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        return trio.run(ask, self)

    def stream(self, source: Callable[[Any], AsyncGenerator[list[Chunk]]]) -> Generator[list[Chunk]]:
        async def collect() -> list[list[Chunk]]:
            return [part async for part in source(self)]

        yield from trio.run(collect)

    async def locate(self, address: str, shard: str, start: int, end: int, wanted: TopicFilter) -> FileRange | None:
        await trio.lowlevel.checkpoint()
        return self.change(self.store.reader.locate(0, shard[2:], start, end, max_bytes=1 << 20, wanted=wanted))

    async def read(
        self, address: str, shard: str, start: int, end: int, wanted: TopicFilter, *, pass_damage: bool = False
    ) -> AsyncGenerator[list[Chunk]]:
        await trio.lowlevel.checkpoint()
        while start < end:
            chunks = self.store.reader.read(
                *(0, shard[2:], start, end), max_bytes=1, wanted=wanted, pass_damage=pass_damage
            )
            self.by_session += range(chunks[0].first, chunks[-1].end)
            yield chunks
            start = chunks[-1].end

    async def wait_offsets(self, address: str, known: Any, timeout: float, wanted: TopicFilter) -> dict[str, Extent]:
        await trio.lowlevel.checkpoint()
        (state,) = self.store.shards()
        return {state.id: Extent(earliest=state.earliest, next=state.next)}


@pytest.fixture
def reached(store: Store) -> Reached:
    return Reached(store)


def values(reached: Reached, start: int = 0, end: int = EVENTS, **options: Any) -> list[bytes]:
    (state,) = reached.store.shards()
    portal: Any = reached
    chosen = SourceOptions(**options)
    return payloads(list(read_chunks(portal, chosen, address="bridge", shard=state.id, start=start, end=end)))


def test_all_files_of_a_range_are_read_and_no_session_is_needed(reached: Reached) -> None:
    assert values(reached) == numbers(1, 60)
    assert values(reached, start=25, end=51) == numbers(21, 60)
    assert reached.by_session == []


def test_without_local_files_everything_comes_by_session(reached: Reached) -> None:
    assert values(reached, local_files=False) == numbers(1, 60)
    assert reached.by_session == list(range(60))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(None, id="the member is elsewhere"),
        pytest.param({"inode": 1}, id="another file"),
        pytest.param({"path": "/nowhere/at/all"}, id="no file"),
        pytest.param({"pieces": [[20, 3, 99]]}, id="no chunk there"),
        pytest.param({"end": 20, "pieces": []}, id="nothing of the file"),
        pytest.param({"path": "/no\0where"}, id="no path"),
        pytest.param({"pieces": [[20, 2**64 - 1, 99]]}, id="no position"),
    ],
)
def test_what_no_file_gives_comes_by_session(reached: Reached, change: dict[str, Any] | None) -> None:
    def tell(found: FileRange) -> FileRange | None:
        if "20.segment" not in found.path:
            return found
        return None if change is None else dataclasses.replace(found, **change)

    reached.change = tell
    assert values(reached) == numbers(1, 60)
    assert reached.by_session == list(range(20, 60))


def test_other_events_than_were_asked_for_are_not_taken(reached: Reached) -> None:
    first = reached.store.reader.locate(0, reached.store.shards()[0].epoch, 0, 1, max_bytes=1)
    reached.change = lambda _: first
    assert values(reached) == numbers(1, 60)
    assert reached.by_session == list(range(10, 60))


def test_damage_is_said_by_the_member(reached: Reached) -> None:
    found = locate(reached.store, 20, 60)
    data = bytearray(Path(found.path).read_bytes())
    data[found.pieces[0][2] - 1] ^= 1
    Path(found.path).write_bytes(data)
    with pytest.raises(LogDamaged, match=r"20\.segment, bytes .* set failOnDataLoss to false to go on without"):
        values(reached)
    (damage,) = reached.store.reader.damage()
    left = [*range(1, damage.offset + 1), *range(damage.end + 1, 61)]
    assert values(reached, fail_on_data_loss=False) == [b"%d" % number for number in left]


def test_what_was_trimmed_is_lost_or_left_out(reached: Reached) -> None:
    reached.store.retainer.trim(0, 40)
    with pytest.raises(DataLost, match="was trimmed"):
        values(reached)
    assert values(reached, fail_on_data_loss=False) == numbers(41, 60)


# -- among nodes ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def bridge_and_client(directory: Path, **options: Any) -> AsyncIterator[tuple[BridgeClient, str]]:
    """A bridge that holds one event, a client of it, and the name of its shard."""
    async with (
        open_network() as network,
        open_member(network, directory, topics=["a"], **options) as bridge,
        network.open_node("reader") as reader,
    ):
        await reader.publish_confirmed("a", b"x")
        (shard,) = bridge.states
        yield BridgeClient(reader, "bridge", patience=5), shard


async def test_a_member_on_this_machine_tells_where_events_are(tmp_path: Path) -> None:
    async with bridge_and_client(tmp_path) as (client, shard):
        found = await client.locate("bridge", shard, 0, 1)
        assert found is not None
        assert read(found) == [b"x"]
        with pytest.raises(DataLost, match="was wiped"):
            await client.locate("bridge", "0@0000000000000000", 0, 1)
        with pytest.raises(RemoteError, match="no events up to 2"):
            await client.locate("bridge", shard, 1, 2)


async def test_who_names_another_machine_is_told_nothing(tmp_path: Path) -> None:
    async with bridge_and_client(tmp_path) as (client, shard):
        question = {"shard": shard, "start": 0, "end": 1, "machine": "another"}
        assert await ask_raw(client, "locate", question) is None
        assert await ask_raw(client, "locate", question | {"machine": machine()}) is not None
        with pytest.raises(RemoteError, match="bad_request"):
            await ask_raw(client, "locate", question | {"machine": None})


async def test_who_may_not_read_is_told_nothing(tmp_path: Path) -> None:
    async with bridge_and_client(tmp_path, readers=["analysts"]) as (client, shard):
        with pytest.raises(NotAllowed, match="may not read"):
            await client.locate("bridge", shard, 0, 1)


async def test_a_system_without_a_name_for_the_machine_reads_by_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridge_and_client(tmp_path) as (client, shard):
        for module in ("client.client", "server.operations"):
            monkeypatch.setattr(f"iris.spark_bridge.{module}.machine", lambda: None)
            assert await ask_raw(client, "shards", None)
        assert await client.locate("bridge", shard, 0, 1) is None
        question = {"shard": shard, "start": 0, "end": 1, "machine": "any"}
        assert await ask_raw(client, "locate", question) is None
