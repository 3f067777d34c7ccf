"""A bridge that keeps its events in Kafka: what stands there, what is confirmed, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

import iris
import iris.arrow
from iris.kernel.errors import ConfigError, NotAllowed, RemoteError, RequestTimeout
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.patterns.bridge_protocol import Consume, read_refusal
from iris.patterns.messages import Sender
from iris.spark_bridge.admin import drop_group, read_events, read_status
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.errors import KafkaLost, QuotaExceeded
from iris.spark_bridge.kafka import consumers as consumers_of_kafka
from iris.spark_bridge.kafka import member as member_of_kafka
from iris.spark_bridge.kafka.bridge import open_kafka_bridge
from iris.spark_bridge.kafka.log import KafkaLog
from iris.spark_bridge.kafka.member import KafkaMember, check_promises
from iris.spark_bridge.protocol import OPERATIONS, PERMISSIONS
from iris.testing import Network, Rights, open_network
from tests.support.bridge_requests import ask_raw
from tests.support.kafka import KafkaCluster, headers_of


@asynccontextmanager
async def bridge(
    network: Network, kafka: KafkaCluster, topic: str, patterns: tuple[str, ...] = (">",), **options: Any
) -> AsyncIterator[KafkaMember]:
    async with (
        network.open_node("bridge") as node,
        open_kafka_bridge(
            node, topics=patterns, kafka=kafka.bootstrap, kafka_topic=topic, min_insync=1, **options
        ) as member,
    ):
        yield member


def records_of(kafka: KafkaCluster, topic: str, count: int, partitions: int = 1) -> list[Message]:
    """Return so many records of a topic."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), timeout=10)
    consumer.close()
    return found


async def test_a_confirmed_event_is_in_kafka_with_what_names_it(kafka: KafkaCluster, topic: str) -> None:
    async with open_network() as network, bridge(network, kafka, topic) as member, network.open_node("desk") as node:
        await node.publish_confirmed(
            "orders.new", b"tea", key="kätzchen", headers={"currency": "EUR", "iris-sender": "forged"}, timeout=30
        )
        await node.publish_confirmed("orders.new", "text", timeout=30)
        await node.publish_confirmed("orders.old", {"n": 1}, timeout=30)
        await node.publish_confirmed("orders.old", None, key="gone", timeout=30)
        found = records_of(kafka, topic, 4)
        assert member.statistics().stored == 4 == member.statistics().received
        assert member.statistics().waiting_bytes == 0
    assert [record.value() for record in found] == [b"tea", b"text", b'{"n":1}', None]
    assert found[0].key() == "kätzchen".encode()
    assert found[1].key() is None
    headers = [headers_of(record) for record in found]
    assert headers[0] == {
        "iris-topic": b"orders.new",
        "iris-sender": b"desk",
        "iris-publisher": node.id.encode(),
        "iris-number": b"1",
        "currency": b"EUR",
    }
    assert [one.get("iris-encoding") for one in headers] == [None, b"utf-8", b"json", None]
    named = [(one["iris-publisher"], one["iris-topic"], one["iris-number"]) for one in headers]
    assert len(set(named)) == 4


async def test_events_in_kafka_become_columns_as_those_of_a_log(kafka: KafkaCluster, topic: str) -> None:
    async with open_network() as network, bridge(network, kafka, topic), network.open_node("desk") as node:
        for number in range(3):
            await node.publish_confirmed("orders.new", {"n": number}, key="k", headers={"h": "v"}, timeout=30)
        async with node.bridge().consume("orders.>", until="now") as orders:
            columns = pa.Table.from_batches([iris.arrow.to_arrow(batch) async for batch in orders], iris.arrow.SCHEMA)
    assert columns.column("value").to_pylist() == ['{"n":0}', '{"n":1}', '{"n":2}']
    first = columns.to_pylist()[0]
    assert (first["topic"], first["key"], first["sender"], first["headers"]) == (
        "orders.new", "k", "desk", [("h", "v")],
    )  # fmt: skip


async def test_a_topic_that_is_compacted_keeps_the_last_value_of_each_key(kafka: KafkaCluster) -> None:
    kafka.create_topic("compacted", cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.001)
    async with (
        open_network() as network,
        bridge(network, kafka, "compacted") as member,
        network.open_node("desk") as node,
    ):
        for number in range(20):
            await node.publish_confirmed("lamps", number, key=f"k{number % 2}", timeout=30)
        await node.publish_confirmed("lamps", None, key="k0", timeout=30)
        found: list[tuple[str | None, Any]] = []
        with trio.fail_after(120):
            # Each event begins a segment: only what stands before it is compacted.
            while found[:2] != [("k1", 19), ("k0", None)]:
                await node.publish_confirmed("lamps", b"", key="other", timeout=30)
                async with node.bridge().consume("lamps", until="now") as lamps:
                    found = [(event.key, event.payload) async for batch in lamps for event in batch]
        with pytest.raises(RequestTimeout, match="it has no key"):
            await node.publish_confirmed("lamps", b"alone", timeout=3)
        await node.publish_confirmed("lamps", b"on", key="k1", timeout=30)
        assert member.statistics().refused >= 1


async def test_an_event_that_matches_two_patterns_is_stored_once(kafka: KafkaCluster, topic: str) -> None:
    async with (
        open_network() as network,
        bridge(network, kafka, topic, ("orders.>", "orders.*")) as member,
        network.open_node("desk") as node,
    ):
        for number in range(10):
            await node.publish_confirmed("orders.new", number, timeout=30)
        assert member.statistics().stored == 10
    assert len(records_of(kafka, topic, 10)) == 10


async def test_members_share_the_events_and_each_key_stays_with_one(kafka: KafkaCluster, topic: str) -> None:
    async with (
        open_network() as network,
        bridge(network, kafka, topic) as one,
        bridge(network, kafka, topic) as other,
        network.open_node("desk") as node,
    ):
        async with node.confirming(timeout=60) as confirmed:
            for number in range(1000):
                await confirmed.publish("orders.new", number, key=f"k{number % 50}")
        stored = one.statistics().stored, other.statistics().stored
    assert sum(stored) == 1000
    assert min(stored) > 0
    last: dict[bytes | None, int] = {}
    for record in records_of(kafka, topic, 1000):
        number = int(headers_of(record)["iris-number"])
        assert number > last.get(record.key(), 0)
        last[record.key()] = number


async def test_a_topic_that_promises_less_is_refused_unless_that_is_asked_for(kafka: KafkaCluster, topic: str) -> None:
    async with open_network() as network, network.open_node("bridge") as node:
        with pytest.raises(ConfigError, match=r"has 1 replicas, and 2 are to have.*give --min-insync 1"):
            async with open_kafka_bridge(node, topics=[">"], kafka=kafka.bootstrap, kafka_topic=topic):
                pass
        log = KafkaLog(kafka.bootstrap, topic, "bridge", {})
        replicated = dataclasses.replace(log.describe(), replicas=3)
        set_by = rf"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter.*min.insync.replicas=2"
        with pytest.raises(ConfigError, match=rf"less than 2 is refused: .*{set_by}.*--min-insync 1"):
            check_promises(log, replicated, 2)
        made_by = rf"kafka-topics.sh --bootstrap-server {kafka.bootstrap} --create"
        with pytest.raises(ConfigError, match=rf"no topic 'absent'.*{made_by}"):
            async with open_kafka_bridge(node, topics=[">"], kafka=kafka.bootstrap, kafka_topic="absent"):
                pass
        with pytest.raises(ConfigError, match="sets acks itself"):
            async with open_kafka_bridge(node, topics=[">"], kafka=kafka.bootstrap, settings={"acks": "1"}):
                pass
        with pytest.raises(ConfigError, match="settings of Kafka's client are wrong"):
            async with open_kafka_bridge(node, topics=[">"], kafka=kafka.bootstrap, settings={"nonsense": "1"}):
                pass


async def test_a_member_whose_client_cannot_keep_the_order_ends_and_confirms_nothing_more(
    kafka: KafkaCluster, topic: str
) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with pytest.raises(KafkaLost, match=r"cannot go on: .*sequence"), trio.fail_after(60):  # noqa: PT012
            async with bridge(network, kafka, topic) as member:
                await node.publish_confirmed("a", 1, timeout=30)
                member._note_error(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of sequence", fatal=True))
                await trio.sleep_forever()


async def test_what_is_fatal_ends_a_member_also_where_the_client_raises_it(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll(_seconds: float) -> int:
        raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of sequence", fatal=True))

    async with open_network() as network, network.open_node("desk") as node:
        with pytest.raises(KafkaLost, match=r"cannot go on: .*sequence"), trio.fail_after(60):  # noqa: PT012
            async with bridge(network, kafka, topic) as member:
                await node.publish_confirmed("a", 1, timeout=30)
                monkeypatch.setattr(member, "_producer", SimpleNamespace(poll=poll, purge=member._producer.purge))
                await trio.sleep_forever()


async def test_a_member_that_starts_before_its_brokers_waits_for_them(kafka: KafkaCluster, topic: str) -> None:
    said: list[str] = []
    told = trio.Event()

    def tell(reason: str) -> None:
        said.append(reason)
        told.set()

    kafka.kill(1)
    async with open_network() as network, network.open_node("desk") as node, trio.open_nursery() as nursery:

        async def serve() -> None:
            async with bridge(network, kafka, topic, waiting=tell):
                await trio.sleep_forever()

        nursery.start_soon(serve)
        await told.wait()
        assert "Kafka does not answer" in said[0]
        await trio.to_thread.run_sync(kafka.start, 1)
        await node.wait_for("bridge", timeout=60)
        await node.publish_confirmed("a", 1, timeout=60)
        nursery.cancel_scope.cancel()


async def test_a_member_ends_when_its_topic_promises_less_than_before(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_of_kafka, "_LOOK", 0.1)
    monkeypatch.setattr(member_of_kafka, "check_promises", _unless_of_5000_bytes)
    async with open_network() as network:
        with pytest.raises(ConfigError, match="promises less"), trio.fail_after(30):  # noqa: PT012
            async with bridge(network, kafka, topic):
                kafka.configure_topic(topic, max_message_bytes=5000)
                await trio.sleep_forever()


def _unless_of_5000_bytes(_log: object, state: Any, _least: int) -> None:
    if state.max_record == 5000:
        raise ConfigError("the topic promises less")


async def test_what_is_too_large_for_the_topic_is_not_confirmed_and_harms_nothing_else(kafka: KafkaCluster) -> None:
    kafka.create_topic("small", max_message_bytes=10_000)
    async with open_network() as network, bridge(network, kafka, "small") as member, network.open_node("desk") as node:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(partial(node.publish_confirmed, "a", b"x" * 9000, key=str(number), timeout=30))
            nursery.start_soon(partial(node.publish, "a", b"x" * 10_001))
        with pytest.raises(RequestTimeout, match="Kafka's topic takes"):
            await node.publish_confirmed("a", b"x" * 10_001, timeout=1)
        assert member.statistics().stored == 20
        assert member.statistics().refused == 2
        assert member.statistics().waiting == 0


async def test_while_brokers_are_away_publishers_pause_and_memory_is_bounded(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 1024 * 1024
    monkeypatch.setattr(member_of_kafka, "_IN_FLIGHT", bound)
    monkeypatch.setattr(member_of_kafka, "_TAKEN_AT_ONCE", 16)
    config = iris.Config(subscription_messages=64)
    async with (
        open_network() as network,
        network.open_node("bridge", config=config) as bridge_node,
        open_kafka_bridge(bridge_node, topics=[">"], kafka=kafka.bootstrap, kafka_topic=topic, min_insync=1) as member,
        network.open_node("desk") as node,
    ):
        await node.publish_confirmed("a", b"first", timeout=30)
        kafka.freeze(1)
        try:
            with pytest.raises(RequestTimeout, match="Kafka has not confirmed it"):
                await node.publish_confirmed("a", b"second", timeout=2)
            with trio.move_on_after(3) as scope:
                async with node.confirming(timeout=60) as confirmed:
                    for number in range(20_000):
                        await confirmed.publish("a", b"%d" % number * 100)
            assert scope.cancelled_caught
            assert bound <= member.statistics().waiting_bytes < 2 * bound
        finally:
            kafka.thaw(1)
        with trio.fail_after(60):
            while member.statistics().waiting:
                await node.publish_confirmed("a", b"last", timeout=60)
        statistics = member.statistics()
        assert statistics.received == statistics.stored
        assert statistics.waiting_bytes == 0


async def read(consumer: iris.Consumer, count: int, *, commit: bool = True) -> list[Any]:
    """Return the payloads of so many events."""
    found: list[Any] = []
    with trio.fail_after(60):
        while len(found) < count:
            batch = await anext(consumer)
            found += [event.payload for event in batch]
            if commit:
                await batch.commit()
    return found


async def publish(node: iris.Node, numbers: range, topic: str = "orders.new", key: str | None = "k") -> None:
    async with node.confirming(timeout=60) as confirmed:
        for number in numbers:
            await confirmed.publish(topic, number, key=key)


async def test_a_group_goes_on_where_it_had_committed(kafka: KafkaCluster, topic: str) -> None:
    async with open_network() as network, bridge(network, kafka, topic), network.open_node("desk") as node:
        await publish(node, range(3000))
        async with node.bridge().consume("orders.>", group="billing") as orders:
            batch = await anext(orders)
            assert [event.payload for event in batch] == list(range(len(batch)))
            await batch.commit()
            await anext(orders)  # not committed
        async with node.bridge().consume("orders.>", group="billing") as orders:
            assert await read(orders, 3000 - len(batch)) == list(range(len(batch), 3000))
        async with node.bridge().consume("orders.>", group="billing", replay=True, until="now") as orders:
            assert await read(orders, 3000) == list(range(3000))
        client = BridgeClient(node, "bridge", patience=10)
        (group,) = (await read_status(client)).groups
        assert (group.group, group.owner, group.lag) == ("billing", "desk", 0)


async def test_a_group_that_ends_leaves_what_comes_later_to_the_next_consumer(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_of_kafka, "_IDLE", 0.0)  # what is on other topics is noted as read at once
    async with open_network() as network, bridge(network, kafka, topic), network.open_node("desk") as node:
        await publish(node, range(10))
        async with node.bridge().consume("orders.>", group="billing", until="now") as orders:
            assert await read(orders, 10) == list(range(10))
            with pytest.raises(StopAsyncIteration):
                await anext(orders)
            await publish(node, range(10, 20))
            await publish(node, range(5), topic="other")
            client = BridgeClient(node, "bridge", patience=10)
            await trio.sleep(1)  # nothing is to happen
            assert (await read_status(client)).groups[0].lag == 15
        async with node.bridge().consume("orders.>", group="billing") as orders:
            assert await read(orders, 10) == list(range(10, 20))
            with trio.fail_after(30):
                while (await read_status(client)).groups[0].lag:  # events on another topic count as read  # noqa: ASYNC110 -- Kafka knows
                    await trio.sleep(0.1)


async def test_events_come_with_all_that_they_were_published_with(kafka: KafkaCluster, topic: str) -> None:
    payloads: list[Any] = [b"bytes", "text", {"n": [1, 1.0, True]}, None, b"x" * 300_000, 7, {"b": b"\x00"}, math.inf]
    payloads.append({"readings": [1.5] * 30_000})  # as JSON it has another size than packed
    async with open_network() as network, bridge(network, kafka, topic), network.open_node("desk") as node:
        for payload in payloads:
            await node.publish_confirmed("orders.new", payload, key="k", headers={"h": "v"}, timeout=30)
        async with node.bridge().consume("orders.*", until="now") as orders:
            found = [event async for batch in orders for event in batch]
    assert [event.payload for event in found] == payloads
    assert {(event.topic, event.key, event.headers["h"], event.sender) for event in found} == {
        ("orders.new", "k", "v", "desk")
    }
    assert [event.offset for event in found] == list(range(9))


async def test_what_waits_for_a_slow_consumer_comes_again_after_it(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_of_kafka, "_IDLE", 0.0)  # what may be passed over is noted at once
    partitions, each = 12, 70
    name = f"{topic}-wide"
    kafka.create_topic(name, partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for partition in range(partitions):
        for number in range(each):
            value = f"{partition} {number}".ljust(2000)
            producer.produce(name, value, partition=partition, headers=[("iris-topic", b"orders.new")])
    producer.flush(30)
    async with open_network() as network, bridge(network, kafka, name), network.open_node("desk") as node:
        async with node.bridge().consume("orders.>", group="billing") as orders:
            batch = await anext(orders)
            await trio.sleep(2)  # nothing is to happen: some partition's events have been sent in part
            found = {event.payload for event in batch}
            await batch.commit()
        async with node.bridge().consume("orders.>", group="billing") as orders:
            found.update(await read(orders, partitions * each - len(found)))
    assert len(found) == partitions * each


@pytest.mark.parametrize("timestamp", [316_000_000_000_000, 2**62])
async def test_a_record_of_the_far_future_is_read(kafka: KafkaCluster, topic: str, timestamp: int) -> None:
    name = f"{topic}-far"
    kafka.create_topic(name, message_timestamp_after_max_ms=2**63 - 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(name, b"tea", headers=[("iris-topic", b"orders.new")], timestamp=timestamp)
    producer.flush(30)
    async with open_network() as network, bridge(network, kafka, name), network.open_node("desk") as node:
        async with node.bridge().consume("orders.>", until="now") as orders:
            (event,) = [event async for batch in orders for event in batch]
        assert event.timestamp == pytest.approx(253_402_300_800, abs=1)
        (row,) = [row async for row in read_events(BridgeClient(node, "bridge", patience=10))]
        assert row["timestamp"].startswith("9999-12-31")


async def test_readers_end_behind_the_marks_of_transactions(kafka: KafkaCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "transactional.id": topic})
    producer.init_transactions(60)
    for payload, is_kept in ((b"tea", True), (b"coffee", False)):
        producer.begin_transaction()
        producer.produce(topic, payload, headers=[("iris-topic", b"orders.new")])
        (producer.commit_transaction if is_kept else producer.abort_transaction)(60)
    async with open_network() as network, bridge(network, kafka, topic), network.open_node("desk") as node:
        for group in (None, "billing"):
            async with node.bridge().consume("orders.>", group=group, until="now") as orders:
                assert [event.payload async for batch in orders for event in batch] == [b"tea"]
        rows = [row async for row in read_events(BridgeClient(node, "bridge", patience=10))]
        assert [row["offset"] for row in rows] == [0]


async def test_records_that_others_wrote_are_read_and_cannot_stop_a_reader(kafka: KafkaCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(topic, b"\xc1\xff", b"\xff", headers=[("iris-encoding", b"msgpack"), ("iris-topic", b"a b")])
    producer.produce(topic, b"{no", headers=[("iris-encoding", b"json"), ("iris-topic", b"orders.new")])
    producer.produce(topic, b"plain", headers=[("iris-topic", b"orders.new"), ("iris-sender", b"whoever")])
    producer.flush(30)
    async with (
        open_network() as network,
        bridge(network, kafka, topic),
        network.open_node("desk") as node,
        node.bridge().consume(">", until="now") as events,
    ):
        found = [event async for batch in events for event in batch]
    assert [(event.topic, event.payload, event.sender) for event in found] == [
        (topic, b"\xc1\xff", ""),
        ("orders.new", b"{no", ""),
        ("orders.new", b"plain", "whoever"),
    ]


async def test_consumers_of_one_group_divide_the_partitions_and_one_takes_over_from_another(
    kafka: KafkaCluster,
) -> None:
    kafka.create_topic("divided", partitions=2)
    async with (
        open_network() as network,
        bridge(network, kafka, "divided"),
        bridge(network, kafka, "divided"),
        network.open_node("desk") as node,
        network.open_node("desk") as second,
    ):
        async with node.confirming(timeout=60) as confirmed:
            for number in range(500):
                await confirmed.publish("orders.new", number, key=f"k{number % 20}")
        seen: dict[int, set[int]] = {0: set(), 1: set()}
        news = Wakeup()

        async def follow(who: int, by: iris.Node, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                async with by.bridge().consume("orders.>", group="billing") as orders:
                    async for batch in orders:
                        seen[who] |= {event.payload for event in batch}
                        news.wake()
                        await batch.commit()

        with trio.fail_after(90):
            async with trio.open_nursery() as nursery:
                first = await nursery.start(follow, 0, node)
                await nursery.start(follow, 1, second)
                number = 500
                while not seen[1]:  # once both are there, each has a partition
                    await publish(node, range(number, number + 20), key=f"k{number}")
                    number += 20
                first.cancel()
                seen[1].clear()
                await publish(node, range(number, number + 20), key="k0")
                await publish(node, range(number + 20, number + 40), key="k1")
                while not seen[1] >= set(range(number, number + 40)):
                    await news.wait()
                nursery.cancel_scope.cancel()
        assert seen[0] | seen[1] >= set(range(number, number + 40))


async def test_the_log_is_read_by_hand_and_its_status_shown(kafka: KafkaCluster) -> None:
    kafka.create_topic("shown", partitions=3)
    async with (
        open_network() as network,
        bridge(network, kafka, "shown"),
        bridge(network, kafka, "shown"),
        network.open_node("desk") as node,
    ):
        for number in range(60):
            await node.publish_confirmed(f"t{number % 2}.a", {"n": number}, key=str(number), timeout=30)
        client = BridgeClient(node, "bridge", patience=10)
        status = await read_status(client)
        assert [shard.number for shard in status.shards] == [0, 1, 2]
        assert sum(shard.next for shard in status.shards) == 60
        assert set(status.counters["bridge"]) >= {"received", "stored", "waiting_bytes"}
        found = [event async for event in read_events(client)]
        assert sorted(event["value"]["n"] for event in found) == list(range(60))
        assert {event["headers"]["iris-sender"] for event in found} == {"desk"}
        found = [event async for event in read_events(client, topics=("t1.*",))]
        assert sorted(event["value"]["n"] for event in found) == list(range(1, 60, 2))
        found = [event async for event in read_events(client, last=1)]
        assert len(found) == 3
        assert [event async for event in read_events(client, since=2**41)] == []


async def test_what_needs_the_embedded_log_is_refused_by_its_name(kafka: KafkaCluster, topic: str) -> None:
    async with (
        open_network() as network,
        network.open_parts("bridge") as (bridge_node, parts),
        open_kafka_bridge(bridge_node, topics=[">"], kafka=kafka.bootstrap, kafka_topic=topic, min_insync=1),
        network.open_node("bridge") as node,
    ):
        service = parts.patterns.serving.memberships["bridge"].service
        assert {*service.requests, *service.tunnels} == set(PERMISSIONS)
        with pytest.raises(RemoteError, match="queues need the embedded log: 'iris bridge --data DIR'"):
            async with node.bridge().queue("jobs") as jobs:
                await anext(jobs.receive())
        with pytest.raises(RemoteError, match="leases need the embedded log"):
            async with node.bridge().lease("l"):
                pass
        await publish(node, range(1))
        async with node.bridge().consume("orders.>", group="g") as orders:
            await read(orders, 1)
        client = BridgeClient(node, "bridge", patience=10)
        with trio.fail_after(30):
            await drop_group(client, "g")
        with pytest.raises(ConfigError, match="no group"):
            await drop_group(client, "g")


@asynccontextmanager
async def _clerk(network: Network) -> AsyncIterator[iris.Node]:
    network.credential("clerk", Rights(subscribes=("orders.>",), publishes=("orders.>",)))
    async with network.open_node("clerk") as node:
        yield node


async def test_rights_of_publishers_and_readers_are_those_of_an_embedded_bridge(
    kafka: KafkaCluster, topic: str
) -> None:
    async with (
        open_network() as network,
        bridge(network, kafka, topic) as member,
        network.open_node("desk") as node,
        _clerk(network) as clerk,
    ):
        await node.publish_confirmed("orders.new", 1, timeout=30)
        await node.publish_confirmed("secret.plan", 2, timeout=30)
        with pytest.raises(NotAllowed):
            await clerk.publish_confirmed("secret.plan", 3, timeout=5)
        async with clerk.bridge().consume("orders.>", until="now") as orders:
            assert [event.payload async for batch in orders for event in batch] == [1]
        for topics in (">", "secret.*"):
            with pytest.raises(NotAllowed, match="may not subscribe"):
                async with clerk.bridge().consume(topics, until="now") as events:
                    await anext(events)
        client = BridgeClient(clerk, "bridge", patience=10)
        with pytest.raises(NotAllowed):
            [event async for event in read_events(client)]
        assert [event["value"] async for event in read_events(client, topics=("orders.>",))] == [1]
        # Each cluster has groups of its own: none is moved by another one's reader.
        async with clerk.bridge().consume("orders.>", group="billing") as orders:
            assert await read(orders, 1) == [1]
        async with node.bridge().consume("orders.>", group="billing") as orders:
            assert await read(orders, 1) == [1]
        assert member.statistics().stored == 2


async def test_an_operation_is_refused_to_whom_the_table_does_not_name(kafka: KafkaCluster, topic: str) -> None:
    async with open_network() as network, bridge(network, kafka, topic, readers=["analysts"]):
        network.credential("analysts", Rights(publishes=(), subscribes=()))
        async with network.open_node("stranger") as stranger, network.open_node("analysts") as analysts:
            others = {name for name, row in PERMISSIONS.items() if row.caller in ("bridge", "writer")}
            of_members = {name for name, row in PERMISSIONS.items() if row.caller == "member"}
            assert await refused(stranger) == set(PERMISSIONS) - of_members
            assert await refused(analysts) == others


async def refused(node: iris.Node) -> set[str]:
    """Return the operations that a node may not call, whatever it names."""
    client = BridgeClient(node, "bridge", patience=5)
    found: set[str] = set()
    for operation, kind in OPERATIONS.items():
        with suppress(RemoteError):  # it is unsupported, or there was not enough in the payload
            try:
                if not kind.is_tunnel:
                    await ask_raw(client, operation, {})
                    continue
                async with node.open_tunnel("bridge", operation=operation) as tunnel:
                    await tunnel.send({})
                    raise read_refusal(await tunnel.receive()) or AssertionError
            except NotAllowed:
                found.add(operation)
    return found


async def test_a_bridge_for_certain_readers_refuses_others(kafka: KafkaCluster, topic: str) -> None:
    async with (
        open_network() as network,
        bridge(network, kafka, topic, readers=["desk"]),
        network.open_node("desk") as desk,
        network.open_node("clerk") as clerk,
    ):
        await publish(desk, range(3))
        async with desk.bridge().consume("orders.>", until="now") as orders:
            assert await read(orders, 3) == [0, 1, 2]
        with pytest.raises((NotAllowed, RemoteError), match="may not read from the bridge"):
            async with clerk.bridge().consume("orders.>", until="now") as orders:
                await anext(orders)


async def test_a_cluster_has_so_many_groups(kafka: KafkaCluster, topic: str) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge", config=iris.Config(bridge_groups_per_owner=1)) as bridge_node,
        open_kafka_bridge(
            bridge_node, topics=[">"], kafka=kafka.bootstrap, kafka_topic=topic, name="bridge", min_insync=1
        ),
        network.open_node("reader") as node,
    ):
        await publish(node, range(1))
        async with node.bridge().consume("orders.>", group="one") as orders:
            await read(orders, 1)
        with pytest.raises(RemoteError, match="which may have 1"):
            async with node.bridge().consume("orders.>", group="two") as orders:
                await read(orders, 1)


async def test_clusters_of_another_realm_have_so_many_groups_together(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def groups(_: KafkaLog) -> list[tuple[str, str]]:
        return [("elsewhere/a", "one"), ("elsewhere/b", "two"), ("desk", "three")]

    monkeypatch.setattr(KafkaLog, "groups", groups)
    log = KafkaLog(kafka.bootstrap, topic, "bridge", {})
    config = iris.Config(bridge_groups_per_owner=2)
    for cluster, is_refused in (("elsewhere/c", True), ("desk", False)):
        tunnel: Any = SimpleNamespace(sender=Sender(cluster, NodeId("0" * 32)))
        permit: Any = None
        asked = Consume(group="new", topics=("orders.>",))
        reading = consumers_of_kafka._Reading(log, config, trio.CapacityLimiter(1), asked, tunnel, permit)
        with pytest.raises(QuotaExceeded, match="2 of them of cluster 'elsewhere/>'") if is_refused else nullcontext():
            reading._check_quota("new")
