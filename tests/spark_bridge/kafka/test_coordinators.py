"""Groups whose coordinator changes between two questions, as when brokers are restarted one after the other."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition

from iris.spark_bridge.kafka.log import KafkaLog
from tests.support.kafka import KafkaCluster, open_kafka

_OFFSETS = "__consumer_offsets"


def leader(kafka: KafkaCluster) -> int:
    """Return the broker that is the coordinator of all groups."""
    return kafka.admin().list_topics(_OFFSETS, timeout=10).topics[_OFFSETS].partitions[0].leader


@pytest.mark.long
@pytest.mark.xdist_group("kafka")
def test_the_place_of_a_group_is_known_when_it_has_another_coordinator() -> None:
    """librdkafka's admin client would end the process, as it looks for the coordinator of a group of its own."""
    with open_kafka(3) as kafka:
        kafka.create_topic("bridge", 2)
        log = KafkaLog(kafka.bootstrap, "bridge", "bridge", {})
        assert log.committed("shop", "g", range(2)) == {}
        assert log.set_committed("shop", "g", {0: 5})
        kafka.wait_in_sync(_OFFSETS)
        preferred = leader(kafka)
        kafka.kill(preferred)
        kafka.start(preferred)
        kafka.wait_in_sync(_OFFSETS)
        assert leader(kafka) != preferred
        assert log.committed("shop", "g", range(2)) == {0: 5}
        admin: Any = kafka.admin()
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(_OFFSETS, 0)]).result(30)
        while leader(kafka) != preferred:
            time.sleep(0.05)
        for _ in range(5):
            assert log.committed("shop", "g", range(2)) == {0: 5}
