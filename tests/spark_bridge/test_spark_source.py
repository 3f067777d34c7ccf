"""``format("iris")`` in a real Spark, with bridges as processes: every event once, whatever happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import iris
from iris import spark_bridge
from iris.cli.main import run_command
from tests.support.bridges import BridgeProcess, publish
from tests.support.waiting import wait_until

# A session apart: with the others these took longer than all the rest.
pytestmark = pytest.mark.xdist_group("source_and_sink")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def bridge(realm: Path, log: Path) -> Iterator[BridgeProcess]:
    with BridgeProcess(log) as bridge:
        yield bridge


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def stream(spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("iris").options(**options).load()


def table(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("iris").options(**options).load()


class Output:
    """A sink that keeps what each batch held; a batch that is repeated replaces itself."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.batches: dict[int, list[bytes]] = {}
        self.progress: dict[str, int] = {}
        """Return the last query's report on the source, ``latestOffset`` of its progress."""

    def run(self, frame: DataFrame) -> None:
        """Read all that is there now."""

        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = [bytes(row.value) for row in batch.select("value").collect()]

        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300)
            last = query.lastProgress
            self.progress = {} if last is None else json.loads(last.json)["sources"][0]["latestOffset"] or {}
        finally:
            query.stop()

    @property
    def values(self) -> list[bytes]:
        return [value for number in sorted(self.batches) for value in self.batches[number]]

    @property
    def offsets(self) -> str:
        """Return the checkpoint's entry of the last batch, without spaces."""
        written = self._checkpoint / "offsets"
        last = max(int(path.name) for path in written.iterdir() if path.name.isdigit())
        return "".join((written / str(last)).read_text().split())

    def forget_last_commit(self) -> int:
        """Make the checkpoint as if the driver had died before it wrote down that the last batch was done."""
        commits = self._checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path / "checkpoint")


# -- tables --------------------------------------------------------------------------------------------------


def test_a_table_has_the_events_with_kafkas_columns(spark: SparkSession, bridge: BridgeProcess) -> None:
    publish(numbers(1, 3), topic="orders.created", key="k")
    rows = table(spark, subscribe="orders.>").orderBy("offset").collect()
    assert [(bytes(row.value), row.offset, row.partition) for row in rows] == [(b"1", 0, 0), (b"2", 1, 0), (b"3", 2, 0)]
    first = rows[0].asDict(recursive=True)
    assert (bytes(first["key"]), first["topic"], first["timestampType"]) == (b"k", "orders.created", 1)
    assert [(header["key"], bytes(header["value"])) for header in first["headers"]] == [("iris-sender", b"publisher")]
    assert abs(first["timestamp"].timestamp() - Path("/proc/self").stat().st_mtime) < 3600


def test_a_table_can_be_a_part(spark: SparkSession, bridge: BridgeProcess) -> None:
    publish(numbers(1, 10))
    publish(numbers(11, 20), topic="x")
    assert table(spark).count() == 20
    assert table(spark, subscribe="x").count() == 10
    assert table(spark, subscribePattern="a|x").count() == 10
    assert table(spark, subscribe="nothing").count() == 0
    part = table(
        spark, startingOffsets='{"0": 5}', endingOffsets='{"0": 15}', minPartitions="3", includeHeaders="false"
    )
    assert part.rdd.getNumPartitions() == 3
    assert sorted(bytes(row.value) for row in part.collect()) == sorted(numbers(6, 15))
    assert "headers" not in part.columns
    middle = table(spark).where("offset = 10").first()
    assert middle is not None
    since = table(spark, startingTimestamp=str(int(middle.timestamp.timestamp() * 1000)))
    assert since.count() >= 10


def test_payloads_become_the_columns_of_a_schema(spark: SparkSession, bridge: BridgeProcess, output: Output) -> None:
    publish([b'{"n": 1, "at": "2013-01-01T10:00:00Z"}', b"nonsense"], topic="t")
    assert run_command(("pub", "t", '{"n": 3}', "--confirm")) == 0  # a text, and no bytes
    rows = spark_bridge.parse(table(spark), "n INT, at TIMESTAMP").orderBy("_offset").collect()
    found = [(row.n, row["_offset"], row["_corrupt_record"]) for row in rows]
    assert found == [(1, 0, None), (None, 1, b"nonsense"), (3, 2, None)]
    assert rows[0]["at"] is not None
    parsed = spark_bridge.parse(stream(spark), "n INT")
    output.run(parsed.where("n > 1").select(parsed["n"].cast("string").cast("binary").alias("value")))
    assert output.values == [b"3"]


# -- streams -------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was(spark: SparkSession, bridge: BridgeProcess, output: Output) -> None:
    publish(numbers(1, 100))
    output.run(stream(spark, maxOffsetsPerTrigger="30", minPartitions="2"))
    assert [len(batch) for batch in output.batches.values()] == [30, 30, 30, 10]
    publish(numbers(101, 120))
    output.run(stream(spark))
    assert sorted(output.values, key=int) == numbers(1, 120)


def test_a_batch_that_is_repeated_after_a_crash_has_the_same_rows(
    spark: SparkSession, bridge: BridgeProcess, output: Output
) -> None:
    publish(numbers(1, 10))
    output.run(stream(spark, maxOffsetsPerTrigger="5"))
    last = output.forget_last_commit()
    before = output.batches.pop(last)
    publish(numbers(11, 12))
    output.run(stream(spark))
    assert output.batches[last] == before
    assert output.values == numbers(1, 12)


def test_batches_that_come_with_the_plan_are_the_same_when_repeated_by_a_worker(
    spark: SparkSession, bridge: BridgeProcess, output: Output
) -> None:
    publish(numbers(1, 10))
    output.run(stream(spark, inlineRows="8", maxOffsetsPerTrigger="5"))
    last = output.forget_last_commit()
    before = output.batches.pop(last)
    publish(numbers(11, 40))
    output.run(stream(spark, inlineRows="8"))
    assert output.batches[last] == before
    assert sorted(output.values, key=int) == numbers(1, 40)
    assert [len(output.batches[number]) for number in sorted(output.batches)] == [5, 5, 8, 8, 8, 6]


def test_the_first_batch_is_the_same_when_it_is_repeated_and_latest_has_moved(
    spark: SparkSession, bridge: BridgeProcess, output: Output
) -> None:
    publish(numbers(1, 9))
    output.run(stream(spark, startingOffsets='{"0": 5}'))
    assert output.forget_last_commit() == 0
    publish(numbers(10, 11))
    output.batches.clear()
    output.run(stream(spark, startingOffsets="latest"))
    assert output.batches == {0: numbers(6, 9), 1: numbers(10, 11)}


def test_a_group_begins_where_it_began_first(spark: SparkSession, bridge: BridgeProcess, output: Output) -> None:
    publish(numbers(1, 5))
    query = stream(spark, startingOffsets="latest", group="g").writeStream.format("noop").start()
    query.processAllAvailable()
    query.stop()
    publish(numbers(6, 9))
    output.run(stream(spark, startingOffsets="latest", group="g"))
    assert output.values == numbers(6, 9)


@pytest.mark.parametrize("options", [{}, {"inlineRows": "100"}, {"localFiles": "false", "group": "g"}])
def test_a_query_on_a_silent_topic_has_no_batches_whatever_else_arrives(
    spark: SparkSession, bridge: BridgeProcess, tmp_path: Path, options: dict[str, str]
) -> None:
    publish([b"before"], topic="noise")
    seen: list[list[bytes]] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.append([bytes(row.value) for row in batch.select("value").collect()])

    frame = stream(spark, subscribe="silent.*", **options)
    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        assert seen == [[]], "Spark begins each query with a batch, whether there is something or not"
        seen.clear()
        for turn in range(5):
            publish(numbers(1, 50), topic=f"noise.{turn}")
        query.processAllAvailable()
        assert seen == []
        publish([b"heard"], topic="silent.x")
        query.processAllAvailable()
        assert seen == [[b"heard"]]
        written = json.loads((tmp_path / "c" / "offsets" / "1").read_text().splitlines()[-1])
        assert [end for shard, end in written.items() if "@" in shard] == [252], "behind what was passed over, too"
    finally:
        query.stop()


def test_a_limit_counts_what_is_read_and_not_what_is_passed_by(
    spark: SparkSession, bridge: BridgeProcess, output: Output
) -> None:
    for turn in range(4):
        publish(numbers(1, 40), topic="noise")
        publish(numbers(turn * 5 + 1, turn * 5 + 5), topic="a")
    output.run(stream(spark, subscribe="a", maxOffsetsPerTrigger="7"))
    assert [len(batch) for batch in output.batches.values()] == [7, 7, 6]
    assert output.values == numbers(1, 20)


def test_a_running_query_gets_what_arrives_and_survives_the_bridges_death(
    spark: SparkSession, bridge: BridgeProcess, tmp_path: Path
) -> None:
    seen: list[bytes] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend(bytes(row.value) for row in batch.select("value").collect())

    publish(numbers(1, 5))
    query = stream(spark).writeStream.foreachBatch(keep).start()
    try:
        query.processAllAvailable()
        assert seen == numbers(1, 5)
        bridge.kill()
        bridge.start()
        publish(numbers(6, 10))
        query.processAllAvailable()
        assert seen == numbers(1, 10)
    finally:
        query.stop()


def test_a_micro_batch_waits_for_enough_events_and_no_longer_than_it_is_told(
    spark: SparkSession, bridge: BridgeProcess
) -> None:
    sizes: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        sizes.append(batch.count())

    def run(delay: str) -> StreamingQuery:
        return stream(spark, minOffsetsPerTrigger="5", maxTriggerDelay=delay).writeStream.foreachBatch(keep).start()

    publish(numbers(1, 3))
    query = run("1h")
    try:
        query.processAllAvailable()  # the first micro-batch waits for nothing
        publish(numbers(4, 5))
        query.processAllAvailable()
        assert sizes == [3]
        publish(numbers(6, 8))
        query.processAllAvailable()
        assert sizes == [3, 5]
        progress = query.lastProgress
        assert progress is not None
        figures = json.loads(progress.json)["sources"][0]["latestOffset"]
        assert (figures["lag"], figures["lost"]) == (0, 0)
        assert [offset for shard, offset in figures.items() if shard.startswith("0@")] == [8]
    finally:
        query.stop()
    sizes.clear()
    query = run("1s")
    try:
        query.processAllAvailable()
        assert sizes == [8]
        publish(numbers(9, 9))
        publish(numbers(10, 10))
        while sum(sizes) < 10:  # it does not count as available while it is held back
            query.processAllAvailable()
        assert len(sizes) <= 3
    finally:
        query.stop()


def test_each_shard_may_begin_at_a_time_of_its_own(spark: SparkSession, bridge: BridgeProcess) -> None:
    publish(numbers(1, 3))
    publish(numbers(4, 5))
    last = table(spark).where("offset = 3").first()
    assert last is not None
    time = json.dumps({"0": int(last.timestamp.timestamp() * 1000) + 1})
    first = table(spark, endingOffsetsByTimestamp=time)
    rest = table(spark, startingOffsetsByTimestamp=time)
    assert first.count() + rest.count() == 5
    assert 3 <= first.count() <= 5
    later = {"startingOffsetsByTimestamp": '{"0": 4000000000000}'}
    assert table(spark, **later).count() == 0
    with pytest.raises(Exception, match=r"shard 0@.* holds no event that is as young"):
        table(spark, **later, startingOffsetsByTimestampStrategy="error").count()


# -- losses --------------------------------------------------------------------------------------------------


def error_of(output: Output, frame: DataFrame) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        output.run(frame)
    return str(caught.value)


def test_a_wiped_bridge_is_noticed(spark: SparkSession, realm: Path, tmp_path: Path, output: Output) -> None:
    with BridgeProcess(tmp_path / "one"):
        publish(numbers(1, 5))
        output.run(stream(spark))
    with BridgeProcess(tmp_path / "two"):
        publish(numbers(6, 12))
        assert "was wiped" in error_of(output, stream(spark))
        output.run(stream(spark, failOnDataLoss="false"))
    assert output.values == numbers(1, 12)


def test_events_that_were_trimmed_before_they_were_read_are_noticed(
    spark: SparkSession, realm: Path, log: Path, output: Output
) -> None:
    with BridgeProcess(log):
        publish(numbers(1, 5))
        output.run(stream(spark))
    with BridgeProcess(log):
        publish([bytes(1_000_000)] * 150)
    with BridgeProcess(log, "--keep-mib", "1"):
        publish(numbers(6, 8))
        assert "were trimmed" in error_of(output, stream(spark))
        output.run(stream(spark, failOnDataLoss="false"))
    assert output.values[:5] == numbers(1, 5)
    assert output.values[-3:] == numbers(6, 8)


def test_a_damaged_log_ends_a_query_that_goes_on_when_it_is_told_to(
    spark: SparkSession, realm: Path, log: Path, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    with BridgeProcess(log):
        for first in (1, 11, 21, 31):
            publish(numbers(first, first + 9), topic="a.b")
    segment = next((log / "segments").iterdir())
    content = bytearray(segment.read_bytes())
    content[content.index(b"IrC1", 64) + 200] ^= 1  # in the second chunk
    segment.write_bytes(content)
    with BridgeProcess(log):
        with pytest.raises(StreamingQueryException) as caught:
            output.run(stream(spark))
        (said,) = [line for line in str(caught.value).splitlines() if "cannot be read" in line]
        lost = re.search(r"events? (\d+)(?: to (\d+))? of shard 0@[0-9a-f]{16} cannot be read", said)
        assert lost is not None
        damaged = range(int(lost[1]) + 1, int(lost[2] or lost[1]) + 2)  # one, where the chunk has no more
        assert "set failOnDataLoss to false to go on without these events" in said
        output.run(stream(spark, failOnDataLoss="false"))
        assert output.values == [b"%d" % n for n in range(1, 41) if n not in damaged]
        publish(numbers(41, 42), topic="a.b")
        output.run(stream(spark))
        assert output.values[-2:] == [b"41", b"42"], "behind it the option may be true again"
        assert f'"lost":{len(damaged)}' in output.offsets
        assert output.progress["lost"] == len(damaged)
        assert run_command(["bridge", "status"]) == 0
    told = capsys.readouterr().out
    assert f"damage: {lost[0].partition('@')[0]}@" in told
    assert f"{len(damaged)} damaged" in told


def test_a_gap_in_the_log_ends_a_query_that_goes_on_when_it_is_told_to(
    spark: SparkSession, realm: Path, log: Path, output: Output
) -> None:
    async def lose(bridge: BridgeProcess) -> None:
        async with iris.open_node("shop") as node:
            await node.wait_for("bridge", timeout=20)
            await node.publish_confirmed("a.b", b"1", timeout=20)
            bridge.kill()
            await wait_until(lambda: not all(one.present for one in node.durable_subscribers()))
            for _ in range(3):
                await node.publish("a.b", b"lost")
            await trio.to_thread.run_sync(bridge.start)
            await node.publish_confirmed("a.b", b"5", timeout=20)

    with BridgeProcess(log) as bridge:
        trio.run(lose, bridge)
        assert "3 of 'a.b' from node" in (text := error_of(output, stream(spark)))
        assert "set failOnDataLoss to false" in text
        with pytest.raises(Exception, match="are missing before offset 1"):
            table(spark).collect()
        assert table(spark, startingOffsets='{"0": 2}').count() == 0
        output.run(stream(spark, failOnDataLoss="false"))
        assert '"lost":3' in output.offsets
        publish(numbers(6, 7))
        output.run(stream(spark))  # behind it nothing is missing
    assert output.values == numbers(1, 1) + numbers(5, 7)


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribePatern": "x"}, "did you mean subscribePattern"),
        ({"bridge": "archive", "bridgeTimeout": "0.5"}, "iris bridge --name archive"),
        ({"credential": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_is_wrong_is_said_by_load(spark: SparkSession, realm: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(AnalysisException, match=message):
        stream(spark, **options)


def test_an_option_of_a_stream_is_refused_in_a_table(spark: SparkSession, bridge: BridgeProcess) -> None:
    with pytest.raises(Exception, match="maxOffsetsPerTrigger is for a stream"):
        table(spark, maxOffsetsPerTrigger="5").count()


def test_offsets_are_what_the_documents_say(
    spark: SparkSession, bridge: BridgeProcess, output: Output, tmp_path: Path
) -> None:
    publish(numbers(1, 5))
    output.run(stream(spark))
    publish(numbers(6, 7))
    output.run(stream(spark))
    first, second = (
        json.loads((tmp_path / "checkpoint" / "offsets" / str(number)).read_text().splitlines()[-1])
        for number in (0, 1)
    )
    (shard,) = second
    assert shard.startswith("0@")
    assert second == {shard: 7}
    assert first == {shard: 5, "from": {shard: 0}}
