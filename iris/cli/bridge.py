"""``iris bridge``: store events durably, for Spark to read; its sub-verbs look at what is stored."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource
from msgspec import structs

from iris.cli.bridge_log import (
    drop,
    forget,
    needing_bridge,
    promote,
    replay,
    status,
    tail,
    transfer,
    trim,
    verify,
)
from iris.cli.connection import Interruption, NodeOptions, connected, metrics_option, run_until_interrupted
from iris.cli.terminal import POSITIVE, Finite, Whole, note
from iris.kernel.config import Config
from iris.patterns.pubsub.interest import MAX_SHARDS

DAY = 86_400.0
HOUR = 3600.0
MINUTE = 60.0
GROUP_DAYS = 30.0
"""``GROUP_IDLE`` of ``iris.spark_bridge.log``, which is not imported for the help of the command."""
_PRIMARY = (
    *(
        "topics",
        "clusters",
        "name",
        "member",
        "shards",
        "of",
        "readers",
        "keep_hours",
        "keep_mib",
        "keep_unread",
        "keep_groups",
    ),
    "min_copies",
    "tier",
    "tier_minutes",
)
"""Options that a copy takes over from its primary."""
_EMBEDDED = tuple(option for option in _PRIMARY if option not in ("topics", "name", "readers"))
"""Options of the embedded log alone."""
MIB = 1024 * 1024


@click.group(invoke_without_command=True)
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="What to store; may be repeated.")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    metavar="NAME",
    help="Join this cluster and store its broadcasts and tunnels; may be repeated.",
)
@click.option(
    "--data",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where to store it; the directory belongs to this bridge alone.",
)
@click.option("--name", default="bridge", show_default=True, metavar="NAME", help="The cluster that readers name.")
@click.option("--member", metavar="NAME", help="Tells the members of one bridge apart.")
@click.option(
    "--shard",
    "shards",
    multiple=True,
    type=Whole(0),
    default=(0,),
    show_default=True,
    help="Number of a shard of this member; may be repeated.",
)
@click.option(
    "--of",
    type=Whole(1, MAX_SHARDS),
    metavar="N",
    help="Divide the events with other members: the bridge has shards 0 to N-1, each event belongs to one.",
)
@click.option(
    "--reader",
    "readers",
    multiple=True,
    metavar="CLUSTER",
    help="May read all that is stored, and others nothing; may be repeated. (Everybody what it may subscribe to.)",
)
@click.option("--keep-hours", type=POSITIVE, metavar="N", help="Let older events go.")
@click.option("--keep-mib", type=POSITIVE, metavar="N", help="Let the oldest go, but keep so much.")
@click.option("--keep-unread", is_flag=True, help="But never what a group has still to read.")
@click.option(
    "--keep-groups",
    type=Finite(1),
    default=GROUP_DAYS,
    show_default=True,
    metavar="DAYS",
    help="Forget a group of readers that nobody has used for so long.",
)
@click.option(
    "--tier",
    metavar="URL",
    help="Have what is sealed in a directory or object storage, too, as Parquet: s3://BUCKET/PREFIX. --keep-hours and "
    "--keep-mib are for the disk then.",
)
@click.option(
    "--tier-minutes",
    type=POSITIVE,
    metavar="N",
    help="Seal also what is not full after so long, so that it goes to the tier (60).",
)
@click.option(
    "--staged-mib",
    type=POSITIVE,
    metavar="N",
    help="What each cluster may have written by Spark and not committed (4096); all together four times as much.",
)
@click.option(
    "--min-copies",
    type=Whole(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Confirm an event, and let readers have it, when so many copies have it on their disks, too.",
)
@click.option(
    "--follow",
    "followed",
    metavar="NAME/SHARD",
    help="Be a copy of the log that has this shard, until it is promoted; with --data alone.",
)
@click.option("--copy", "copy", metavar="NAME", help="Tells the copies of one log apart (copy).")
@click.option(
    "--election",
    metavar="URL",
    help="Beta: let etcd://HOST:PORT,... or postgresql://... decide when a copy takes over; the same at all of them.",
)
@click.option(
    "--kafka",
    metavar="BOOTSTRAP",
    help="Beta: have these brokers of Kafka keep the events, and not a directory: HOST:PORT, with commas between them.",
)
@click.option(
    "--config",
    "properties",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="With --kafka: properties of its client, name=value on each line.",
)
@click.option(
    "--kafka-topic",
    metavar="NAME",
    help="With --kafka: the topic there that has the events. (As the bridge is called.)",
)
@click.option(
    "--min-insync",
    type=Whole(1),
    metavar="N",
    help="With --kafka: refuse a topic that confirms what fewer replicas have (2).",
)
@metrics_option
@connected
@click.pass_context
def bridge(
    context: click.Context,
    /,
    connection: NodeOptions,
    topics: tuple[str, ...],
    clusters: tuple[str, ...],
    directory: Path | None,
    name: str,
    member: str | None,
    shards: tuple[int, ...],
    of: int | None,
    readers: tuple[str, ...],
    keep_hours: float | None,
    keep_mib: float | None,
    keep_unread: bool,
    keep_groups: float,
    tier: str | None,
    tier_minutes: float | None,
    staged_mib: float | None,
    min_copies: int,
    followed: str | None,
    copy: str | None,
    election: str | None,
    kafka: str | None,
    properties: Path | None,
    kafka_topic: str | None,
    min_insync: int | None,
) -> int:
    """Be a member of a bridge: store the events of every topic that matches a PATTERN, until Ctrl-C.

    While the bridge is stopped, confirmed events wait for it; "iris bridge forget" ends that. Spark reads the events
    with spark.readStream.format("iris"). With --kafka brokers of Kafka keep the events, and members have no disk.
    """
    if context.invoked_subcommand is not None:
        return 0
    if followed is None and not topics and not clusters:
        raise click.UsageError("a bridge stores the events of topics: give --topic")
    if kafka is not None:
        if given := _given(context, (*_EMBEDDED, "directory", "followed", "copy", "election", "staged_mib")):
            raise click.UsageError(f"this needs the embedded log, with --data and without --kafka: {', '.join(given)}")
        within = KafkaOptions(kafka, properties, kafka_topic, min_insync)
        return run_until_interrupted(partial(_produce, connection, topics, name, readers, within))
    if given := _given(context, ("properties", "kafka_topic", "min_insync")):
        raise click.UsageError(f"{given[0]} is for a bridge on Kafka: give --kafka, too")
    if directory is None:
        raise click.UsageError("a bridge keeps its log in a directory: give --data, or --kafka")
    if followed is not None and (own := _given(context, _PRIMARY)):
        raise click.UsageError(f"a copy does as its primary does: leave out {', '.join(own)}")
    if followed is None and copy is not None:
        raise click.UsageError("--copy names a copy: give --follow NAME/SHARD, too")
    if tier is None and tier_minutes is not None:
        raise click.UsageError("--tier-minutes says how soon events go to a tier: give --tier, too")
    if election is not None and followed is None and not min_copies:
        raise click.UsageError("a copy that takes over needs all that was confirmed: give --min-copies 1, too")
    if followed is not None:
        return run_until_interrupted(partial(_follow, connection, followed, copy, directory, staged_mib, election))
    with needing_bridge():
        from iris.spark_bridge.election import open_election
        from iris.spark_bridge.log import Retention
        from iris.spark_bridge.server.bridge import BRIDGE_CONFIG, open_bridge
        from iris.spark_bridge.tier import Tier
    retention = Retention(
        max_age=None if keep_hours is None else keep_hours * HOUR,
        max_bytes=None if keep_mib is None else int(keep_mib * MIB),
        keep_unread=keep_unread,
        group_idle=keep_groups * DAY,
    )

    sealing = {} if tier_minutes is None else {"seal_after": tier_minutes * MINUTE}
    destination = None if tier is None else Tier(url=tier, **sealing)

    async def store(interruption: Interruption) -> None:
        electing = (
            contextlib.nullcontext() if election is None else open_election(election, bridge=name, shard=min(shards))
        )
        async with (
            electing as elected,
            connection.open(name, _with_staged(BRIDGE_CONFIG, staged_mib), member=True) as node,
            open_bridge(
                node,
                topics=topics,
                directory=directory,
                clusters=clusters,
                name=name,
                shards=shards,
                of=of,
                member=member,
                readers=readers or None,
                retention=retention,
                min_copies=min_copies,
                tier=destination,
                election=elected,
                waiting=note,
            ) as opened,
        ):
            note(f"{node.id} serves {name} and stores {', '.join((*topics, *clusters))} in {directory}")
            await interruption.wait()
        counters = opened.statistics()
        note(f"{counters.stored} events stored, {counters.repeats} repeats left out, {counters.missed} missed")

    return run_until_interrupted(store)


async def _follow(
    connection: NodeOptions,
    followed: str,
    copy: str | None,
    directory: Path,
    staged_mib: float | None,
    election: str | None,
    interruption: Interruption,
) -> None:
    """Be a copy, and when it is promoted the member whose log it has."""
    with needing_bridge():
        from iris.spark_bridge.copies import DEFAULT_COPY, split_followed
        from iris.spark_bridge.election import open_election
        from iris.spark_bridge.server.bridge import BRIDGE_CONFIG
        from iris.spark_bridge.server.successor import follow, reopen
    name, shard = split_followed(followed)
    called = copy or DEFAULT_COPY
    electing = contextlib.nullcontext() if election is None else open_election(election, bridge=name, shard=shard)
    async with electing as elected, connection.open(name, _with_staged(BRIDGE_CONFIG, staged_mib)) as node:
        follows = partial(note, f"{node.id} is the copy {called} of {followed}, in {directory}")
        settings = await follow(node, name, shard, directory, called, follows, elected)
        async with reopen(node, name, directory, settings, waiting=note, election=elected):
            stored = ", ".join((*settings.topics, *settings.clusters))
            note(f"{node.id} serves {name} and stores {stored} in {directory}")
            await interruption.wait()


def _with_staged(config: Config, staged_mib: float | None) -> Config:
    if staged_mib is None:
        return config
    staged = math.ceil(staged_mib * MIB)
    return structs.replace(config, bridge_staged_bytes_per_owner=staged, bridge_staged_bytes=4 * staged)


def _given(context: click.Context, names: Collection[str]) -> list[str]:
    """Return which of these options were given on the command line."""
    given = (name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    return [next(option.opts[0] for option in context.command.params if option.name == name) for name in given]


class KafkaOptions(NamedTuple):
    """Options of a bridge on Kafka."""

    bootstrap: str
    properties: Path | None
    topic: str | None
    min_insync: int | None


async def _produce(
    connection: NodeOptions,
    topics: tuple[str, ...],
    name: str,
    readers: tuple[str, ...],
    options: KafkaOptions,
    interruption: Interruption,
) -> None:
    """Be a member of a bridge on Kafka."""
    with needing_bridge("kafka"):
        from iris.spark_bridge.kafka.bridge import MIN_INSYNC, open_kafka_bridge
        from iris.spark_bridge.kafka.settings import read_settings
        from iris.spark_bridge.server.bridge import BRIDGE_CONFIG
    settings = {} if options.properties is None else read_settings(options.properties)
    async with (
        connection.open(name, BRIDGE_CONFIG, member=True) as node,
        open_kafka_bridge(
            node,
            topics=topics,
            kafka=options.bootstrap,
            settings=settings,
            name=name,
            kafka_topic=options.topic,
            readers=readers or None,
            min_insync=MIN_INSYNC if options.min_insync is None else options.min_insync,
            waiting=note,
        ) as opened,
    ):
        note(f"{node.id} serves {name} and stores {', '.join(topics)} in topic {opened.log.topic} of Kafka")
        await interruption.wait()
    counters = opened.statistics()
    note(f"{counters.stored} events stored, {counters.refused} refused, {counters.waiting} not confirmed")


for _verb in (status, tail, replay, verify, trim, drop, transfer, forget, promote):
    bridge.add_command(_verb)
