"""The brokers of these tests: real ones, which keep what they had when they are killed."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.kafka import KafkaCluster


def test_a_broker_that_was_killed_comes_back_with_what_it_had(kafka: KafkaCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "acks": "all"})
    producer.produce(topic, b"before")
    assert producer.flush(30) == 0
    kafka.kill(1)
    assert kafka.running == ()
    kafka.start(1)
    producer.produce(topic, b"after")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in consumer.consume(2, timeout=30)]
    consumer.close()
    assert found == [b"before", b"after"]
