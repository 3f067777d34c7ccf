"""Queries while the bridge changes below them, and rights to read: in a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import iris
from iris.cli.main import run_command
from tests.support.arrivals import fake_event, make_store
from tests.support.bridges import BridgeProcess, publish
from tests.support.ports import free_port


def read_all(frame: DataFrame, checkpoint: Path) -> list[tuple[int, bytes]]:
    """Let a stream read what is there; return shard and value of what it read this time."""
    seen: list[tuple[int, bytes]] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend((row.partition, bytes(row.value)) for row in batch.select("partition", "value").collect())

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    return seen


def test_a_shard_that_is_added_is_read_from_its_beginning(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("iris")
    with BridgeProcess(tmp_path / "log"):
        publish([b"old"], key="a")
        assert read_all(frame.load(), tmp_path / "checkpoint") == [(0, b"old")]
    with BridgeProcess(tmp_path / "log", "--shard", "0", "--shard", "1"):
        for key in "abcdef":
            publish([key.encode()], key=key)
        seen = read_all(frame.load(), tmp_path / "checkpoint")
        assert sorted(value for _, value in seen) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert {shard for shard, _ in seen} == {0, 1}
        assert read_all(frame.load(), tmp_path / "checkpoint") == []


def test_a_bridge_that_stays_away_ends_the_query_which_goes_on_later(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    with BridgeProcess(tmp_path / "log") as bridge:
        frame = spark.readStream.format("iris").option("bridgeTimeout", "2").load()
        publish([b"one"])
        assert read_all(frame, tmp_path / "checkpoint") == [(0, b"one")]
        publish([b"two"])
        bridge.kill()
        with pytest.raises(StreamingQueryException, match="bridge 'bridge' cannot be reached after 2 s"):
            read_all(frame, tmp_path / "checkpoint")
        bridge.start()
        assert read_all(frame, tmp_path / "checkpoint") == [(0, b"two")]


def store_event(directory: Path, shard: int, payload: bytes) -> None:
    """Put an event into the log of a member that is not running."""
    store = make_store(directory, shards=[shard])
    store.appender.append({shard: [fake_event(payload)]}, now=0)
    store.close()


def test_a_member_that_is_away_is_missed_though_lost_data_is_no_error(
    spark: SparkSession, realm: Path, tmp_path: Path
) -> None:
    options = {"bridgeTimeout": "5", "failOnDataLoss": "false"}  # more than a busy machine takes to find the other one
    for shard, name in enumerate("ab"):
        store_event(tmp_path / name, shard, b"one")
    with (
        BridgeProcess(tmp_path / "a", "--member", "a"),
        BridgeProcess(tmp_path / "b", "--member", "b", "--shard", "1") as second,
    ):
        frame = spark.readStream.format("iris").options(**options).load()
        assert sorted(read_all(frame, tmp_path / "checkpoint")) == [(0, b"one"), (1, b"one")]
        second.kill()
        store_event(tmp_path / "b", 1, b"two")
        with pytest.raises(StreamingQueryException, match=r"shard 1 has no member, and was at 'bridge\.b' last"):
            read_all(frame, tmp_path / "checkpoint")
        with pytest.raises(AnalysisException, match=r"shard 1 has no member, and was at 'bridge\.b' last"):
            spark.read.format("iris").options(**options).load()
        second.start()
        assert read_all(frame, tmp_path / "checkpoint") == [(1, b"two")]


# -- who may read ---------------------------------------------------------------------------------------------


class Realm:
    """A realm with files, as `iris keys` makes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self._keys("realm", str(directory / "realm"))

    def _keys(self, *arguments: str) -> None:
        assert run_command(("keys", *arguments)) == 0

    def credential(self, name: str, *rights: str) -> Path:
        path = self._directory / name
        self._keys("cluster", str(self._directory / "realm"), name, "--out", str(path), "--seeds", self.url, *rights)
        return path

    def sealed(self, name: str, *rights: str) -> Path:
        path = self._directory / f"{name}.sealed"
        self._keys("seal", str(self.credential(name, *rights)), "--out", str(path))
        return path


@pytest.fixture
def guarded(realm: Path, tmp_path: Path) -> Iterator[Realm]:
    """A realm with a bridge that lets the cluster `analysts` read, and one event in it."""
    made = Realm(tmp_path)
    options = ("--credential", str(made.credential("bridge")), "--listen", made.url, "--reader", "analysts")
    shop = made.credential("shop")

    async def publish_one() -> None:
        async with iris.open_node(credential=shop) as node:
            await node.wait_for("bridge", timeout=60)
            await node.publish_confirmed("a.b", b"secret", timeout=60)

    with BridgeProcess(tmp_path / "log", *options):
        trio.run(publish_one)
        yield made


def test_executors_read_with_a_sealed_credential_that_can_do_nothing_else(spark: SparkSession, guarded: Realm) -> None:
    sealed = guarded.sealed("analysts", "--no-publish", "--no-subscribe")
    (row,) = spark.read.format("iris").option("credential", str(sealed)).load().collect()
    assert bytes(row.value) == b"secret"

    async def misuse() -> None:
        async with iris.open_node(credential=sealed) as node:
            with pytest.raises(iris.NotAllowed, match="does not permit to publish"):
                await node.publish("a.b", b"forged")
            with pytest.raises(iris.NotAllowed, match="does not permit to subscribe"):
                async with node.subscribe("a.b"):
                    pass

    trio.run(misuse)


def test_a_credential_without_the_right_to_read_is_refused_by_load(spark: SparkSession, guarded: Realm) -> None:
    strangers = guarded.sealed("strangers")
    with pytest.raises(AnalysisException, match=r"cluster 'strangers' may not read from the bridge 'bridge'"):
        spark.read.format("iris").option("credential", str(strangers)).load()
