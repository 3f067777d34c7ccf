"""``iris connect``: copy events between a bridge's log and Kafka, each once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from iris.cli.bridge_log import needing_bridge, patient
from iris.cli.connection import Interruption, NodeOptions, connected, run_until_interrupted
from iris.cli.terminal import note
from iris.kernel.tasks import open_background


@click.group()
def connect() -> None:
    """Copy events between the log of a bridge and another system."""


@connect.command()
@click.option(
    "--to",
    metavar="BOOTSTRAP",
    help="Write the events of the bridge into Kafka, at these brokers: HOST:PORT, with commas between them.",
)
@click.option(
    "--from",
    "source",
    metavar="BOOTSTRAP",
    help="Publish the records of a topic of Kafka, at these brokers, as events that the bridge stores.",
)
@click.option("--kafka-topic", metavar="NAME", help="The topic of Kafka. (With --to: as the bridge is called.)")
@click.option(
    "--topic", "topics", multiple=True, metavar="PATTERN", help="With --to: what to write; may be repeated. (All.)"
)
@click.option("--bridge", default="bridge", show_default=True, metavar="NAME", help="The cluster of the bridge.")
@click.option(
    "--group",
    metavar="NAME",
    help="With --to: tells connectors apart. One of this name writes at a time, and goes on where another one has "
    "ended. (kafka-TOPIC)",
)
@click.option(
    "--config",
    "properties",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Properties of Kafka's client, name=value on each line.",
)
@patient
@connected
def kafka(
    connection: NodeOptions,
    to: str | None,
    source: str | None,
    topics: tuple[str, ...],
    kafka_topic: str | None,
    bridge: str,
    group: str | None,
    properties: Path | None,
    timeout: float,
) -> int:
    """Copy between the log of a bridge and a topic of Kafka, until Ctrl-C: each event once, whatever is killed.

    In Kafka that is so for who reads what is committed (isolation.level=read_committed). The bridge has a log of its
    own. Either --to or --from.
    """
    if (to is None) == (source is None):
        raise click.UsageError("give --to BOOTSTRAP or --from BOOTSTRAP")
    if source is not None and (topics or group is not None):
        raise click.UsageError("--topic and --group are for --to: the records of a topic are copied all, and once")
    if source is not None and kafka_topic is None:
        raise click.UsageError("give the topic of Kafka: --kafka-topic NAME")
    topic = kafka_topic or bridge
    return run_until_interrupted(
        partial(_copy, connection, to, source, topics, topic, bridge, group or f"kafka-{topic}", properties, timeout)
    )


async def _copy(
    connection: NodeOptions,
    to: str | None,
    source: str | None,
    topics: tuple[str, ...],
    topic: str,
    bridge: str,
    group: str,
    properties: Path | None,
    timeout: float,
    interruption: Interruption,
) -> None:
    with needing_bridge("kafka"):
        from iris.spark_bridge.client import BridgeClient
        from iris.spark_bridge.kafka.copy_in import CopyIn
        from iris.spark_bridge.kafka.copy_out import CopyOut
        from iris.spark_bridge.kafka.settings import read_settings
    settings = {} if properties is None else read_settings(properties)
    async with connection.open("connect") as node:
        client = BridgeClient(node, bridge, patience=timeout)
        copying: CopyIn | CopyOut
        if source is not None:
            copying = CopyIn(client, kafka=source, topic=topic, settings=settings)
            note(f"{node.id} copies topic {topic} of Kafka into {bridge}")
        else:
            assert to is not None
            copying = CopyOut(client, kafka=to, topic=topic, settings=settings, group=group, topics=topics)
            note(f"{node.id} copies what {bridge} stores into topic {topic} of Kafka")
        async with open_background() as nursery:
            nursery.start_soon(copying.run)
            await interruption.wait()
    note(f"{copying.copied} events copied")
