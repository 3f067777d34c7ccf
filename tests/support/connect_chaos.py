"""Copying between a bridge's log and Kafka while connector and brokers are killed: each is once at the other end.

``python -m tests.support.connect_chaos --records 100000`` prints what came of it, both ways, as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
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
    connectors_killed: int
    connectors_ended: int
    """Connectors that had ended by themselves, and were started again."""
    brokers_killed: int
    seconds: float


class Kills:
    """Kills the connector and brokers in turns, and starts each again.

    Args:
        kafka: a single broker is not killed.
        connector: the connector.
        times: how often.
        every: seconds between two of them.
    """

    def __init__(self, kafka: KafkaCluster, connector: Child, times: int, every: float) -> None:
        self._kafka = kafka
        self._connector = connector
        self._times = times
        self._every = every
        self.brokers = self.connectors = self.ended = 0

    def run(self) -> None:
        """Do it."""
        brokers = itertools.cycle(self._kafka.brokers)
        for number in range(self._times):
            time.sleep(self._every)
            if number % 2 and len(self._kafka.brokers) > 1:
                broker = next(brokers)
                self._kafka.kill(broker)
                self.brokers += 1
                self._kafka.start(broker)
            elif self._connector.alive:
                self._connector.end()
                self.connectors += 1
            self.restart()

    def restart(self) -> None:
        """Start the connector if it is not running."""
        if not self._connector.alive:
            self.ended += self._connector.end() is not None
            self._connector.start()


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
        connectors_killed=kills.connectors,
        connectors_ended=kills.ended,
        brokers_killed=kills.brokers,
        seconds=round(seconds, 1),
    )


def committed(kafka: KafkaCluster) -> Iterator[Row]:
    """Yield what is committed in the topic, in the order of each partition."""
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
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, timeout=1.0):
            error = message.error()
            if error is None:
                yield (message.key() or b"").decode(), int(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()


async def _publish(records: int, rate: float) -> None:
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=60)
        async with node.confirming(timeout=PATIENCE) as confirmed:
            began = trio.current_time()
            for number in range(records):
                if number % 50 == 0:
                    await trio.sleep_until(began + number / rate)
                await confirmed.publish("orders.new", b"%d" % number, key=f"k{number % KEYS}")


def _produce(kafka: KafkaCluster, records: int, rate: float) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "log_level": 0, "enable.idempotence": True, "message.timeout.ms": 0}
    )
    began = time.monotonic()
    for number in range(records):
        if number % 50 == 0:
            producer.poll(0)
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        producer.produce(TOPIC, b"%d" % number, f"k{number % KEYS}".encode())
    assert producer.flush(PATIENCE) == 0


async def _stored() -> list[Row]:
    async with iris.open_node("reader") as node:
        await node.wait_for("bridge", timeout=60)
        events = read_events(BridgeClient(node, "bridge", patience=60), topics=[">"])
        return [(str(event["key"]), int(str(event["value"]))) async for event in events]


async def _count_stored() -> int:
    async with iris.open_node("reader") as node:
        await node.wait_for("bridge", timeout=60)
        return sum(shard.next for shard in await BridgeClient(node, "bridge", patience=60).shards())


def _run(
    direction: str,
    kafka: KafkaCluster,
    connector: Child,
    feed: Callable[[], None],
    count: Callable[[], int],
    rows: Callable[[], Iterable[Row]],
    records: int,
    times: int,
    every: float,
) -> Outcome:
    """Feed one end, kill, and read the other one when all is there."""
    connector.start()
    kills = Kills(kafka, connector, times, every)
    began = time.monotonic()
    threads = [threading.Thread(target=feed), threading.Thread(target=kills.run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = time.monotonic() + PATIENCE
    while count() < records and time.monotonic() < end:
        kills.restart()
        time.sleep(1.0)
    seconds = time.monotonic() - began
    connector.end()
    return _judge(direction, records, rows(), kills, seconds)


@contextmanager
def _bridge() -> Iterator[Path]:
    with open_realm(), tempfile.TemporaryDirectory() as directory:
        bridge = bridge_child(Path(directory))
        try:
            bridge.start()
            yield Path(directory)
        finally:
            bridge.end()


def _connector(kafka: KafkaCluster, directory: Path, option: str) -> Child:
    command = [sys.executable, "-m", "iris", "connect", "kafka", option, kafka.bootstrap, "--kafka-topic", TOPIC]
    return Child(command, ready="copies", log=directory / "connector.txt")


def run_to(kafka: KafkaCluster, records: int, times: int, every: float) -> Outcome:
    """Publish and copy into Kafka, which has a topic ``copied`` of ``PARTITIONS``."""
    with _bridge() as directory:
        connector = _connector(kafka, directory, "--to")
        feed = partial(trio.run, partial(_publish, records, records / (times * every)))
        try:
            count, rows = lambda: sum(1 for _ in committed(kafka)), lambda: committed(kafka)
            return _run("to", kafka, connector, feed, count, rows, records, times, every)
        finally:
            connector.end()


def run_from(kafka: KafkaCluster, records: int, times: int, every: float) -> Outcome:
    """Produce into that topic and copy into the log."""
    with _bridge() as directory:
        connector = _connector(kafka, directory, "--from")
        feed = partial(_produce, kafka, records, records / (times * every))
        try:
            count, rows = lambda: trio.run(_count_stored), lambda: trio.run(_stored)
            return _run("from", kafka, connector, feed, count, rows, records, times, every)
        finally:
            connector.end()


def run(direction: str, records: int, times: int, every: float) -> Outcome:
    """Do one of the two with three brokers."""
    with open_kafka(3) as kafka:
        kafka.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        return (run_to if direction == "to" else run_from)(kafka, records, times, every)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--every", type=float, default=3.0)
    parser.add_argument("--direction", choices=("to", "from"), action="append")
    given = parser.parse_args()
    for direction in given.direction or ("to", "from"):
        outcome = run(direction, given.records, given.times, given.every)
        sys.stdout.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
        sys.stdout.flush()
