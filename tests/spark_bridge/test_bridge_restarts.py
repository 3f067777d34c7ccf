"""A bridge is restarted again and again under a publisher and a query: no gap, no ended query, each event once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.bridges import BridgeProcess

ROOT = Path(__file__).resolve().parents[2]
RATE = 200
"""Events per second."""

PUBLISHER = f"""
import sys, trio, iris

async def main():
    async with iris.open_node("publisher") as node, trio.open_nursery() as nursery:
        await node.wait_for("bridge", timeout=60)
        ended = trio.Event()

        async def wait_end():
            await trio.to_thread.run_sync(sys.stdin.read)
            ended.set()

        nursery.start_soon(wait_end)
        begun, count = trio.current_time(), 0
        async with node.confirming(timeout=120) as events:
            while not ended.is_set():
                await trio.sleep_until(begun + count / {RATE})
                await events.publish("t", b"%d" % count)
                count += 1
                if count % 20 == 0:
                    print(count, flush=True)
    print("confirmed", count, flush=True)

trio.run(main)
"""
"""Publishes numbers until its input ends, and says how many; all are confirmed at the end, or it fails."""


class Publisher:
    """The program above, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.published = 0
        """Events that it has published, as it has said last."""
        self._confirmed: int | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in _pipe(self._process.stdout):
            word, _, count = line.rpartition(" ")
            if word:
                self._confirmed = int(count)
            else:
                self.published = int(count)

    def check(self) -> None:
        """Fail if it has ended."""
        assert self._process.poll() is None, "the publisher has ended"

    def finish(self) -> int:
        """Have it end; return how many events it has published, all of them confirmed."""
        _pipe(self._process.stdin).close()
        assert self._process.wait(timeout=120) == 0
        self._reader.join()
        assert self._confirmed is not None
        return self._confirmed

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


class Rows:
    """What a query has read: the numbers of each batch.  A batch that Spark repeats takes its own place."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def keep(self, batch: DataFrame, number: int) -> None:
        """Keep the numbers of a batch."""
        self.batches[number] = [int(row.value) for row in batch.select("value").collect()]

    @property
    def numbers(self) -> list[int]:
        """Numbers of all batches."""
        return [number for batch in list(self.batches.values()) for number in batch]

    def wait_for(self, number: int, query: StreamingQuery, publisher: Publisher | None = None) -> None:
        """Wait until a number has come, and see to it that query and publisher go on."""
        deadline = time.monotonic() + 120
        while not any(number in batch for batch in list(self.batches.values())):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, "the query has stopped reading"
            if publisher is not None:
                publisher.check()
            time.sleep(0.02)


@contextmanager
def running_query(spark: SparkSession, checkpoint: Path, rows: Rows) -> Iterator[StreamingQuery]:
    query = (
        spark.readStream.format("iris")
        .options(subscribe="t", startingOffsets="earliest", group="g")
        .load()
        .writeStream.foreachBatch(rows.keep)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


@pytest.mark.parametrize("restarts", [1, pytest.param(10, marks=pytest.mark.long)])
def test_a_bridge_that_is_restarted_costs_a_query_nothing(
    spark: SparkSession, realm: Path, tmp_path: Path, restarts: int
) -> None:
    rows, bridge = Rows(), BridgeProcess(tmp_path / "log")
    with bridge:
        publisher = Publisher()
        try:
            with running_query(spark, tmp_path / "checkpoint", rows) as query:
                for restart in range(restarts):
                    rows.wait_for(publisher.published + RATE // 2, query, publisher)
                    if restart % 2:
                        bridge.stop()
                    else:
                        bridge.kill()
                    bridge.start()
                count = publisher.finish()
                rows.wait_for(count - 1, query)
                query.processAllAvailable()
                assert query.isActive
        finally:
            publisher.close()
        status = subprocess.run(
            [sys.executable, "-m", "iris", "bridge", "status", "--json"], check=True, capture_output=True, cwd=ROOT
        )
    found = json.loads(status.stdout)
    assert sorted(rows.numbers) == list(range(count))
    assert (found["gaps"], found["damage"]) == ([], [])
    assert sum(shard["next"] for shard in found["shards"]) == count
