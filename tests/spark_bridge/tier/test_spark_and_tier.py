"""Spark and a tier: its source reads through both, and its own Parquet reader reads the files."""

from __future__ import annotations

import json
from pathlib import Path

import trio
from pyspark.sql import SparkSession

from tests.support.bridges import BridgeProcess, publish
from tests.support.tiers import local_segments, open_tiered


async def leave_to_tier(directory: Path) -> None:
    """Have all of a log in its tier alone, while no bridge is running on it."""
    with open_tiered(directory / "log", directory / "tier") as log:
        await log.move_all()
    assert local_segments(directory / "log") == 0


def test_spark_reads_from_the_tier_on_and_its_own_reader_reads_the_files(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    numbers = [b"%d" % number for number in range(50)]
    with BridgeProcess(tmp_path / "log", "--tier", str(tmp_path / "tier")) as bridge:
        publish(numbers[:30], topic="a.b")
        bridge.stop()
        trio.run(leave_to_tier, tmp_path)
        bridge.start()
        publish(numbers[30:], topic="a.b")
        rows = spark.read.format("iris").option("subscribe", "a.>").load().orderBy("offset").collect()
        assert [bytes(row.value) for row in rows] == numbers
        offset = json.dumps({"0": 7})
        later = spark.read.format("iris").option("startingOffsets", offset).load().orderBy("offset").collect()
        assert [bytes(row.value) for row in later] == numbers[7:]
        files = spark.read.parquet(str(tmp_path / "tier" / "bridge"))
        assert files.drop("shard").schema == spark.read.format("iris").option("includeHeaders", "true").load().schema
        found = files.where("topic = 'a.b'").orderBy("offset").collect()
        assert [bytes(row.value) for row in found[:30]] == numbers[:30]
        assert [(row.offset, row.timestamp) for row in found[:30]] == [(row.offset, row.timestamp) for row in rows[:30]]
