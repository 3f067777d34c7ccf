"""Rates of the bridge's ends in Spark: reading, and a query with nothing to do."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.bridge.rates import SIZE, filled_bridge, peak_memory, processor_time, row
from iris import spark_bridge
from iris.spark_bridge.datasource.options import parse_source_options
from iris.spark_bridge.datasource.source import IrisReader
from iris.spark_bridge.datasource.worker import settle_in
from iris.spark_bridge.events.schema import SINK_SCHEMA, SPARK_SCHEMA, place_rows

_PARTITIONS: Final = 2
_ROUNDS: Final = 5
_MICRO_BATCH: Final = 50_000
_PREMADE: Final = 8192
_IDLE: Final = 60.0
_SETTLE: Final = 3.0
_TRIES: Final = 10


@final
class TupleReader(DataSourceReader):
    """Our own source, but for what it hands to Spark: tuples."""

    def __init__(self, reader: IrisReader) -> None:
        self._reader = reader

    def partitions(self) -> Any:
        """Return the ranges."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield rows."""
        for batch in self._reader.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@final
class TupleSource(DataSource):
    """``format("iris_tuples")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "iris_tuples"

    def schema(self) -> str:
        """Return the columns."""
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark passes it
        """Return the reader."""
        return TupleReader(IrisReader(parse_source_options(dict(self.options), streaming=False)))


@final
class PremadeReader(DataSourceReader):
    """The least that a source in Python can do: it yields one batch, made beforehand, again and again."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> Any:
        """Return as many partitions as the log is read in."""
        return [InputPartition(self._rows // _PARTITIONS)] * _PARTITIONS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows of 1 KB."""
        settle_in()
        columns = {"key": None, "value": os.urandom(SIZE), "topic": "rates", "headers": None}
        rows = pa.RecordBatch.from_pylist([columns] * _PREMADE, schema=SINK_SCHEMA)
        batch = place_rows(rows, sender="publisher", shard=0, first=0, timestamp=0)
        for begin in range(0, partition.value, _PREMADE):
            yield batch.slice(0, partition.value - begin)


@final
class PremadeSource(DataSource):
    """``format("premade")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "premade"

    def schema(self) -> str:
        """Return the columns."""
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- Spark passes it
        """Return the reader."""
        return PremadeReader(int(self.options["rows"]))


def open_session(directory: Path, java: str = "", *, latency: bool = False) -> SparkSession:
    """Start Spark as documented for its users, with further options of its Java, or for fast answers."""
    builder = SparkSession.builder.master("local[2]").appName("rates")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    if java:
        settings["spark.driver.extraJavaOptions"] = java
    for name, value in settings.items():
        builder = builder.config(name, value)
    return spark_bridge.configure(builder, latency=latency).getOrCreate()


def measure_spark(events: int, java: str = "") -> None:
    """Measure everything that needs a session."""
    with filled_bridge(events) as (directory, bridge):
        spark = open_session(directory, java)
        try:
            _reading(spark, directory, events)
            _idle(spark, directory)
            row("memory of the member after all this", f"{peak_memory(bridge.pid):.0f} MiB", "< 300 MiB")
        finally:
            spark.stop()


def _reading(spark: SparkSession, directory: Path, events: int) -> None:
    for source in (TupleSource, PremadeSource):
        spark.dataSource.register(source)
    log = spark.read.format("iris").option("minPartitions", _PARTITIONS).load()
    # As many tasks for the files as for the log, and nothing to be unpacked: what is random is not made smaller.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1g")
    tables = {name: str(directory / name) for name in ("none", "snappy", "parts")}
    for compression in ("none", "snappy"):
        log.write.option("compression", compression).parquet(tables[compression])
    log.write.option("compression", "none").option("maxRecordsPerFile", _MICRO_BATCH).parquet(tables["parts"])
    frames = {
        "ours": log,
        "parquet": spark.read.parquet(tables["none"]),
        "parquet, snappy": spark.read.parquet(tables["snappy"]),
        "ours, by session": spark.read.format("iris").options(minPartitions=_PARTITIONS, localFiles=False).load(),
        "premade": spark.read.format("premade").option("rows", events).load(),
        "tuples": spark.read.format("iris_tuples").option("minPartitions", _PARTITIONS).load(),
    }
    found, used = _rounds({name: partial(_table_rate, frame, events) for name, frame in frames.items()})
    rates = {name: statistics.median(rounds) for name, rounds in found.items()}
    spent = {name: statistics.median(sum(kinds.values()) for kinds in rounds) for name, rounds in used.items()}
    targets = {"parquet": ">= 0.7x", "parquet, snappy": ">= 0.7x", "tuples": ">= 1.7x"}
    for name in frames:
        by_time = f"ours {rates['ours'] / rates[name]:.2f}x by time"
        by_work = f"{spent[name] / spent['ours']:.2f}x by processor time"
        row(f"rows/s of 1 KB, {name}", f"{_all(found[name])}: {by_time}, {by_work}", targets.get(name, ""))
    for name in frames:
        kinds = {kind: statistics.median(one[kind] for one in used[name]) for kind in used[name][0]}
        row(
            f"processor time for each row, {name}", f"{spent[name] / events * 1e6:.1f} us: {_each(kinds, events, 'us')}"
        )
    stream = spark.readStream.format("iris").options(minPartitions=_PARTITIONS, maxOffsetsPerTrigger=_MICRO_BATCH)
    parts = spark.readStream.schema(log.schema).option("maxFilesPerTrigger", 1)
    streams = {"ours": stream.load(), "parquet": parts.parquet(tables["parts"])}
    found, used = _rounds({name: partial(_stream_rate, frame, directory) for name, frame in streams.items()})
    ours, files = (statistics.median(found[name]) for name in streams)
    row(f"rows/s in micro-batches of {_MICRO_BATCH:,} from the bridge", _all(found["ours"]))
    row("the same from parquet files, one for each batch", f"{_all(found['parquet'])}: {ours / files:.2f}x", ">= 0.7x")


def _rounds(
    measures: Mapping[str, Callable[[], float]],
) -> tuple[dict[str, list[float]], dict[str, list[dict[str, float]]]]:
    """Measure each twice to warm up, then all of them in turns, so that all share what else the machine does.

    Returns:
        For each, the rates of its rounds, and the seconds of processor time that each kind of process used in them.
    """
    rates: dict[str, list[float]] = {name: [] for name in measures}
    used: dict[str, list[dict[str, float]]] = {name: [] for name in measures}
    for measure in (*measures.values(), *measures.values()):
        measure()
    for _ in range(_ROUNDS):
        for name, measure in measures.items():
            before = times()
            rates[name].append(measure())
            used[name].append(_used(before))
    return rates, used


def _table_rate(frame: DataFrame, events: int) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return events / (time.perf_counter() - began)


def _stream_rate(frame: DataFrame, directory: Path) -> float:
    """Return the rows per second of a query's batches but the first, which starts processes."""
    place = str(directory / f"checkpoint-{time.monotonic_ns()}")
    query = frame.writeStream.format("noop").option("checkpointLocation", place).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = query.recentProgress[1:]
    milliseconds: int = sum(batch["durationMs"]["triggerExecution"] for batch in batches)
    rows: int = sum(batch["numInputRows"] for batch in batches)
    return 1000 * rows / milliseconds


def _all(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):,.0f} ({' / '.join(f'{rate:,.0f}' for rate in rates)})"


def _idle(spark: SparkSession, directory: Path) -> None:
    """Measure what Spark, its workers and ours use while there is nothing to read, beyond a session without query."""

    def share(seconds: float) -> float:
        began, before = time.perf_counter(), times()
        time.sleep(seconds)  # the time of the measurement
        # By process: Spark ends workers that it has not used for a minute, and what they had used goes with them.
        more = sum(now - before.get(pid, 0.0) for pid, now in times().items())
        return more / (time.perf_counter() - began) * 100

    def settle() -> None:
        """Wait until as good as no work is left over from before: Java still compiles for a while."""
        before = share(_SETTLE)
        for _ in range(_TRIES):
            now = share(_SETTLE)
            if abs(now - before) < 0.5:
                return
            before = now

    settle()
    without = share(_IDLE)
    events = spark.readStream.format("iris").options(subscribe="nothing").load()
    query = events.writeStream.format("noop").option("checkpointLocation", str(directory / "c")).start()
    query.processAllAvailable()
    settle()
    with_query = share(_IDLE)
    query.stop()
    row(
        "an idle query, of one core",
        f"{with_query - without:.1f} % ({with_query:.1f} % with it, {without:.1f} % without)",
        "<= 3 %",
    )


def times() -> dict[int, float]:
    """Return the processor time of this process and of each of its descendants."""
    found: dict[int, float] = {}
    for pid in _family(os.getpid()):
        with contextlib.suppress(OSError):
            found[pid] = processor_time(pid)
    return found


def shares(before: dict[int, float], count: int, unit: str) -> str:
    """Say what the bridge, Spark's workers, this process and Java have used since ``before``, for each of ``count``."""
    return _each(_used(before), count, unit)


def _each(kinds: Mapping[str, float], count: int, unit: str) -> str:
    scale = {"ms": 1e3, "us": 1e6}[unit]
    return ", ".join(f"{kind} {seconds / count * scale:.1f} {unit}" for kind, seconds in kinds.items())


def _used(before: dict[int, float]) -> dict[str, float]:
    used: dict[str, float] = dict.fromkeys(("bridge", "workers", "this process", "Java"), 0.0)
    for pid, now in times().items():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            if pid == os.getpid():
                kind = "this process"
            elif "\0bridge\0" in command:
                kind = "bridge"
            else:
                kind = "workers" if "\0pyspark." in command else "Java"
            used[kind] += now - before.get(pid, 0.0)
    return used


def _family(root: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, waiting = [root], [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found
