"""Processor time of a record into Kafka: by a member of a bridge, and by Kafka's client alone.

``python -m benchmarks.bridge.kafka_records 40000`` prints microseconds a record, of values of 1,000 bytes.  The time
of the member has all that it does: it receives and decrypts each event, has Kafka store it, and confirms it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from confluent_kafka import KafkaError, Message, Producer

import iris
from iris.spark_bridge.kafka.settings import CLIENT, PRODUCER
from tests.support.kafka import open_kafka
from tests.support.processes import Child, open_realm

VALUE: Final = b"x" * 1000
KEYS: Final = 200
PARTITIONS: Final = 6


def processor_time(pid: int) -> float:
    """Return the seconds of processor time of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def by_bridge(member: Child, count: int) -> None:
    """Publish confirmed events, and print what the member has needed for each."""
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", timeout=60)
        for warm, keyed in ((True, True), (False, True), (False, False)):
            began = processor_time(member.pid)
            async with node.confirming(timeout=300) as confirmed:
                for number in range(5000 if warm else count):
                    await confirmed.publish("orders.new", VALUE, key=f"k{number % KEYS}" if keyed else None)
            if not warm:
                each = (processor_time(member.pid) - began) / count * 1e6
                sys.stdout.write(f"member, {'a key each' if keyed else 'without keys'}: {each:.1f} us\n")


def alone(bootstrap: str, count: int) -> float:
    """Return the same of Kafka's client in this process, with the same headers and properties."""
    producer = Producer({**CLIENT, **PRODUCER, "bootstrap.servers": bootstrap})
    headers: Any = [("iris-topic", b"orders.new"), ("iris-sender", b"publisher"), ("iris-publisher", b"a" * 32)]
    headers.append(("iris-number", b"12"))
    delivered: list[object] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        delivered.append(error)

    began = time.process_time()
    for number in range(count):
        key = b"k%d" % (number % KEYS)
        producer.produce("alone", VALUE, key, on_delivery=note, headers=headers)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    assert delivered == [None] * count
    return (time.process_time() - began) / count * 1e6


def main(count: int) -> None:
    """Measure with one broker."""
    with open_realm(), open_kafka() as kafka, tempfile.TemporaryDirectory() as directory:
        for topic in ("bridge", "alone"):
            kafka.create_topic(topic, PARTITIONS)
        command = [
            sys.executable,
            "-m",
            "iris",
            "bridge",
            "--topic",
            ">",
            "--kafka",
            kafka.bootstrap,
            "--min-insync",
            "1",
        ]
        member = Child(command, ready="stores", log=Path(directory) / "bridge.txt")
        member.start()
        try:
            trio.run(partial(by_bridge, member, count))
        finally:
            member.end()
        sys.stdout.write(f"Kafka's client alone: {alone(kafka.bootstrap, count):.1f} us\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
