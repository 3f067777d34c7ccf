"""Kafka in the demo: a topic of its own at brokers that somebody runs, gone when the demo is over."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, final

import trio

from iris.kernel.errors import ConfigError

_PARTITIONS: Final = 3
_ANSWER: Final = 30.0
"""Seconds that brokers have for an answer."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoTopic:
    """Topic that holds the events of one run."""

    bootstrap: str
    name: str
    min_insync: int
    """Replicas that have an event before it is confirmed: two where there are as many brokers."""

    @property
    def options(self) -> Sequence[str]:
        """What ``iris bridge`` is told of it."""
        return "--kafka", self.bootstrap, "--kafka-topic", self.name, "--min-insync", str(self.min_insync)


@asynccontextmanager
async def open_topic(bootstrap: str) -> AsyncGenerator[DemoTopic]:
    """Make the topic for a block.

    Raises:
        ConfigError: Kafka's client is not installed, or no broker makes it.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ConfigError("the demo with Kafka needs confluent-kafka: pip install 'iris-mesh[demo]'")
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    name = f"iris-demo-{os.urandom(4).hex()}"

    def make() -> tuple[Any, DemoTopic]:
        try:
            admin: Any = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            replicas = min(3, len(admin.list_topics(timeout=_ANSWER).brokers))
            topic = DemoTopic(bootstrap=bootstrap, name=name, min_insync=min(2, replicas))
            config = {"min.insync.replicas": str(topic.min_insync)}
            made = admin.create_topics([NewTopic(name, _PARTITIONS, replicas, config=config)])
            made[name].result(_ANSWER)
        except KafkaException as error:
            raise ConfigError(f"the brokers at {bootstrap} make no topic: {error.args[0].str()}") from None
        return admin, topic

    admin, topic = await trio.to_thread.run_sync(make)
    try:
        yield topic
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(_delete, admin, name, KafkaException))


def _delete(admin: Any, name: str, gone: type[Exception]) -> None:
    try:
        admin.delete_topics([name])[name].result(_ANSWER)
    except gone as error:
        raise ConfigError(f"Kafka's topic {name} is left behind: {error}") from None
