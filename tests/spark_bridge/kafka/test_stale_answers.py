"""``iris connect kafka`` where brokers, or Kafka's client, answer by what is so no more, or not yet."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from iris.kernel.tasks import open_background
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.kafka import log as kafka_log
from iris.spark_bridge.kafka.log import KafkaLog, Span
from iris.testing import open_network
from tests.spark_bridge.kafka.test_copy_in import copying as copying_in
from tests.spark_bridge.kafka.test_copy_in import produce, wait_until
from tests.spark_bridge.kafka.test_copy_out import committed, embedded, running
from tests.spark_bridge.kafka.test_copy_out import copying as copying_out
from tests.support.kafka import KafkaCluster


class Answers(AdminClient):
    """A client whose next answers are not what is so."""

    without_uuid = 0
    """Answers without a UUID, as the client gives them before it knows what its broker speaks."""
    unknown = 0
    """Answers of a broker that has not learned of the topic."""

    def describe_topics(self, *args: Any, **options: Any) -> Any:
        """Describe one topic."""
        (name,) = args[0].topic_names
        client: Any = super()  # which has the types of what is below it
        if Answers.unknown:
            Answers.unknown -= 1
            return {name: client.describe_topics(TopicCollection(["nowhere"]), **options)["nowhere"]}
        described = client.describe_topics(*args, **options)
        if Answers.without_uuid:
            Answers.without_uuid -= 1
            answer: Future[object] = Future()
            partitions = described[name].result().partitions
            answer.set_result(SimpleNamespace(topic_id=Uuid(0, 0), partitions=partitions))
            return {name: answer}
        return described


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> type[Answers]:
    """What Kafka's client is in the test."""
    monkeypatch.setattr(kafka_log, "AdminClient", Answers)
    monkeypatch.setattr(Answers, "without_uuid", 0)
    monkeypatch.setattr(Answers, "unknown", 0)
    return Answers


async def test_a_topic_of_which_no_uuid_is_told_is_no_other_topic(
    kafka: KafkaCluster, topic: str, tmp_path: Path, answers: type[Answers]
) -> None:
    produce(kafka, topic, range(10))
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        async with open_background() as nursery:
            nursery.start_soon(copying_in(desk, kafka, topic).run)
            await wait_until(desk, lambda found: len(found) >= 10)
        produce(kafka, topic, range(10, 20))
        answers.without_uuid = 3
        async with open_background() as nursery:
            nursery.start_soon(copying_in(desk, kafka, topic).run)
            found = await wait_until(desk, lambda found: len(found) >= 20)
    assert found == [str(number) for number in range(20)]


def test_brokers_that_tell_no_uuid_are_named(
    kafka: KafkaCluster, topic: str, answers: type[Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "_ANSWER", 3.0)
    answers.without_uuid = 1_000_000
    with pytest.raises(BridgeUnreachable, match=r"does not say which topic .* 2\.8 or newer"):
        KafkaLog(kafka.bootstrap, topic, "bridge", {}).identity()


def test_a_topic_that_was_made_is_waited_for_until_brokers_know_it(
    kafka: KafkaCluster, topic: str, answers: type[Answers]
) -> None:
    answers.unknown = 3
    assert KafkaLog(kafka.bootstrap, f"{topic}-made", "bridge", {}).make(1, {}).partitions == 1


async def test_a_place_behind_the_end_that_a_former_leader_tells_counts(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        for number in range(10):
            await desk.publish_confirmed("a", b"%d" % number, timeout=30)
        async with running(copying_out(desk, kafka, topic), 10):
            pass
        monkeypatch.setattr(kafka_log, "_LATEST", kafka_log._EARLIEST)
        await desk.publish_confirmed("a", b"10", timeout=30)
        async with running(copying_out(desk, kafka, topic), 1):
            pass
    assert [record.value() for record in committed(kafka, topic)] == [b"%d" % number for number in range(11)]


async def test_a_topic_that_is_made_again_while_a_connector_begins_is_another_topic(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(kafka, topic, range(10))
    ask = KafkaLog.spans

    def spans(log: KafkaLog, partitions: Collection[int]) -> dict[int, Span]:
        monkeypatch.setattr(KafkaLog, "spans", ask)
        kafka.delete_topic(topic)
        kafka.create_topic(topic)
        produce(kafka, topic, range(10, 15))
        return ask(log, partitions)

    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        async with open_background() as nursery:
            nursery.start_soon(copying_in(desk, kafka, topic).run)
            await wait_until(desk, lambda found: len(found) >= 10)
        monkeypatch.setattr(KafkaLog, "spans", spans)
        async with open_background() as nursery:
            nursery.start_soon(copying_in(desk, kafka, topic).run)
            found = await wait_until(desk, lambda found: len(found) >= 15)
    assert found == [str(number) for number in range(15)]


async def test_an_end_that_a_former_leader_tells_is_no_loss(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(kafka, topic, range(10))
    ask = KafkaLog.spans

    def spans(log: KafkaLog, partitions: Collection[int]) -> dict[int, Span]:
        monkeypatch.setattr(KafkaLog, "spans", ask)
        return {number: Span(earliest=0, next=0) for number in partitions}

    async with open_network() as network, embedded(network, tmp_path / "log"), network.open_node("desk") as desk:
        async with open_background() as nursery:
            nursery.start_soon(copying_in(desk, kafka, topic).run)
            await wait_until(desk, lambda found: len(found) >= 10)
        monkeypatch.setattr(KafkaLog, "spans", spans)
        produce(kafka, topic, range(10, 15))
        async with open_background() as nursery:
            nursery.start_soon(copying_in(desk, kafka, topic).run)
            found = await wait_until(desk, lambda found: len(found) >= 15)
    assert found == [str(number) for number in range(15)]
