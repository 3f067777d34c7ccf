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
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="What to write; may be repeated. (All.)")
@click.option("--kafka-topic", metavar="NAME", help="The topic of Kafka. (As the bridge is called.)")
@click.option("--bridge", default="bridge", show_default=True, metavar="NAME", help="The cluster of the bridge.")
@click.option(
    "--group",
    metavar="NAME",
    help="Tells connectors apart: one of this name writes at a time, and goes on where another one has ended. "
    "(kafka-TOPIC)",
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
    topics: tuple[str, ...],
    kafka_topic: str | None,
    bridge: str,
    group: str | None,
    properties: Path | None,
    timeout: float,
) -> int:
    """Copy the events of a bridge into a topic of Kafka, until Ctrl-C.

    Each is there once for who reads what is committed (isolation.level=read_committed), whatever was killed meanwhile.
    The bridge has a log of its own.
    """
    if to is None:
        raise click.UsageError("give --to BOOTSTRAP")
    topic = kafka_topic or bridge
    return run_until_interrupted(
        partial(_copy_out, connection, to, topics, topic, bridge, group or f"kafka-{topic}", properties, timeout)
    )


async def _copy_out(
    connection: NodeOptions,
    bootstrap: str,
    topics: tuple[str, ...],
    kafka_topic: str,
    bridge: str,
    group: str,
    properties: Path | None,
    timeout: float,
    interruption: Interruption,
) -> None:
    with needing_bridge("kafka"):
        from iris.spark_bridge.client import BridgeClient
        from iris.spark_bridge.kafka.copy_out import CopyOut
        from iris.spark_bridge.kafka.settings import read_settings
    settings = {} if properties is None else read_settings(properties)
    async with connection.open("connect") as node:
        client = BridgeClient(node, bridge, patience=timeout)
        copying = CopyOut(client, kafka=bootstrap, topic=kafka_topic, settings=settings, group=group, topics=topics)
        note(f"{node.id} copies what {bridge} stores into topic {kafka_topic} of Kafka")
        async with open_background() as nursery:
            nursery.start_soon(copying.run)
            await interruption.wait()
    note(f"{copying.written} events written")
