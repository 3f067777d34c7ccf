"""A query reads a bridge that grows while a publisher goes on, from a checkpoint of before."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
import trio
from pyspark.sql import DataFrame, SparkSession

import iris
from iris.cli.main import run_command
from tests.support.bridges import BridgeProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

KEYS = 50


class Publisher:
    """Publishes confirmed events of some keys, numbered, in a thread."""

    def __init__(self) -> None:
        self.count = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._publish,))

    async def _publish(self) -> None:
        async with iris.open_node("publisher") as node:
            await node.wait_for("bridge", 2, timeout=60)
            async with node.confirming(timeout=120) as events:
                while not self._end.is_set():
                    await events.publish("t", b"%d" % self.count, key=f"k{self.count % KEYS}")
                    self.count += 1
                    await trio.sleep(0.001)

    def check(self) -> None:
        """Check that it goes on."""
        assert self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def waiting_member(directory: Path, shard: int, of: int) -> Iterator[subprocess.Popen[str]]:
    """A member that waits until the bridge has grown."""
    command = [sys.executable, "-m", "iris", "bridge", "--topic", "t", "--data", str(directory), "--shard", str(shard)]
    process = subprocess.Popen([*command, "--of", str(of)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert f"'iris bridge grow bridge --of {of}'" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def run_query(spark: SparkSession, checkpoint: Path, rows: list[tuple[int, int, int, str, int]]) -> None:
    """Read all that is there, and keep batch, shard, offset, key and number of each event."""

    def keep(batch: DataFrame, number: int) -> None:
        found = batch.select("partition", "offset", "key", "value").collect()
        rows.extend((number, row.partition, row.offset, bytes(row.key).decode(), int(row.value)) for row in found)

    query = (
        spark.readStream.format("iris")
        .options(subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="1500")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


def test_a_query_goes_on_across_a_growth_from_a_checkpoint_of_before(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    rows: list[tuple[int, int, int, str, int]] = []
    with ExitStack() as stack:
        for shard in (0, 1):
            stack.enter_context(BridgeProcess(tmp_path / str(shard), "--shard", str(shard), "--of", "2"))
        with Publisher() as publisher:
            run_query(spark, tmp_path / "checkpoint", rows)
            assert {shard for _, shard, *_ in rows} <= {0, 1}
            new = [stack.enter_context(waiting_member(tmp_path / str(shard), shard, 4)) for shard in (2, 3)]
            before = publisher.count
            assert run_command(["bridge", "grow", "bridge", "--of", "4"]) == 0
            assert run_command(["bridge", "grow", "bridge", "--of", "4"]) == 0, "it may be repeated"
            for process in new:
                assert process.stderr is not None
                line = process.stderr.readline()
                if "not all of its 2 shards" in line:  # it looked while they grew, one after the other
                    line = process.stderr.readline()
                assert "stores t" in line
            while publisher.count < before + 1000:
                publisher.check()
                time.sleep(0.01)
        run_query(spark, tmp_path / "checkpoint", rows)
    assert sorted(number for *_, number in rows) == list(range(publisher.count))
    assert {shard for _, shard, *_ in rows} == {0, 1, 2, 3}
    for key in {key for *_, key, _ in rows}:
        # Within a batch each key is in one shard, and Spark may take shards in any order.
        own = sorted(row for row in rows if row[3] == key)
        assert len({(batch, shard) for batch, shard, *_ in own}) == len({batch for batch, *_ in own})
        assert [row[4] for row in own] == sorted(row[4] for row in own)
