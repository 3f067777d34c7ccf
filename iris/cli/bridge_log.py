"""Verbs that look at a bridge and its log, or change what a bridge remembers: ``iris bridge status`` and so on."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click
import trio

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.starting import is_command
from iris.cli.terminal import POSITIVE, Whole, note, open_lines, output_option, write_line, write_object
from iris.kernel.loading import loading
from iris.kernel.shapes import is_map

if TYPE_CHECKING:
    from iris.patterns.pubsub.interest import DurableSubscriber
    from iris.spark_bridge.admin import BridgeStatus
    from iris.spark_bridge.client import BridgeClient, Position

    _AnyType = click.ParamType[object]
else:
    _AnyType = click.ParamType  # before click 8.4 it takes no type

Verb = TypeVar("Verb", bound=Callable[..., object])

MIB = 1024 * 1024
GAPS_SHOWN = 20
SECOND = 1.0
"""Seconds between the two looks from which ``status`` computes events per second."""

named = click.option(
    "--name", default="bridge", show_default=True, metavar="NAME", help="The bridge's cluster, as it was started."
)
patient = click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds to look for it.")
topics = click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="Only these; may be repeated.")


class LogPosition(_AnyType):
    """Position where reading begins or ends: a word, or offsets by shard in JSON."""

    name = "place"

    def __init__(self, word: str) -> None:
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        """Return what ``read_events`` takes."""
        if value == self._word:
            return cast("Position", value)
        with contextlib.suppress(ValueError):
            offsets = json.loads(value)
            if is_map(offsets):
                found = {shard: at for shard, at in offsets.items() if type(at) is int and at >= 0}
                if len(found) == len(offsets):
                    return found
        raise click.BadParameter(
            f"{value!r} is neither {self._word} nor offsets by shard such as '{{\"0\": 120}}'", ctx=ctx, param=param
        )


@contextlib.contextmanager
def needing_bridge(extra: str = "bridge") -> Iterator[None]:
    """Say how to install what a bridge needs, if it is not there."""
    try:
        with loading():
            if is_command():
                from iris.spark_bridge.events.arrow import without_pandas

                without_pandas()
            yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"a bridge needs {error.name}: pip install 'iris-mesh[{extra}]'") from None


@contextlib.asynccontextmanager
async def open_client(
    connection: NodeOptions, name: str, timeout: float, *, speaking_for: str | None = None
) -> AsyncIterator[BridgeClient]:
    """Ask a bridge, from a node that is open in the block."""
    with needing_bridge():
        from iris.spark_bridge.client import BridgeClient
    async with connection.open(speaking_for) as node:
        yield BridgeClient(node, name, patience=timeout)


@click.command()
@named
@patient
@output_option
@connected
def status(connection: NodeOptions, name: str, timeout: float, output: str) -> int:
    """Tell what a bridge holds, how fast it grows, and how far behind its groups of readers are."""

    async def ask() -> None:
        with needing_bridge():
            from iris.spark_bridge.admin import read_status
        async with open_client(connection, name, timeout) as client:
            before = await read_status(client)
            began = trio.current_time()
            await trio.sleep(SECOND)
            found = await read_status(client)
            rate = (_events(found) - _events(before)) / (trio.current_time() - began)
            away = [one for one in client.node.durable_subscribers() if not one.present]
        if output == "json":
            write_object(_as_object(found, rate, away))
        else:
            _show(found, rate, away)

    return run_until_done(ask)


def _events(status: BridgeStatus) -> int:
    return sum(shard.next for shard in status.shards)


def _as_object(status: BridgeStatus, rate: float, away: Sequence[DurableSubscriber]) -> dict[str, object]:
    return {
        "shards": [
            {
                "shard": shard.id,
                "member": shard.address,
                "earliest": shard.earliest,
                "next": shard.next,
                "bytes": shard.size,
                "newest": _time(shard.timestamp),
                "term": shard.term,
            }
            for shard in status.shards
        ],
        "groups": [
            {
                "group": group.group,
                "owner": group.owner,
                "lag": group.lag,
                "offsets": dict(group.offsets),
                "heard": _time(group.timestamp),
            }
            for group in status.groups
        ],
        "copies": [
            {"member": address, "copy": copy.name, "state": copy.state, "behind": copy.behind}
            for address, copies in status.copies.items()
            for copy in copies
        ],
        "tier": [dataclasses.asdict(tier) for tier in status.tiers],
        "members": {address: dict(counters) for address, counters in status.counters.items()},
        "gaps": [
            {
                "shard": shard,
                "offset": gap.offset,
                "upto": gap.upto,
                "topic": gap.topic,
                "events": gap.count,
                "cluster": gap.cluster,
                "publisher": gap.publisher,
                "noticed": _time(gap.timestamp),
            }
            for shard, gap in status.gaps
        ],
        "damage": [
            {"shard": shard, "offset": damage.offset, "end": damage.end, "reason": damage.reason}
            for shard, damage in status.damage
        ],
        "away": [{"name": one.name, "cluster": one.cluster, "topics": list(one.patterns)} for one in away],
        "events_per_second": round(rate, 1),
    }


def _show(status: BridgeStatus, rate: float, away: Sequence[DurableSubscriber]) -> None:
    for shard in status.shards:
        write_line(
            f"shard {shard.id} at {shard.address}: events {shard.earliest:,} to {shard.next:,}, "
            f"{shard.size / MIB:,.1f} MiB, newest {_time(shard.timestamp) or 'none'}"
        )
    for group in status.groups:
        of = f" of {group.owner}" if group.owner else ""
        write_line(f"group {group.group}{of}: {group.lag:,} events behind, last heard {_time(group.timestamp)}")
    for address, copies in status.copies.items():
        for copy in copies:
            behind = "" if copy.behind is None else f", {copy.behind:,} events behind"
            write_line(f"copy {copy.name} of {address}: {copy.state}{behind}")
    for tier in status.tiers:
        write_line(
            f"tier {tier.url} of shard {tier.shard}: events to {tier.next:,}, {tier.objects:,} objects of "
            f"{tier.bytes / MIB:,.1f} MiB; {tier.behind:,} events of {tier.behind_bytes / MIB:,.1f} MiB behind"
            f"{f': {tier.problem}' if tier.problem else ''}"
        )
    for address, counters in status.counters.items():
        text = ", ".join(f"{count:,} {counter}" for counter, count in counters.items())
        write_line(f"member {address} since it was started: {text}")
    for name, gap in status.gaps[-GAPS_SHOWN:]:
        write_line(f"gap: {gap.describe(name)}")
    if len(status.gaps) > GAPS_SHOWN:
        write_line(f"and {len(status.gaps) - GAPS_SHOWN:,} older gaps: --json lists all")
    for name, damage in status.damage[-GAPS_SHOWN:]:
        write_line(f"damage: {damage.describe(name)}")
    if len(status.damage) > GAPS_SHOWN:
        write_line(f"and {len(status.damage) - GAPS_SHOWN:,} more stretches: 'iris bridge verify' lists all")
    for one in away:
        write_line(
            f"durable subscriber {one.name} of cluster {one.cluster} is away: confirmed events on "
            f"{', '.join(one.patterns)} wait for it"
        )
    write_line(f"{rate:,.0f} events/s")


def _time(microseconds: int) -> str | None:
    if not microseconds:
        return None
    return datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.UTC).isoformat(timespec="milliseconds")


@click.command()
@named
@patient
@topics
@click.option("--last", type=Whole(0), default=10, show_default=True, help="Begin so many events ago, by shard.")
@click.option("--follow", is_flag=True, help="Go on with what arrives, until Ctrl-C.")
@connected
def tail(connection: NodeOptions, name: str, timeout: float, topics: tuple[str, ...], last: int, follow: bool) -> int:
    """Print the newest events of a bridge, a JSON object on each line."""
    end = None if follow else "latest"
    return _print(connection, name, timeout, endless=follow, topics=topics, last=last, end=end)


@click.command()
@named
@patient
@topics
@click.option("--start", type=LogPosition("earliest"), default="earliest", help="earliest, or offsets: '{\"0\": 120}'.")
@click.option("--since", type=click.DateTime(), help="Begin with the first event that is not older, in UTC.")
@click.option("--end", type=LogPosition("latest"), default="latest", help="latest, or offsets behind the last event.")
@connected
def replay(
    connection: NodeOptions,
    name: str,
    timeout: float,
    topics: tuple[str, ...],
    start: Position,
    since: datetime.datetime | None,
    end: Position,
) -> int:
    """Print the events of a bridge from an offset or a time on, a JSON object on each line, shard by shard."""
    if since is not None and start != "earliest":
        raise click.UsageError("--start and --since contradict each other: give one of them")
    at = None if since is None else int(since.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    return _print(connection, name, timeout, topics=topics, start=start, since=at, end=end)


def _print(connection: NodeOptions, name: str, timeout: float, *, endless: bool = False, **chosen: Any) -> int:
    async def read() -> None:
        with needing_bridge():
            from iris.spark_bridge.admin import read_events
        async with (
            open_client(connection, name, timeout) as client,
            open_lines() as lines,
            aclosing(read_events(client, **chosen)) as events,
        ):
            async for event in events:
                await lines.write_object(event)

    return run_until_done(read, endless=endless)


@click.command()
@click.option(
    "--data",
    "directory",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Of the log; no bridge may be running on it.",
)
@click.option("--tier", metavar="URL", help="Of the log; what is there alone is not read otherwise.")
@named
def verify(directory: Path, tier: str | None, name: str) -> int:
    """Read a log in full and compare every checksum; the exit status is 1 if anything is damaged."""
    with needing_bridge():
        from iris.spark_bridge.admin import verify_log
    read = damaged = 0
    for finding in verify_log(directory, tier=tier, bridge=name):
        read += 1
        if finding.damage is not None:
            damaged += 1
            write_line(f"shard {finding.shard}, offset {finding.offset}: {finding.damage}")
    note(f"{read} stretches read, {damaged} of them damaged")
    return int(damaged > 0)


@click.command()
@named
@patient
@click.option("--shard", required=True, type=Whole(0), help="Its number.")
@click.option("--before", required=True, type=Whole(0), metavar="OFFSET", help="The first event to keep.")
@connected
def trim(connection: NodeOptions, name: str, timeout: float, shard: int, before: int) -> int:
    """Remove the events of a shard below an offset.  The node must speak for the bridge's own cluster."""

    async def remove() -> None:
        with needing_bridge():
            from iris.spark_bridge.admin import trim as trim_log
        async with open_client(connection, name, timeout, speaking_for=name) as client:
            note(f"{await trim_log(client, shard, before)} events are gone from shard {shard}")

    return run_until_done(remove)


def _group_or_query(verb: Verb) -> Verb:
    """Give ``verb`` the options that name one of the two."""
    verb = click.option("--query", metavar="NAME", help="Spark's id of a query, or the name that it was given.")(verb)
    return click.option("--group", metavar="NAME", help="As status names it.")(verb)


def _named(group: str | None, query: str | None) -> tuple[Literal["group", "query"], str]:
    if group is not None and query is None:
        return "group", group
    if query is not None and group is None:
        return "query", query
    raise click.UsageError("say which: --group NAME or --query NAME")


@click.command()
@named
@patient
@_group_or_query
@click.option("--shard", type=Whole(0), help="Number of a shard whose log is gone for good.")
@click.option("--copy", metavar="NAME/SHARD", help="A copy of the log that has a shard, as copy/0.")
@connected
def drop(
    connection: NodeOptions,
    name: str,
    timeout: float,
    group: str | None,
    query: str | None,
    shard: int | None,
    copy: str | None,
) -> int:
    """Forget a group of readers, a query that writes, a shard or a copy, which does not come back.

    A query that comes back all the same is a new one: the batch that it repeats is stored once more. A copy that was
    dropped must not be promoted. The node must speak for the bridge's own cluster.
    """
    if [group, query, shard, copy].count(None) != 3:
        raise click.UsageError("say which: --group NAME, --query NAME, --shard N or --copy NAME/SHARD")

    async def forget() -> None:
        with needing_bridge():
            from iris.spark_bridge.admin import drop_copy, drop_group, drop_query, drop_shard
            from iris.spark_bridge.copies import split_followed
        async with open_client(connection, name, timeout, speaking_for=name) as client:
            if group is not None:
                await drop_group(client, group)
                note(f"group {group} is forgotten")
            elif query is not None:
                await drop_query(client, query)
                note(f"query {query} is forgotten")
            elif shard is not None:
                await drop_shard(client, shard)
                note(f"shard {shard} is forgotten")
            elif copy is not None:
                what, of = split_followed(copy)
                await drop_copy(client, of, what)
                note(f"copy {what} of shard {of} is forgotten")

    return run_until_done(forget)


@click.command()
@named
@patient
@_group_or_query
@click.option("--to", "owner", required=True, metavar="CLUSTER", help="To whom it belongs from now on.")
@connected
def transfer(
    connection: NodeOptions, name: str, timeout: float, group: str | None, query: str | None, owner: str
) -> int:
    """Let a group or query belong to another cluster than the one that has used it first.

    The node must speak for the bridge's own cluster.
    """
    kind, what = _named(group, query)

    async def give() -> None:
        with needing_bridge():
            from iris.spark_bridge.admin import transfer as transfer_to
        async with open_client(connection, name, timeout, speaking_for=name) as client:
            await transfer_to(client, kind, what, owner)
            note(f"{kind} {what} belongs to cluster {owner}")

    return run_until_done(give)


@click.command()
@click.argument("followed", metavar="NAME/SHARD")
@click.option("--copy", metavar="NAME", help="Which one; else the one that has most.")
@click.option("--min-copies", type=Whole(0), metavar="N", help="What the new primary waits for; else as before.")
@click.option("--force", is_flag=True, help="Also if events are lost by it, or stored twice.")
@connected
def promote(connection: NodeOptions, followed: str, copy: str | None, min_copies: int | None, force: bool) -> int:
    """Make a copy of the log that has a shard the primary, in the place of one that is gone.

    NAME/SHARD is what the copy was started with, as bridge/0. The former primary confirms nothing from then on, whether
    it is gone or not. Refused if something that was confirmed would be lost. The node must speak for the bridge's own
    cluster.
    """

    async def do() -> None:
        with needing_bridge():
            from iris.spark_bridge.copies import promote as promote_copy
            from iris.spark_bridge.copies import split_followed
        name, shard = split_followed(followed)
        async with connection.open(name) as node:
            done = await promote_copy(node, name, shard, copy=copy, min_copies=min_copies, force=force)
        for lost in done.lost:
            note(f"accepted by --force: {lost}")
        note(f"copy {done.copy} is the primary of shard {shard} of bridge {name}, in term {done.term}")
        if done.min_copies:
            note(f"it confirms events when {done.min_copies} copies follow it: start them with --follow {followed}")

    return run_until_done(do)


@click.command()
@click.argument("subscriber", metavar="NAME")
@click.option("--name", metavar="NAME", help="The bridge's cluster, as it was started; found if only one has NAME.")
@connected
def forget(connection: NodeOptions, subscriber: str, name: str | None) -> int:
    """Have publishers wait no more for a bridge that does not come back.

    NAME is that of the bridge, or of one of its members, such as bridge.1, as "iris bridge status" and the errors of
    publishers tell it. The node must speak for the bridge's own cluster.
    """

    async def ask() -> None:
        async with connection.open(name) as node:
            clusters = [one.cluster for one in node.durable_subscribers() if one.name == subscriber]
            if name is not None or connection.credential is not None or clusters in ([], [node.name]):
                await node.forget_subscriber(subscriber)
                return
        if len(clusters) > 1:
            raise click.UsageError(f"several clusters have a {subscriber}: give --name {' or --name '.join(clusters)}")
        async with connection.open(clusters[0]) as node:
            await node.forget_subscriber(subscriber)

    async def forget_it() -> None:
        await ask()
        note(f"publishers wait for {subscriber} no more")

    return run_until_done(forget_it)
