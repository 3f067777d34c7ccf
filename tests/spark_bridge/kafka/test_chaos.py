"""Three brokers and three members, which are killed again and again."""

from __future__ import annotations

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.kafka_chaos import PARTITIONS, TOPIC, run, run_on
from tests.support.spark_packages import kafka_source


def test_events_of_a_member_that_is_killed_go_to_another_one(kafka: KafkaCluster) -> None:
    kafka.create_topic(TOPIC, PARTITIONS)
    outcome = run_on(kafka, 3000, 1000, every=1.0)
    assert outcome.members_killed >= 1
    assert (outcome.lost, outcome.disordered, outcome.wrong_sums) == (0, 0, 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("kafka")
def test_no_confirmed_event_is_lost_and_each_key_is_in_order_while_brokers_and_members_are_killed() -> None:
    outcome = run(1_000_000, spark=bool(kafka_source()))
    assert outcome.brokers_killed >= 5
    assert outcome.members_killed >= 5
    assert (outcome.lost, outcome.disordered, outcome.wrong_sums) == (0, 0, 0)
    assert not outcome.spark_wrong_sums
