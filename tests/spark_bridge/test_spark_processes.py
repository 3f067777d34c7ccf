"""The Python processes of a query, and what the realm sees of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import iris.sync
from tests.support.bridges import BridgeProcess, publish

EVENTS = 2_000


@pytest.fixture
def bridge(realm: Path, tmp_path: Path) -> Iterator[BridgeProcess]:
    with BridgeProcess(tmp_path / "log") as bridge:
        yield bridge


def is_planning(command: Path) -> bool:
    try:
        return b"pyspark.sql.worker." in command.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def pythons(spark: SparkSession) -> dict[int, int]:
    """Return the Python processes that Spark's Java has started, and those that these have, but for those of planning.

    Those Spark starts for any source in Python, two for each step; they idle while a query runs.  With each process
    comes the processor time that it has taken, in ticks.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith("python") and not is_planning(status.with_name("cmdline")):
            fields = rest.split()
            parents[int(status.parent.name)] = int(fields[1])
            ticks[int(status.parent.name)] = int(fields[11]) + int(fields[12])
    jvm: Any = spark.sparkContext._jvm
    found = {int(jvm.ProcessHandle.current().pid())}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return {process: ticks[process] for process in found & parents.keys()}


def test_a_query_needs_two_pythons_more_than_there_are_cores_and_none_is_a_member(
    spark: SparkSession, bridge: BridgeProcess, tmp_path: Path
) -> None:
    publish([b"%d" % number for number in range(EVENTS)])
    most: set[int] = set()
    rows = 0
    idle = pythons(spark)  # of queries before this one, where tests share the session

    with iris.sync.open_node("watcher") as node:
        node.wait_for("bridge")
        members = {other.node for other in node.nodes()}

        def look(batch: DataFrame, number: int) -> None:
            nonlocal most, rows
            rows += batch.count()
            working = {process for process, ticks in pythons(spark).items() if ticks != idle.get(process)}
            most = max(most, working, key=len)
            assert {other.node for other in node.nodes()} <= members, number

        query = (
            spark.readStream.format("iris")
            .options(
                subscribe=">", startingOffsets="earliest", minPartitions="4", maxOffsetsPerTrigger=str(EVENTS // 2)
            )
            .load()
            .writeStream.foreachBatch(look)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
    assert rows == EVENTS
    cores = spark.sparkContext.defaultParallelism
    assert 2 < len(most) <= cores + 2
