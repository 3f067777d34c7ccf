"""Fixtures of the tests with a real Kafka: one broker for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.kafka import KafkaCluster, open_kafka

_NUMBERS: Final = itertools.count()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """A broker."""
    with open_kafka() as cluster:
        yield cluster


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    """A topic of one partition, of this test alone."""
    name = f"bridge-{next(_NUMBERS)}"
    kafka.create_topic(name)
    return name
