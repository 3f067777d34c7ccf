"""``iris connect kafka --to``: each event of an embedded log once in a topic of Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, Message, Producer, TopicPartition

import iris
from iris.kernel.errors import ConfigError
from iris.kernel.tasks import open_background
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.errors import DataLost, KafkaLost
from iris.spark_bridge.kafka import transactions
from iris.spark_bridge.kafka.copy_out import CopyOut
from iris.spark_bridge.kafka.log import KafkaLog
from iris.spark_bridge.kafka.transactions import PLACES, Places
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network
from tests.support.kafka import KafkaCluster, headers_of
from tests.support.waiting import wait_until


def committed(kafka: KafkaCluster, topic: str, partitions: int = 1) -> list[Message]:
    """Return the records of a topic that are committed now."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "test",
            "log_level": 0,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    ended: set[int | None] = set()
    while len(ended) < partitions:
        for message in consumer.consume(1000, timeout=1):
            if message.error() is None:
                found.append(message)
            else:
                ended.add(message.partition())
    consumer.close()
    return found


def copying(node: iris.Node, kafka: KafkaCluster, topic: str, topics: Sequence[str] = (), group: str = "k") -> CopyOut:
    client = BridgeClient(node, "bridge", patience=10)
    return CopyOut(client, kafka=kafka.bootstrap, topic=topic, settings={}, group=group, topics=topics)


@asynccontextmanager
async def embedded(network: Network, directory: Path, **options: Any) -> AsyncIterator[iris.Node]:
    async with network.open_node("bridge") as node, open_bridge(node, topics=[">"], directory=directory, **options):
        yield node


@asynccontextmanager
async def running(copy: CopyOut, count: int) -> AsyncIterator[None]:
    """Copy in the block, which begins when so many events are written."""
    async with open_background() as nursery:
        nursery.start_soon(copy.run)
        await wait_until(lambda: copy.copied >= count)
        yield


async def test_each_event_is_in_kafka_as_a_bridge_on_kafka_writes_it(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        await desk.publish_confirmed("orders.new", b"tea", key="k", headers={"currency": "EUR"}, timeout=30)
        await desk.publish_confirmed("orders.new", "text", timeout=30)
        await desk.publish_confirmed("orders.old", {"n": 1}, timeout=30)
        await desk.publish_confirmed("orders.old", None, key="gone", timeout=30)
        async with running(copying(desk, kafka, topic), 4):
            await desk.publish_confirmed("late", b"later", timeout=30)
            with trio.fail_after(30):
                while len(found := committed(kafka, topic)) < 5:  # noqa: ASYNC110 -- Kafka tells nobody
                    await trio.sleep(0.1)
        shard = (await read_status(BridgeClient(desk, "bridge", patience=10))).shards[0].id
    assert [record.value() for record in found] == [b"tea", b"text", b'{"n":1}', None, b"later"]
    assert [record.key() for record in found] == [b"k", None, None, b"gone", None]
    headers = [headers_of(record) for record in found]
    assert headers[0] == {
        "iris-topic": b"orders.new",
        "iris-sender": b"desk",
        "iris-publisher": shard.encode(),
        "iris-number": b"0",
        "currency": b"EUR",
    }
    assert [one.get("iris-encoding") for one in headers] == [None, b"utf-8", b"json", None, None]
    kind, _ = found[0].timestamp()
    assert kind == 1


async def test_a_connector_goes_on_where_the_last_one_has_ended(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        for part in range(3):
            for number in range(part * 10, part * 10 + 10):
                await desk.publish_confirmed("a", b"%d" % number, timeout=30)
            async with running(copying(desk, kafka, topic), 10):
                pass
    assert [record.value() for record in committed(kafka, topic)] == [b"%d" % number for number in range(30)]


async def test_a_topic_that_was_made_again_gets_what_comes_and_all_by_another_group(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        for number in range(5):
            await desk.publish_confirmed("a", b"%d" % number, timeout=30)
        async with running(copying(desk, kafka, topic), 5):
            pass
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        await desk.publish_confirmed("a", b"5", timeout=30)
        async with running(copying(desk, kafka, topic), 1):
            pass
        assert [record.value() for record in committed(kafka, topic)] == [b"5"]
        async with running(copying(desk, kafka, topic, group="another"), 6):
            pass
    assert [record.value() for record in committed(kafka, topic)] == [b"5", *(b"%d" % number for number in range(6))]


async def test_a_transaction_that_died_on_the_way_is_not_there_and_is_written_again(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        await desk.publish_confirmed("a", b"0", timeout=30)
        shard = (await read_status(BridgeClient(desk, "bridge", patience=10))).shards[0].id
        dead = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "log_level": 0,
                "transactional.id": f"iris/bridge/k/{topic}/{shard}",
            }
        )
        KafkaLog(kafka.bootstrap, PLACES, "bridge", {}).make(1, {"cleanup.policy": "compact"})
        dead.init_transactions(30)
        dead.begin_transaction()
        dead.produce(topic, b"0")
        dead.produce(PLACES, b"1", f"iris/bridge/k/{topic}/{shard}".encode())
        assert dead.flush(30) == 0
        async with running(copying(desk, kafka, topic), 1):
            pass
    assert [record.value() for record in committed(kafka, topic)] == [b"0"]


async def test_of_two_connectors_of_one_name_the_first_one_ends_and_nothing_is_written_twice(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        ended = trio.Event()

        async def first() -> None:
            with pytest.raises(KafkaLost, match="another connector writes"):
                await copying(desk, kafka, topic).run()
            ended.set()

        await desk.publish_confirmed("a", b"0", timeout=30)
        async with open_background() as nursery:
            nursery.start_soon(first)
            await wait_until(lambda: committed(kafka, topic), pause=0.1)
            nursery.start_soon(copying(desk, kafka, topic).run)
            number = 1
            with trio.fail_after(60):
                while not ended.is_set():
                    await desk.publish_confirmed("a", b"%d" % number, timeout=30)
                    number += 1
                while len(found := committed(kafka, topic)) < number:  # noqa: ASYNC110 -- Kafka tells nobody
                    await trio.sleep(0.1)
    assert [record.value() for record in found] == [b"%d" % one for one in range(number)]


def test_the_last_mark_is_found_while_others_write_without_a_pause(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = (KafkaLog(kafka.bootstrap, one, "bridge", {}) for one in (PLACES, topic))
    places = Places(log, other.describe(), threading.Event())
    writer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})

    def write(key: str, value: bytes) -> None:
        writer.produce(PLACES, value, key.encode())
        assert writer.flush(30) == 0

    class Behind:
        """A consumer that never comes to the end, as one whose topic grows faster than it reads."""

        def __init__(self, consumer: Consumer) -> None:
            self._consumer = consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def poll(self, timeout: float) -> Message | None:
            message = self._consumer.poll(timeout)
            return None if message is None or message.error() is not None else message

    write(f"{topic}/mark", b"old")
    write(f"{topic}/mark", b"new")
    make = log.consumer

    def behind(_: KafkaLog, **settings: str) -> Behind:
        return Behind(make(None, **settings))

    monkeypatch.setattr(KafkaLog, "consumer", behind)
    monkeypatch.setattr(transactions, "_PATIENCE", 20.0)
    assert places.last(f"{topic}/mark") == b"new"


class Stalling:
    """Producers of which one stands still before a commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> None:
        self.stalls = [False, False, True]
        """The first mark, the first event, the second event."""
        self._make: Any = KafkaLog.producer
        self._wait = wait

        def made(*args: Any, **options: Any) -> Any:
            return self.producer(*args, **options)

        monkeypatch.setattr(transactions, "_TRANSACTION", 1.0)
        monkeypatch.setattr(KafkaLog, "producer", made)

    def producer(self, *args: Any, **options: Any) -> Any:
        producer, stalling = self._make(*args, **options), self

        class Stalled:
            def __getattr__(self, name: str) -> Any:
                return getattr(producer, name)

            def commit_transaction(self, timeout: float) -> None:
                if stalling.stalls and stalling.stalls.pop(0):
                    assert producer.flush(30) == 0
                    stalling._wait()
                producer.commit_transaction(timeout)

        return Stalled()


async def test_a_connector_whose_transaction_stood_still_goes_on_from_the_last_committed_place(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalling = Stalling(monkeypatch, lambda: time.sleep(15))  # brokers look every 10 s for what they give up
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        await desk.publish_confirmed("a", b"0", timeout=30)
        copy = copying(desk, kafka, topic)
        async with running(copy, 1):
            await desk.publish_confirmed("a", b"1", timeout=30)
            await wait_until(lambda: copy.copied >= 2)
    assert not stalling.stalls
    assert [record.value() for record in committed(kafka, topic)] == [b"0", b"1"]


async def test_a_connector_that_stood_still_is_fenced_by_the_one_that_was_started_in_its_place(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, ended = threading.Event(), trio.Event()

    def stand_still() -> None:
        assert replaced.wait(120)
        time.sleep(1.1)  # longer than a transaction may take

    stalling = Stalling(monkeypatch, stand_still)
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        first, second = copying(desk, kafka, topic), copying(desk, kafka, topic)

        async def run_first() -> None:
            with pytest.raises(KafkaLost, match="another connector writes"):
                await first.run()
            ended.set()

        await desk.publish_confirmed("a", b"0", timeout=30)
        async with open_background() as nursery:
            nursery.start_soon(run_first)
            await wait_until(lambda: first.copied >= 1)
            await desk.publish_confirmed("a", b"1", timeout=30)
            await wait_until(lambda: not stalling.stalls)
            async with running(second, 1):
                replaced.set()
                with trio.fail_after(60):
                    await ended.wait()
                await desk.publish_confirmed("a", b"2", timeout=30)
                await wait_until(lambda: second.copied >= 2)
    assert [record.value() for record in committed(kafka, topic)] == [b"0", b"1", b"2"]


async def test_only_wanted_topics_are_copied_and_the_bridge_knows_how_far(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        for number in range(20):
            await desk.publish_confirmed(f"a{number % 2}.x", b"%d" % number, timeout=30)
        async with running(copying(desk, kafka, topic, ["a1.>"]), 10):
            pass
        status = await read_status(BridgeClient(desk, "bridge", patience=10))
    assert [record.value() for record in committed(kafka, topic)] == [b"%d" % number for number in range(1, 20, 2)]
    assert [group.group for group in status.groups] == ["k"]


async def test_a_log_that_is_older_than_what_kafka_has_is_refused(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        shard = (await read_status(BridgeClient(desk, "bridge", patience=10))).shards[0].id
        KafkaLog(kafka.bootstrap, PLACES, "bridge", {}).make(1, {"cleanup.policy": "compact"})
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        producer.produce(PLACES, b"7", f"iris/bridge/k/{topic}/{shard}".encode())
        assert producer.flush(30) == 0
        await desk.publish_confirmed("a", b"0", timeout=30)
        with pytest.raises(DataLost, match="was put back"), trio.fail_after(60):
            await copying(desk, kafka, topic).run()


async def test_an_event_that_is_too_large_for_the_topic_is_named(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    kafka.configure_topic(topic, max_message_bytes=2000)
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        await desk.publish_confirmed("a", b"x" * 3000, timeout=30)
        with pytest.raises(ConfigError, match=r"offset 0 .* raise its max\.message\.bytes"), trio.fail_after(60):
            await copying(desk, kafka, topic).run()
    assert committed(kafka, topic) == []


async def test_an_event_that_the_topic_refuses_ends_the_connector(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    kafka.configure_topic(topic, cleanup_policy="compact")
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        await desk.publish_confirmed("a", b"without a key", timeout=30)
        with pytest.raises(ConfigError, match="Kafka refuses"), trio.fail_after(60):
            await copying(desk, kafka, topic).run()
