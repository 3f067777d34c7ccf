"""Events into Kafka by a bridge while brokers and members are killed: none confirmed is lost, each key is in order.

``python -m tests.support.kafka_chaos --events 20000 --rate 500`` prints what came of it, as JSON; with
``--spark`` Spark sums up the values of each key in the end, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- everybody calls it so

import iris
from iris import spark_bridge
from tests.support.kafka import KafkaCluster, headers_of, open_kafka
from tests.support.processes import Child, open_realm
from tests.support.spark_packages import kafka_source

PARTITIONS: Final = 6
KEYS: Final = 200
BROKER_KILLED: Final = 10.0
"""Seconds from one kill of a broker to the next."""
MEMBER_KILLED: Final = 7.0
"""The same of members of the bridge."""
MEMBERS: Final = 3
TOPIC: Final = "bridge"
PATIENCE: Final = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is in Kafka after all."""

    confirmed: int
    lost: int
    """Confirmed events that are not there."""
    repeats: int
    """Records that others with the same publisher, topic and number stand before."""
    disordered: int
    """Events that stand before an earlier one of their key, once repeats are dropped."""
    wrong_sums: int
    """Keys whose values, once repeats are dropped, do not have the sum of what was confirmed."""
    spark_wrong_sums: int | None
    """The same by Spark's Kafka source and ``spark_bridge.load``; None: it was not asked."""
    brokers_killed: int
    members_killed: int
    seconds: float
    slowest: float
    """Seconds of the longest wait for room for another event, while the others waited for their confirmation."""


class Kills:
    """Kills brokers and members in turns, and starts each again."""

    def __init__(self, kafka: KafkaCluster, members: list[Child], every: float) -> None:
        self._kafka = kafka
        self._members = members
        self._every = every
        self._over = threading.Event()
        self.brokers = self.members = 0

    def _kill_brokers(self) -> None:
        due = time.monotonic()
        for number in itertools.cycle(self._kafka.brokers):
            due += BROKER_KILLED
            if self._over.wait(due - time.monotonic()):
                return
            self._kafka.kill(number)
            self.brokers += 1
            self._kafka.start(number)  # with two of three away nothing would be confirmed

    def _kill_members(self) -> None:
        for member in itertools.cycle(self._members):
            if self._over.wait(self._every):
                return
            member.end()
            self.members += 1
            member.start()  # on a busy machine all would be away else

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Kill in the block."""
        threads = [threading.Thread(target=self._kill_members)]
        if len(self._kafka.brokers) > 1:
            threads.append(threading.Thread(target=self._kill_brokers))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a publisher has had confirmed."""

    publisher: str
    events: int
    slowest: float


async def publish(events: int, rate: float | None, within: float) -> Published:
    """Publish so many confirmed events, or as many as go out within some seconds."""
    slowest, number = 0.0, 0
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=60)
        async with node.confirming(timeout=PATIENCE) as confirmed:
            began = trio.current_time()
            while number < events and trio.current_time() < began + within:
                if rate is not None and number % 50 == 0:
                    await trio.sleep_until(began + number / rate)
                before = trio.current_time()
                await confirmed.publish("orders.new", b"%d" % number, key=f"k{number % KEYS}")
                slowest = max(slowest, trio.current_time() - before)
                number += 1
        return Published(publisher=node.id, events=number, slowest=slowest)


def read_all(kafka: KafkaCluster) -> Iterator[tuple[bytes, tuple[bytes, ...], int]]:
    """Yield the key, the identity and the value of each record, in the order of each partition.

    Each partition gets a last record first.  A leader that was elected just now shows readers less than the replicas
    have, until one more record is confirmed.
    """
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all", "log_level": 0})
    for number in range(PARTITIONS):
        producer.produce(TOPIC, partition=number)
    assert producer.flush(PATIENCE) == 0, "the brokers take nothing more"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "chaos", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error() is not None:
                continue
            if message.value() is None:
                ended.add(message.partition())
                continue
            headers = headers_of(message)
            named = tuple(headers[name] for name in ("iris-publisher", "iris-topic", "iris-number"))
            yield message.key() or b"", named, int(message.value() or b"")
    consumer.close()


def expected_sums(events: int) -> dict[str, int]:
    """Return the sum of the values of each key."""
    return {f"k{key}": sum(range(key, events, KEYS)) for key in range(min(KEYS, events))}


def count_wrong(found: dict[str, int], events: int) -> int:
    """Return how many keys do not have the sum that they should have."""
    expected = expected_sums(events)
    return sum(found.get(key) != expected.get(key) for key in found.keys() | expected.keys())


def spark_sums(kafka: KafkaCluster, directory: Path) -> dict[str, int]:
    """Return the sum of the values of each key, as Spark reads them from Kafka."""
    settings = {
        "spark.jars": ",".join(map(str, kafka_source())),
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = spark_bridge.configure(builder).getOrCreate()
    try:
        events = spark_bridge.load(spark.read, bridge=TOPIC, kafka=kafka.bootstrap, subscribe="orders.>")
        number = F.col("value").cast("string").cast("bigint")
        rows = events.groupBy(F.col("key").cast("string").alias("key")).agg(F.sum(number).alias("sum")).collect()
        return {row.key: row["sum"] for row in rows}
    finally:
        spark.stop()


def run(events: int, rate: float | None = None, *, spark: bool = False, within: float = math.inf) -> Outcome:
    """Publish, kill, read and count, with three brokers."""
    with open_kafka(3) as kafka:
        kafka.create_topic(TOPIC, PARTITIONS, min_insync_replicas=2)
        return run_on(kafka, events, rate, spark=spark, within=within)


def run_on(
    kafka: KafkaCluster,
    events: int,
    rate: float | None,
    every: float = MEMBER_KILLED,
    *,
    spark: bool = False,
    within: float = math.inf,
) -> Outcome:
    """Do the same with brokers of which a single one is not killed.

    Args:
        kafka: has a topic ``bridge`` of ``PARTITIONS``.
        events: how many.
        rate: events a second; None: as fast as they go.
        every: seconds between two kills of members.
        spark: let Spark sum up, too.
        within: seconds after which no more are published.
    """
    with open_realm(), tempfile.TemporaryDirectory() as logs:
        least = str(min(2, len(kafka.brokers)))
        command = [sys.executable, "-m", "iris", "bridge", "--topic", ">", "--kafka", kafka.bootstrap]
        command += ["--min-insync", least]
        members = [Child(command, ready="stores", log=Path(logs) / f"{number}.txt") for number in range(MEMBERS)]
        try:
            for member in members:
                member.start()
            kills = Kills(kafka, members, every)
            began = time.monotonic()
            with kills.going_on():
                published = trio.run(partial(publish, events, rate, within))
                seconds = time.monotonic() - began
            seen: set[int] = set()
            last: dict[bytes, int] = {}
            sums: Counter[str] = Counter()
            repeats = disordered = 0
            for key, named, value in read_all(kafka):
                assert named[0] == published.publisher.encode()
                number = int(named[2])
                if number in seen:
                    repeats += 1
                    continue
                seen.add(number)
                disordered += value < last.get(key, -1)
                last[key] = value
                sums[key.decode()] += value
            return Outcome(
                confirmed=published.events,
                lost=published.events - len(seen),
                repeats=repeats,
                disordered=disordered,
                wrong_sums=count_wrong(sums, published.events),
                spark_wrong_sums=count_wrong(spark_sums(kafka, Path(logs)), published.events) if spark else None,
                brokers_killed=kills.brokers,
                members_killed=kills.members,
                seconds=round(seconds, 1),
                slowest=round(published.slowest, 1),
            )
        finally:
            for member in members:
                member.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no more are published")
    given = parser.parse_args()
    outcome = run(given.events, given.rate, spark=given.spark, within=given.within)
    sys.stdout.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
