"""``iris connect kafka`` on the command line, and while it and the brokers are killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from docs.pages import ROOT, blocks
from tests.support.command import open_terminal
from tests.support.connect_chaos import PARTITIONS, TOPIC, Outcome, run, run_from, run_to
from tests.support.consoles import run_console
from tests.support.kafka import KafkaCluster


def test_the_terminals_of_connect_kafka_md_show_what_it_says(kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic("payments")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce("payments", b"12 EUR", b"k")
    assert producer.flush(30) == 0
    page = [
        dataclasses.replace(
            block,
            code=block.code.replace("localhost:9092", kafka.bootstrap).replace("-topic orders", f"-topic {topic}"),
        )
        for block in blocks(ROOT / "docs" / "howto" / "spark" / "connect_kafka.md")
    ]
    run_console(page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --to BOOTSTRAP or --from BOOTSTRAP"),
        (("--to", "k:1", "--from", "k:1"), "give --to BOOTSTRAP or --from BOOTSTRAP"),
        (("--from", "k:1"), "give the topic of Kafka: --kafka-topic NAME"),
        (("--from", "k:1", "--kafka-topic", "a", "--topic", "b"), "--topic and --group are for --to"),
        (("--from", "k:1", "--kafka-topic", "a", "--group", "b"), "--topic and --group are for --to"),
    ],
)
def test_options_that_do_not_fit_are_named(arguments: tuple[str, ...], message: str) -> None:
    with open_terminal() as terminal:
        refused = terminal.run("connect", "kafka", *arguments)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.decode().replace("│", " ").split())


@pytest.mark.parametrize("copy", [run_to, run_from])
def test_each_is_once_at_the_other_end_though_the_connector_is_killed(
    copy: Callable[[KafkaCluster, int, int], Outcome], kafka: KafkaCluster
) -> None:
    kafka.create_topic(TOPIC, PARTITIONS)
    try:
        outcome = copy(kafka, 2000, 3)
    finally:
        kafka.delete_topic(TOPIC)
    assert outcome.count("connector") == 3
    assert (outcome.lost, outcome.doubled, outcome.disordered) == (0, 0, 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("kafka")
@pytest.mark.parametrize("direction", ["to", "from"])
def test_each_is_once_at_the_other_end_though_connector_and_brokers_are_killed(direction: str) -> None:
    outcome = run(direction, 1_000_000, 30)
    assert (outcome.count("connector"), outcome.count("broker")) == (15, 15)
    assert (outcome.lost, outcome.doubled, outcome.disordered) == (0, 0, 0)
