"""Rates of the bridge beside others that do the same work: each line a row of docs/explanation/measured/spark.md."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import trio

import iris
from iris.spark_bridge.log.index import Index
from iris.spark_bridge.log.records import CHUNKS, SEGMENTS, SHARDS, ChunkPlace, SegmentRecord
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.log.segments import SEGMENT_BYTES
from tests.support.processes import Child, bridge_child, open_realm

SIZE: Final = 1024
ROUNDS: Final = 3
_GROUP: Final = 8 * 1024 * 1024
CHUNK: Final = 1000
_POOL: Final = 8 * 1024 * 1024
_APART: Final = 7919
"""Distance of payloads in the pool that all are cut from, in bytes: prime, so that they repeat after 8 million."""


def row(what: str, figure: str, target: str = "") -> None:
    """Print one line of the table."""
    print(f"| {what} | {figure} | {target} |", flush=True)


@functools.cache
def _pool() -> bytes:
    return Random(1).randbytes(_POOL)


def payload(number: int) -> bytes:
    """Return one of some millions of payloads, all different, that no compression makes smaller.

    Of a few that come again and again parquet would store each once, in its dictionary.
    """
    begin = number * _APART % (_POOL - SIZE)
    return _pool()[begin : begin + SIZE]


def median(measure: Callable[[], float]) -> tuple[float, str]:
    """Return the median of some rounds, and all of them in words."""
    found = [measure() for _ in range(ROUNDS)]
    return statistics.median(found), " / ".join(f"{value:,.0f}" for value in found)


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> float:
    """Return the most memory that a process has had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


# -- publishing ------------------------------------------------------------------------------------------------


def disk_rate(directory: Path, events: int) -> float:
    """Return how many events per second the disk takes at most: their bytes, written and synced by 8 MiB."""
    data = Random(2).randbytes(_GROUP)
    path = directory / "plain"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, events * SIZE // _GROUP)):
            file.write(data)
            os.fdatasync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return max(1, events * SIZE // _GROUP) * _GROUP / SIZE / seconds


async def publish_confirmed(events: int) -> float:
    """Publish events to the bridge, and return how many it confirms in a second."""
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=60)
        began = time.perf_counter()
        async with node.confirming(timeout=60) as confirmed:
            for number in range(events):
                await confirmed.publish("rates", payload(number))
        return events / (time.perf_counter() - began)


def publishing(events: int) -> None:
    """Measure confirmed publishing through one member, and the disk below it.  For JetStream see its own benchmark."""
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            rate, rounds = median(lambda: trio.run(publish_confirmed, events))
            memory = peak_memory(bridge.pid)
        finally:
            bridge.end()
        plain, plain_rounds = median(lambda: disk_rate(directory, events))
    row("confirmed events/s of 1 KB, pipelined, one member", f"{rate:,.0f} ({rounds})", ">= 150,000")
    row("the same bytes written and synced by 8 MiB, nothing else", f"{plain:,.0f} ({plain_rounds})")
    row("memory of the member at its peak", f"{memory:.0f} MiB", "< 300 MiB")


# -- opening ---------------------------------------------------------------------------------------------------


def opening(events: int = 100_000_000) -> None:
    """Measure opening a log: its index is that of ``events`` events of 1 KB, its segments are files with holes."""
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        directory = Path(name)
        store = open_store(directory, shards=[0], entropy=os.urandom)
        epoch = store.shards()[0].epoch
        store.close()
        fill_index(directory, epoch, events)
        began = time.perf_counter()
        store = open_store(directory, shards=[0], entropy=os.urandom)
        (state,) = store.shards()
        seconds = time.perf_counter() - began
        assert state.next == events
        began = time.perf_counter()
        store.reader.offset_at(0, events // 2)
        looked = time.perf_counter() - began
        store.close()
    row(f"opening a log of {events:,} events", f"{seconds:.3f} s", "< 2 s")
    row("finding an event in it by its time", f"{looked * 1000:.1f} ms")


def fill_index(directory: Path, epoch: str, events: int) -> None:
    """Write the index of a log of ``events`` events of 1 KB, and its segments as files with holes."""
    size = CHUNK * (SIZE + 128)
    each = SEGMENT_BYTES // size
    index = Index(directory / "index")
    chunks = events // CHUNK
    for begin in range(0, chunks, each * 100):
        with index.write() as view:
            for segment in range(begin, min(begin + each * 100, chunks), each):
                count = min(each, chunks - segment)
                first, end = segment * CHUNK, (segment + count) * CHUNK
                for at in range(count):
                    number = first + at * CHUNK
                    place = ChunkPlace(
                        first=number,
                        count=CHUNK,
                        timestamp=number,
                        segment=first,
                        position=at * size,
                        size=size,
                    )
                    view.put(CHUNKS, (0, number), place)
                record = SegmentRecord(first=first, end=end, size=count * size, written=first, last_timestamp=end - 1)
                view.put(SEGMENTS, (0, first), record)
                with (directory / "segments" / f"{0:05d}-{epoch}-{first:020d}.segment").open("wb") as file:
                    file.truncate(SEGMENT_BYTES)
            shard = view.get(SHARDS, 0)
            assert shard is not None
            view.put(SHARDS, 0, type(shard)(number=0, epoch=epoch, earliest=0, next=events, timestamp=events, size=0))
    index.close()


@contextlib.contextmanager
def filled_bridge(events: int) -> Iterator[tuple[Path, Child]]:
    """Run a bridge that holds ``events`` events of 1 KB on the topic ``rates``."""
    with open_realm() as directory:
        bridge = bridge_child(directory)
        bridge.start()
        try:
            trio.run(publish_confirmed, events)
            yield directory, bridge
        finally:
            bridge.end()
