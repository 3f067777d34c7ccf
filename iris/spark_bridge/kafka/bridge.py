"""Bridge on Kafka: a member of a cluster that has Kafka keep the events, and serves readers from there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import trio
from msgspec import structs

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.names import check_name
from iris.kernel.numerals import as_whole, shown
from iris.kernel.tasks import open_background, protected_context, run_in_thread
from iris.node.node import Node
from iris.patterns.pubsub.interest import check_pattern
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.kafka.log import KafkaLog, TopicState
from iris.spark_bridge.kafka.member import KafkaMember, check_promises
from iris.spark_bridge.kafka.operations import KafkaOperations
from iris.spark_bridge.server.dispatch import Dispatch
from iris.spark_bridge.server.permissions import Permissions

MIN_INSYNC: Final = 2

_RETRY: Final = 0.5
"""Seconds between two questions to brokers that do not answer."""

_READERS: Final = 16
"""Readers, and consumers, of a cluster that a member serves at a time: Kafka's client has threads for each."""


@protected_context
async def open_kafka_bridge(
    node: Node,
    *,
    topics: Sequence[str],
    kafka: str,
    settings: Mapping[str, str] | None = None,
    name: str = "bridge",
    kafka_topic: str | None = None,
    readers: Collection[str] | None = None,
    min_insync: int = MIN_INSYNC,
    waiting: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[KafkaMember]:
    """Be a member of a bridge that keeps events in a topic of Kafka, until the block ends.

    An event that asks for it is confirmed when the in-sync replicas have it.  Members take the events together, as many
    as there are: each event goes to one of them, and to another one when that is lost, so it may be in Kafka twice.

    Args:
        node: has the right to be a member of ``name``; best opened with ``BRIDGE_CONFIG``.
        topics: patterns of topics, the same for each member; an event that matches several is stored once.
        kafka: addresses of brokers, with commas between them.
        settings: further properties of Kafka's client, such as those of TLS and SASL.
        name: the bridge's cluster, which readers name.
        kafka_topic: topic of Kafka that holds the events of this bridge; None: it is called as the bridge.
        readers: clusters whose nodes may read, and then everything; None: every node that may use the cluster ``name``,
            and what it may subscribe to.
        min_insync: replicas that must have what is confirmed.  Less than 2 is for a topic that is not replicated.
        waiting: called with the reason when entering the block has to wait for brokers.

    Raises:
        ConfigError: a topic or a name cannot be used, the client's settings are wrong, or there is no such topic, or it
            promises less than ``min_insync``, which may also come to light later and end the block.
        NotAllowed: the node's certificate does not permit to subscribe to a topic.
        KafkaLost: later, and it ends the block: the client cannot go on.

    Cancelling the block is leaving it.  A member that is killed loses nothing that it has confirmed.
    """
    check_name(name, "cluster")
    if not topics:
        raise ConfigError("a bridge stores the events of topics: give at least one topic pattern")
    for topic in topics:
        check_pattern(topic)
    least = as_whole(min_insync)
    if least is None or least < 1:
        raise ConfigError(f"min_insync is {shown(min_insync)}: use a whole number, 1 or more")
    log = KafkaLog(kafka, kafka_topic or name, name, settings or {})
    state = await _wait_described(log, waiting)
    check_promises(log, state, least)
    config = node._parts.mesh.config
    pubsub = node._parts.patterns.pubsub
    served = KafkaMember(log, state, min_insync=least)
    permissions = Permissions(bridge=name, readers=readers, node=node)
    operations = KafkaOperations(served, name, permissions, config)
    dispatch = Dispatch(operations, permissions, _with_fewer_readers(config))
    patterns = tuple(dict.fromkeys(topics))
    async with AsyncExitStack() as stack:
        # The signed record before the subscriptions: publishers know for whom to wait from the first event on, and that
        # the group of this name belongs to this cluster.  All members sign the same: it stands for all of them.
        stack.enter_context(pubsub.durable.claim(name, patterns, group=name))
        subscribe = partial(pubsub.subscribe, durable=True, claimed=name, overflow="wait", group=name)
        subscriptions = [await stack.enter_async_context(subscribe(topic)) for topic in patterns]
        nursery = await stack.enter_async_context(open_background())
        nursery.start_soon(served.run, subscriptions)
        await stack.enter_async_context(node.join(name, dispatch.service(name)))
        node._reports["bridge"] = served.report
        try:
            yield served
        finally:
            del node._reports["bridge"]
            operations.close()


async def _wait_described(log: KafkaLog, waiting: Callable[[str], None]) -> TopicState:
    """Return what the topic is, as soon as a broker tells."""
    told = False
    while True:
        try:
            return await run_in_thread(log.describe)
        except BridgeUnreachable as error:
            if not told:
                waiting(f"{error}; waiting for it")
                told = True
        await trio.sleep(_RETRY)


def _with_fewer_readers(config: Config) -> Config:
    return structs.replace(
        config,
        bridge_reads_per_owner=min(_READERS, config.bridge_reads_per_owner),
        bridge_workers_per_owner=min(_READERS, config.bridge_workers_per_owner),
    )
