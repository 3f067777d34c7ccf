"""A bridge's engines in one run: its own log alone, with copies and an election, and Kafka.

Rates, and the processor time of all processes that keep a confirmed event, in turns on one machine.  Kafka stands
beside its client alone, and Iris's source for Spark beside Spark's own for Kafka: from the publishing of an event to
its row at the driver.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from confluent_kafka import KafkaError, Message, Producer

import iris
import iris.sync
from benchmarks.bridge.rates import processor_time, row
from iris.spark_bridge.kafka.settings import CLIENT, PRODUCER
from tests.support.copied_bridges import wait_in_step
from tests.support.etcd import find_etcd, open_etcd
from tests.support.kafka import KafkaCluster, open_kafka
from tests.support.processes import Child, open_realm
from tests.support.spark_packages import kafka_source

ROUNDS: Final = 5
KEYS: Final = 200
PARTITIONS: Final = 6
VALUE: Final = b"x" * 1000
_WARM: Final = 20
"""Rows that come before the way of others is timed."""

Measured = tuple[float, float, float]
"""Events a second, and microseconds of processor time of each: of all processes, and of the member alone."""


def measure_engines(events: int, answers: int, rounds: int = ROUNDS) -> None:
    """Print the table.

    Args:
        events: in each round.
        answers: events whose way into Spark is timed; 0: Spark is not started.
        rounds: of each kind.
    """
    with open_realm() as directory, contextlib.ExitStack() as stack:
        kafka = stack.enter_context(open_kafka())
        bridges = _start(directory, kafka, stack)
        kinds = {
            "its own log": partial(_publish, "alone", bridges["alone"], events),
            "its own log, two copies and an election": partial(_publish, "bridge", bridges["bridge"], events),
            "its own log, two copies and an election, a key each": partial(
                _publish, "bridge", bridges["bridge"], events, keyed=True
            ),
            "its own log, a key each": partial(_publish, "alone", bridges["alone"], events, keyed=True),
            "Kafka": partial(_publish, "kafka", bridges["kafka"], events),
            "Kafka, a key each": partial(_publish, "kafka", bridges["kafka"], events, keyed=True),
            "Kafka's client alone": partial(_produce, kafka.bootstrap, events),
            "Kafka's client alone, a key each": partial(_produce, kafka.bootstrap, events, keyed=True),
        }
        found = _in_turns(kinds, rounds)
        for name, measured in found.items():
            rate, used, member = (statistics.median(one) for one in zip(*measured, strict=True))
            beside = {
                "its own log, two copies and an election": ("its own log", 0, ">= 0.6x the rate"),
                "its own log, two copies and an election, a key each": ("its own log, a key each", 0, ">= 0.6x"),
                "Kafka": ("Kafka's client alone", 1, "<= 1.3x the time"),
                "Kafka, a key each": ("Kafka's client alone, a key each", 1, "<= 1.3x the time"),
            }.get(name)
            against = ""
            if beside is not None:
                other, place, target = beside
                against = f"{_ratio(measured, found[other], place):.2f}x of {other} ({target})"
            of_member = f" ({member:.1f} of the primary)" if used > member else ""
            row(f"{name}: events/s, us of each", f"{rate:,.0f}, {used:.1f}{of_member}", against)
        if answers:
            _time_answers(directory, kafka, answers)


def _ratio(ours: Sequence[Measured], others: Sequence[Measured], place: int) -> float:
    """Return the median of the ratios of the rounds: what else the machine does is alike for the two of one round."""
    return statistics.median(one[place] / other[place] for one, other in zip(ours, others, strict=True))


def _in_turns(kinds: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """Measure all once to warm up, then in turns."""
    found: dict[str, list[Measured]] = {name: [] for name in kinds}
    for turn in range(rounds + 1):
        for name, measure in kinds.items():
            measured = measure()
            print(f"{turn} {name}: {measured[0]:,.0f} events/s, {measured[1]:.1f} us", file=sys.stderr, flush=True)
            if turn:
                found[name].append(measured)
    return found


def _start(directory: Path, kafka: KafkaCluster, stack: contextlib.ExitStack) -> dict[str, list[Child]]:
    """Start three bridges, each of which takes the topic that is called as itself; return their processes."""
    program = find_etcd()
    if program is None:
        raise SystemExit("etcd is not installed (Debian: apt install etcd-server)")
    etcd = stack.enter_context(open_etcd(program))
    election = ("--election", f"etcd://127.0.0.1:{etcd.port}")

    def child(name: str, *options: str, ready: str) -> Child:
        command = [sys.executable, "-m", "iris", "bridge", *options]
        started = Child(command, ready=ready, log=directory / f"{name}.txt")
        stack.callback(started.end)
        started.launch()
        return started

    def data(name: str) -> tuple[str, str]:
        return "--data", str(directory / name)

    for topic in ("kafka", "client"):
        kafka.create_topic(topic, PARTITIONS)
    brokers = ("--kafka", kafka.bootstrap, "--min-insync", "1")
    bridges = {
        "alone": [child("alone", "--name", "alone", "--topic", "alone", *data("alone"), ready="stores")],
        "kafka": [child("kafka", "--name", "kafka", "--topic", "kafka", *brokers, ready="stores")],
        "bridge": [
            child("a", "--topic", "bridge", "--min-copies", "1", *data("a"), *election, ready="stores"),
            *(
                child(name, "--follow", "bridge/0", "--copy", name, *data(name), *election, ready="is the copy")
                for name in ("b", "c")
            ),
        ],
    }
    for children in bridges.values():
        for started in children:
            started.wait_ready()
    trio.run(wait_in_step)
    return bridges


def _publish(bridge: str, processes: Sequence[Child], count: int, *, keyed: bool = False) -> Measured:
    """Publish confirmed events to a bridge; the time is that of its processes, not of the publisher."""

    async def run() -> float:
        async with iris.open_node("publisher") as node:
            await node.wait_for(bridge, timeout=60)
            began = time.perf_counter()
            async with node.confirming(timeout=300) as confirmed:
                for number in range(count):
                    await confirmed.publish(bridge, VALUE, key=f"k{number % KEYS}" if keyed else None)
            return count / (time.perf_counter() - began)

    before = [processor_time(process.pid) for process in processes]
    rate = trio.run(run)
    used = [processor_time(process.pid) - then for process, then in zip(processes, before, strict=True)]
    return rate, sum(used) / count * 1e6, used[0] / count * 1e6


def _produce(bootstrap: str, count: int, *, keyed: bool = False) -> Measured:
    """Do the same by Kafka's client in this process, with the properties and headers that a member has."""
    producer = Producer({**CLIENT, **PRODUCER, "bootstrap.servers": bootstrap})
    headers: Any = [("iris-topic", b"kafka"), ("iris-sender", b"publisher"), ("iris-publisher", b"a" * 32)]
    headers.append(("iris-number", b"12"))
    delivered: list[object] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        delivered.append(error)

    began, used = time.perf_counter(), time.process_time()
    for number in range(count):
        key = b"k%d" % (number % KEYS) if keyed else None
        producer.produce("client", VALUE, key, on_delivery=note, headers=headers)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    assert delivered == [None] * count
    each = (time.process_time() - used) / count * 1e6
    return count / (time.perf_counter() - began), each, each


def _time_answers(directory: Path, kafka: KafkaCluster, count: int) -> None:
    """Print how long an event takes from its publishing to its row at Spark's driver, by either source."""
    from pyspark.sql import SparkSession

    from iris import spark_bridge

    if not (jars := kafka_source()):
        raise SystemExit("Spark's Kafka source is not to be had: apt install maven")
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(map(str, jars)))
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = spark_bridge.configure(builder, latency=True).getOrCreate()
    try:
        sources: dict[str, dict[str, Any]] = {
            "Iris's source, from its own log": {"bridge": "alone", "subscribe": "alone"},
            "Spark's Kafka source": {
                "bridge": "kafka", "subscribe": "kafka", "kafka": kafka.bootstrap, "repeats": None,
            },
        }  # fmt: skip
        for name, options in sources.items():
            stream = spark_bridge.load(spark.readStream, startingOffsets="latest", **options)
            times = sorted(_answers(stream, options["bridge"], directory / options["bridge"] / "query", count))
            half, most = times[len(times) // 2], times[len(times) * 95 // 100]
            row(f"from an event to its row at the driver, {name}: p50 and p95", f"{half:.0f} and {most:.0f} ms")
    finally:
        spark.stop()


def _answers(stream: Any, topic: str, checkpoint: Path, count: int) -> list[float]:
    """Return milliseconds; events come one by one, some tenths of a second apart."""
    chance = random.Random(1)
    took: list[float] = []

    def note(batch: Any, _number: int) -> None:
        values = [bytes(value) for (value,) in batch.select("value").collect()]
        now = time.perf_counter_ns()
        took.extend((now - int(value)) / 1e6 for value in values)

    query = stream.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint)).start()
    try:
        with iris.sync.open_node("publisher") as node:
            node.wait_for(topic, timeout=60)

            def publish() -> None:
                node.publish_confirmed(topic, b"%d" % time.perf_counter_ns(), timeout=60)

            def wait(more: int, seconds: float) -> bool:
                limit = time.monotonic() + seconds
                while len(took) < more and query.isActive and time.monotonic() < limit:
                    time.sleep(0.01)
                return len(took) >= more

            # What was published before the query has chosen where it begins has no row.
            tries = 0
            while not wait(_WARM, 1.0):
                publish()
                tries += 1
                if tries > 300 or not query.isActive:
                    raise RuntimeError(f"no row has come: {query.exception()}")
            query.processAllAvailable()
            took.clear()
            for number in range(count):
                time.sleep(chance.uniform(0.05, 0.3))
                publish()
                if not wait(number + 1, 60.0):
                    raise RuntimeError(f"no row has come: {query.exception()}")
    finally:
        query.stop()
    return took
