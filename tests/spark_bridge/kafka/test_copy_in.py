"""``iris connect kafka --from``: each record of a topic once in an embedded log, and read there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Producer

import iris
from iris.kernel.errors import ConfigError, NotAllowed
from iris.kernel.tasks import open_background
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.kafka.copy_in import CopyIn
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, Rights, open_network
from tests.support.kafka import KafkaCluster


def produce(kafka: KafkaCluster, topic: str, numbers: range, **properties: object) -> None:
    """Write numbers, the key of each being its last digit."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, **properties})
    for number in numbers:
        producer.produce(topic, b"%d" % number, b"k%d" % (number % 10), headers=[("n", b"%d" % number)])
    assert producer.flush(30) == 0


def copying(node: iris.Node, kafka: KafkaCluster, topic: str) -> CopyIn:
    client = BridgeClient(node, "bridge", patience=10)
    return CopyIn(client, kafka=kafka.bootstrap, topic=topic, settings={})


@asynccontextmanager
async def embedded(network: Network, directory: Path, **options: Any) -> AsyncIterator[iris.Node]:
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=["orders.>"], directory=directory, **options),
    ):
        yield node


async def read(node: iris.Node) -> list[dict[str, Any]]:
    return [dict(event) async for event in read_events(BridgeClient(node, "bridge", patience=10), topics=[">"])]


async def wait_until(node: iris.Node, enough: Callable[[list[str]], bool]) -> list[str]:
    """Return the values in the log when they are enough."""
    with trio.fail_after(60):
        while not enough(found := [str(event["value"]) for event in await read(node)]):  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.1)
    return found


async def test_each_record_is_an_event_that_readers_and_subscribers_get(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    produce(kafka, topic, range(20))
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        async with desk.subscribe(topic) as subscription, open_background() as nursery:
            nursery.start_soon(copying(desk, kafka, topic).run)
            with trio.fail_after(60):
                event = await anext(aiter(subscription))
            assert (event.topic, event.payload, event.key) == (topic, b"0", "k0")
            await wait_until(desk, lambda found: len(found) >= 20)
            produce(kafka, topic, range(20, 25))
            await wait_until(desk, lambda found: len(found) >= 25)
        found = await read(desk)
    assert [(one["topic"], one["key"], one["value"]) for one in found] == [
        (topic, f"k{number % 10}", str(number)) for number in range(25)
    ]
    assert found[3]["headers"]["n"] == "3"


async def test_another_connector_goes_on_and_holes_are_no_gaps(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        for part in range(3):
            numbers = range(part * 10, part * 10 + 10)
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "transactional.id": topic})
            producer.init_transactions(30)
            for is_kept in (False, True):
                producer.begin_transaction()
                for number in numbers:
                    producer.produce(topic, b"%d" % number)
                producer.flush(30)
                if is_kept:
                    producer.commit_transaction(30)
                else:
                    producer.abort_transaction(30)
            async with open_background() as nursery:
                nursery.start_soon(copying(desk, kafka, topic).run)
                await wait_until(desk, lambda found, end=numbers.stop: len(found) >= end)  # type: ignore[misc]
        found = [event["value"] for event in await read(desk)]
        shards = await BridgeClient(desk, "bridge", patience=10).shards()
    assert found == [str(number) for number in range(30)]
    assert [(shard.next, shard.gap) for shard in shards] == [(30, -1)]


async def test_a_topic_that_was_made_again_is_not_swallowed(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    produce(kafka, topic, range(10))
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        async with open_background() as nursery:
            nursery.start_soon(copying(desk, kafka, topic).run)
            await wait_until(desk, lambda found: len(found) >= 10)
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        produce(kafka, topic, range(100, 115))
        async with open_background() as nursery:
            nursery.start_soon(copying(desk, kafka, topic).run)
            found = await wait_until(desk, lambda found: len(found) >= 25)
    assert found == [str(number) for number in (*range(10), *range(100, 115))]


async def test_of_two_connectors_at_once_none_stores_a_record_that_the_other_has(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        copies = [copying(desk, kafka, topic) for _ in range(2)]
        async with open_background() as nursery:
            for copy in copies:
                nursery.start_soon(copy.run)
            for begin in range(0, 400, 20):
                produce(kafka, topic, range(begin, begin + 20))
                await trio.sleep(0.05)
            found = await wait_until(desk, lambda found: len(found) >= 400)
    assert found == [str(number) for number in range(400)]
    assert sum(copy.copied for copy in copies) == 400


async def test_a_record_that_cannot_be_an_event_is_named(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(topic, b"small")
    producer.produce(topic, b"x", b"k" * 100_000)
    assert producer.flush(30) == 0
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        with pytest.raises(ConfigError, match="offset 1 of partition 0: column key"), trio.fail_after(60):
            await copying(desk, kafka, topic).run()


async def test_a_connector_stores_nothing_that_it_may_not_publish(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    produce(kafka, topic, range(3))
    async with open_network() as network, embedded(network, tmp_path / "log"):
        network.credential("clerk", Rights(publishes=("other.>",), subscribes=()))
        async with network.open_node("clerk") as desk:
            with pytest.raises(NotAllowed, match="publish on"), trio.fail_after(60):
                await copying(desk, kafka, topic).run()
        async with network.open_node("reader") as reader:
            assert await read(reader) == []
