"""Copying between a bridge's log and Kafka while connector and brokers are killed: each is once at the other end.

``python -m tests.support.connect_chaos --records 100000`` prints what came of it, both ways, as JSON.  The kills follow
the records: one when each 31st part of them has arrived, while the next one does, so that each finds a connector at
work.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import iris
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client import BridgeClient
from tests.support.kafka import KafkaCluster, open_kafka
from tests.support.processes import Child, bridge_child, open_realm

PARTITIONS: Final = 6
KEYS: Final = 200
TOPIC: Final = "copied"
PATIENCE: Final = 600.0
"""Seconds in which something has to arrive."""

Row = tuple[str, int]
"""Key and value of what was copied."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is at the other end after all."""

    direction: str
    records: int
    lost: int
    doubled: int
    disordered: int
    """Those that stand behind a later one of their key."""
    killed: list[tuple[float, int, str]]
    """What was killed: seconds after the beginning, records that had arrived, and the process."""
    connectors_ended: int
    """Connectors that had ended by themselves, and were started again."""
    seconds: float

    def count(self, what: str) -> int:
        """Return how often the connector, or a broker, was killed."""
        return sum(name.startswith(what) for _, _, name in self.killed)


Feed = Callable[[range], Awaitable[None]]
"""Gives these values to the end that is copied from."""

Count = Callable[[], Awaitable[int]]
"""Counts the records at the end that is copied to."""


class Kills:
    """Kills the connector and brokers in turns, and starts each again.

    Args:
        kafka: a single broker is not killed.
        connector: the connector, which runs.
        feed: is called with all values, in parts.
        count: tells how many have arrived.
    """

    def __init__(self, kafka: KafkaCluster, connector: Child, feed: Feed, count: Count) -> None:
        self._kafka = kafka
        self._connector = connector
        self._feed = feed
        self._count = count
        self._began = trio.current_time()
        self.killed: list[tuple[float, int, str]] = []
        self.ended = 0

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return round(trio.current_time() - self._began, 1)

    async def run(self, records: int, times: int) -> None:
        """Do it so often while the records arrive, and return when all have, or nothing arrives any more."""
        ends = [records * number // (times + 1) for number in range(times + 2)]
        parts = itertools.starmap(range, itertools.pairwise(ends))
        victims = itertools.cycle(self._victims())
        async with trio.open_nursery() as nursery:
            to_feed, fed = trio.open_memory_channel[range](times + 1)
            nursery.start_soon(self._feed_parts, fed)
            await to_feed.send(next(parts))
            for end, part in zip(ends[1:], parts, strict=False):
                await to_feed.send(part)
                arrived = await self._wait_arrived(end)
                broker = next(victims)
                self.killed.append((self.seconds, arrived, f"broker {broker}" if broker else "connector"))
                sys.stderr.write(f"{self.killed[-1]}\n")
                await trio.to_thread.run_sync(self._kill, broker)
            to_feed.close()
            await self._wait_arrived(records)

    async def _feed_parts(self, parts: trio.MemoryReceiveChannel[range]) -> None:
        async for part in parts:
            await self._feed(part)

    def _victims(self) -> Iterator[int]:
        """Yield brokers, and 0 for the connector before each."""
        for broker in self._kafka.brokers:
            yield 0
            if len(self._kafka.brokers) > 1:
                yield broker

    def _kill(self, broker: int) -> None:
        if broker:
            self._kafka.kill(broker)
            self._kafka.start(broker)
        else:
            self._connector.end()
            self._connector.start()

    async def _wait_arrived(self, enough: int) -> int:
        """Wait until so many have arrived, and return how many have; start the connector if it has ended."""
        arrived, news = 0, trio.current_time()
        while arrived < enough and trio.current_time() < news + PATIENCE:
            if not self._connector.alive:
                self.ended += 1
                self._connector.end()
                await trio.to_thread.run_sync(self._connector.start)
            before, arrived = arrived, await self._count()
            if arrived > before:
                news = trio.current_time()
            await trio.sleep(0.1)
        return arrived


def _judge(direction: str, records: int, rows: Iterable[Row], kills: Kills, seconds: float) -> Outcome:
    last: dict[str, int] = {}
    seen: set[int] = set()
    doubled = disordered = 0
    for key, value in rows:
        doubled += value in seen
        seen.add(value)
        disordered += value < last.get(key, -1)
        last[key] = value
    return Outcome(
        direction=direction,
        records=records,
        lost=records - len(seen),
        doubled=doubled,
        disordered=disordered,
        killed=kills.killed,
        connectors_ended=kills.ended,
        seconds=seconds,
    )


@contextmanager
def _consumer(kafka: KafkaCluster) -> Iterator[Consumer]:
    """Read what is committed in the topic, from its beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "chaos",
            "log_level": 0,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def committed(kafka: KafkaCluster) -> Iterator[Row]:
    """Yield what is committed in the topic, in the order of each partition."""
    ended: set[int | None] = set()
    with _consumer(kafka) as consumer:
        while len(ended) < PARTITIONS:
            for message in consumer.consume(10_000, timeout=1.0):
                error = message.error()
                if error is None:
                    yield (message.key() or b"").decode(), int(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())


@contextmanager
def _counting_committed(kafka: KafkaCluster) -> Iterator[Count]:
    """Give a function that counts what is committed."""
    with _consumer(kafka) as consumer:
        total = 0

        async def count() -> int:
            nonlocal total
            found = await trio.to_thread.run_sync(consumer.consume, 10_000, 0.2)
            total += sum(message.error() is None for message in found)
            return total

        yield count


def _produce(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.produce(TOPIC, b"%d" % number, f"k{number % KEYS}".encode())
    end = time.monotonic() + PATIENCE
    while len(producer):
        producer.poll(1.0)  # flush() would let a fatal error out as SystemError
        assert time.monotonic() < end, "the brokers do not take what is produced"


@contextmanager
def _bridge() -> Iterator[Path]:
    with open_realm(), tempfile.TemporaryDirectory() as directory:
        bridge = bridge_child(Path(directory))
        try:
            bridge.start()
            yield Path(directory)
        finally:
            bridge.end()


@contextmanager
def _connector(kafka: KafkaCluster, directory: Path, option: str) -> Iterator[Child]:
    command = [sys.executable, "-m", "iris", "connect", "kafka", option, kafka.bootstrap, "--kafka-topic", TOPIC]
    connector = Child(command, ready="copies", log=directory / "connector.txt")
    connector.start()
    try:
        yield connector
    finally:
        connector.end()


def run_to(kafka: KafkaCluster, records: int, times: int) -> Outcome:
    """Publish and copy into Kafka, which has a topic ``copied`` of ``PARTITIONS``."""

    async def copy(connector: Child) -> Outcome:
        async with iris.open_node("publisher") as node:
            await node.wait_for("bridge", timeout=60)

            async def publish(numbers: range) -> None:
                async with node.confirming(timeout=PATIENCE) as confirmed:
                    for number in numbers:
                        await confirmed.publish("orders.new", b"%d" % number, key=f"k{number % KEYS}")

            with _counting_committed(kafka) as count:
                kills = Kills(kafka, connector, publish, count)
                await kills.run(records, times)
        seconds = kills.seconds
        connector.end()
        return _judge("to", records, committed(kafka), kills, seconds)

    with _bridge() as directory, _connector(kafka, directory, "--to") as connector:
        return trio.run(copy, connector)


def run_from(kafka: KafkaCluster, records: int, times: int) -> Outcome:
    """Produce into that topic and copy into the log."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "log_level": 0,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "queue.buffering.max.messages": 0,
        }
    )

    async def copy(connector: Child) -> Outcome:
        async with iris.open_node("reader") as node:
            await node.wait_for("bridge", timeout=60)
            client = BridgeClient(node, "bridge", patience=60)

            async def count() -> int:
                return sum(shard.next for shard in await client.shards())

            async def produce(numbers: range) -> None:
                await trio.to_thread.run_sync(_produce, producer, numbers)

            kills = Kills(kafka, connector, produce, count)
            await kills.run(records, times)
            seconds = kills.seconds
            connector.end()
            events = read_events(client, topics=[">"])
            rows = [(str(event["key"]), int(str(event["value"]))) async for event in events]
            return _judge("from", records, rows, kills, seconds)

    with _bridge() as directory, _connector(kafka, directory, "--from") as connector:
        return trio.run(copy, connector)


def run(direction: str, records: int, times: int) -> Outcome:
    """Do one of the two with three brokers."""
    with open_kafka(3) as kafka:
        kafka.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        return (run_to if direction == "to" else run_from)(kafka, records, times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--direction", choices=("to", "from"), action="append")
    given = parser.parse_args()
    for direction in given.direction or ("to", "from"):
        outcome = run(direction, given.records, given.times)
        sys.stdout.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        sys.stdout.flush()
