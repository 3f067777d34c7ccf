"""``iris bridge --kafka`` on the command line, with the verbs that look at what it has stored."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator

import pytest

from docs.pages import ROOT, blocks
from tests.support.command import PATIENCE, Terminal, interrupt, open_terminal
from tests.support.consoles import run_console
from tests.support.kafka import KafkaCluster


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as terminal:
        yield terminal


def test_events_are_published_stored_shown_and_read(kafka: KafkaCluster, topic: str, terminal: Terminal) -> None:
    properties = terminal.directory / "client.properties"
    properties.write_text("# of the client\n\nsocket.keepalive.enable = true\n")
    started = ["bridge", "--topic", "orders.>", "--kafka", kafka.bootstrap]
    started += ["--kafka-topic", topic, "--config", str(properties)]
    refused = terminal.run(*started)
    assert refused.returncode != 0
    assert b"has 1 replicas, and 2 are to have what is confirmed" in refused.stderr
    with terminal.started(
        *started, "--min-insync", "1", announces=f"stores orders.> in topic {topic} of Kafka"
    ) as bridge:
        assert terminal.run("pub", "orders.new", "tea", "--key", "a", "--confirm", "--timeout", "60").returncode == 0
        read = terminal.run("log", "read", "orders.>", "-o", "csv")
        assert b"orders.new,a" in read.stdout.splitlines()[1], read.stderr
        status = terminal.run("bridge", "status").stdout
        assert b"shard 0@" in status
        assert b"1 stored" in status
        assert interrupt(bridge) == 0
        assert bridge.stderr is not None
        assert b"1 events stored, 0 refused, 0 not confirmed" in bridge.stderr.read()


def test_a_log_moves_into_kafka(kafka: KafkaCluster, topic: str, terminal: Terminal) -> None:
    embedded = ["bridge", "--topic", "orders.>", "--data", "log"]
    copying = ["connect", "kafka", "--to", kafka.bootstrap, "--kafka-topic", topic]
    with (
        terminal.started(*embedded, announces="stores orders.>") as bridge,
        terminal.started(*copying, announces=f"into topic {topic} of Kafka") as connector,
    ):
        for item in ("tea", "milk"):
            assert terminal.run("pub", "orders.new", item, "--confirm", "--timeout", "60").returncode == 0
        end = time.monotonic() + PATIENCE
        while b": 0 events behind" not in terminal.run("bridge", "status").stdout:
            assert time.monotonic() < end
        assert interrupt(connector) == 0
        assert interrupt(bridge) == 0
    on_kafka = ["bridge", "--topic", "orders.>", "--kafka", kafka.bootstrap, "--kafka-topic", topic]
    with terminal.started(*on_kafka, "--min-insync", "1", announces=f"in topic {topic} of Kafka"):
        assert terminal.run("pub", "orders.new", "cake", "--confirm", "--timeout", "60").returncode == 0
        read = terminal.run("log", "read", "orders.>").stdout.splitlines()
    assert [json.loads(line)["value"] for line in read] == ["tea", "milk", "cake"]


def test_the_terminals_of_kafka_md_show_what_it_says(kafka: KafkaCluster, topic: str) -> None:
    options = f"--kafka {kafka.bootstrap} --min-insync 1 --kafka-topic {topic}"
    page = [
        dataclasses.replace(block, code=block.code.replace("--kafka localhost:9092", options))
        for block in blocks(ROOT / "docs" / "howto" / "spark" / "kafka.md")
    ]
    run_console(page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kafka", "k:1", "--data", "d"), "this needs the embedded log, with --data and without --kafka: --data"),
        (("--kafka", "k:1", "--of", "2", "--min-copies", "1"), "without --kafka: --of, --min-copies"),
        (("--data", "d", "--min-insync", "1"), "--min-insync is for a bridge on Kafka: give --kafka, too"),
        ((), "give --data, or --kafka"),
    ],
)
def test_options_that_do_not_fit_are_named(arguments: tuple[str, ...], message: str, terminal: Terminal) -> None:
    refused = terminal.run("bridge", "--topic", "a", *arguments)
    assert refused.returncode == 2
    assert message in " ".join(refused.stderr.decode().replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "line 1"),
        ("acks=1", "sets acks itself"),
        ("delivery.report.only.error=true", "sets delivery.report.only.error itself"),
        ("error_cb=print", "sets error_cb itself"),
        ("no.such=1", "No such configuration"),
    ],
)
def test_what_is_wrong_in_the_properties_is_named(text: str, message: str, terminal: Terminal) -> None:
    properties = terminal.directory / "client.properties"
    properties.write_text(text)
    refused = terminal.run("bridge", "--topic", "a", "--kafka", "127.0.0.1:1", "--config", str(properties))
    assert refused.returncode != 0
    assert message in " ".join(refused.stderr.decode().split())
