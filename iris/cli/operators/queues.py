"""``iris queue``: look at the work queues of a bridge, and mend them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import click
import trio
from msgspec import structs

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.terminal import POSITIVE, Whole, note, output_option, write_line, write_object
from iris.kernel.errors import RequestTimeout
from iris.node.node import Node
from iris.patterns.bridge_protocol import (
    GROUP,
    Ask,
    ListShards,
    MemberShards,
    PeekJobs,
    PurgeQueue,
    RemoteShard,
    ShownJob,
    ShowQueue,
    as_fields,
    read_answer,
    read_reply,
)
from iris.patterns.pubsub.queues import DEAD_SUFFIX, OWN_HEADERS, Job, WorkQueue, decode_value_untrusted

R = TypeVar("R")
Verb = TypeVar("Verb", bound=Callable[..., object])

_QUIET: Final = 1.0
"""Seconds without another dead letter after which there are no more."""

IN_HAND: Final = 64
"""Dead letters that one worker has in hand."""

_MOST_LATER: Final = 4096
"""Letters that came meanwhile which are kept in hand, so that those before them come."""


@click.group()
def queue() -> None:
    """Look at the work queues of a bridge, and mend them.

    A queue is a topic that a bridge stores; programs put and receive jobs with Bridge.queue.
    """


def _about_a_queue(verb: Verb) -> Verb:
    """Give ``verb`` the options that say which queue."""
    verb = click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds to look for it.")(
        verb
    )
    verb = click.option("--bridge", default="bridge", show_default=True, metavar="NAME", help="The bridge's cluster.")(
        verb
    )
    return click.argument("name")(verb)


def _as_worker(verb: Verb) -> Verb:
    """Give ``verb`` the option that says for whom it speaks."""
    return click.option(
        "--as",
        "cluster",
        metavar="CLUSTER",
        help="Speak for this cluster of the local realm: a queue belongs to the cluster whose workers came first.",
    )(verb)


@contextlib.asynccontextmanager
async def _shards(
    connection: NodeOptions, bridge: str, timeout: float, cluster: str | None = None
) -> AsyncIterator[tuple[Node, list[RemoteShard]]]:
    """Open a node; give it with the shards of a bridge."""
    async with connection.open(cluster) as node:
        await node.wait_for(bridge, timeout=timeout)
        found: list[RemoteShard] = []
        async with node.survey(bridge, None, operation=ListShards.operation, timeout=timeout) as answers:
            async for answer in answers:
                found += read_reply(MemberShards, answer.payload).shards
        if not found:
            raise RequestTimeout(f"not every member of bridge {bridge!r} has answered")
        yield node, found


@contextlib.asynccontextmanager
async def _addresses(
    connection: NodeOptions, bridge: str, timeout: float, cluster: str | None = None
) -> AsyncIterator[tuple[Node, list[str]]]:
    """Open a node; give it with the clusters at which the members of a bridge are found."""
    async with _shards(connection, bridge, timeout, cluster) as (node, shards):
        yield node, sorted({shard.address for shard in shards})


async def _ask(node: Node, address: str, request: Ask[R], timeout: float) -> R:
    reply = await node.request(address, as_fields(request), operation=request.operation, timeout=timeout)
    return read_answer(request, reply)


@queue.command()
@_about_a_queue
@output_option
@connected
def status(connection: NodeOptions, name: str, bridge: str, timeout: float, output: str) -> int:
    """Tell how many jobs of queue NAME wait, are in hand, were done, have died or expired."""

    async def ask() -> None:
        async with _addresses(connection, bridge, timeout) as (node, addresses):
            found: dict[str, Any] = {}
            for address in addresses:
                counts = await _ask(node, address, ShowQueue(group=GROUP + name), timeout)
                for field, value in as_fields(counts).items():
                    found[field] = found.get(field, 0) + value if isinstance(value, int) else value
        if output == "json":
            write_object(found)
        else:
            write_line(_summary(found))

    return run_until_done(ask)


def _summary(found: Mapping[str, Any]) -> str:
    return (
        f"queue {found['queue']}: {found['waiting']:,} waiting, {found['delayed']:,} delayed, "
        f"{found['in_hand']:,} in hand at {found['workers']:,} workers, {found['unread']:,} events not looked at; "
        f"{found['done']:,} done, {found['dead']:,} dead, {found['expired']:,} expired; since the bridge was started "
        f"{found['retried']:,} retried, {found['lapsed']:,} leases lost"
    )


@queue.command()
@_about_a_queue
@_as_worker
@click.option("--most", type=Whole(1, 256), default=10, show_default=True, help="Jobs of each member.")
@connected
def peek(connection: NodeOptions, name: str, bridge: str, timeout: float, cluster: str | None, most: int) -> int:
    """Print the jobs of queue NAME that come first, a JSON object on each line; nothing is taken."""

    async def ask() -> None:
        async with _addresses(connection, bridge, timeout, cluster) as (node, addresses):
            for address in addresses:
                for job in await _ask(node, address, PeekJobs(group=GROUP + name, most=most), timeout):
                    write_object(_shown(job))

    return run_until_done(ask)


def _shown(job: ShownJob) -> dict[str, Any]:
    hidden = ("value", "encoding", "timestamp", "size")
    shown = {field: value for field, value in structs.asdict(job).items() if field not in hidden}
    shown["put"] = datetime.datetime.fromtimestamp(job.timestamp / 1e6, datetime.UTC).isoformat(timespec="milliseconds")
    if len(job.value) < job.size:
        shown["begins_with"] = job.value[:256].decode("utf-8", "backslashreplace")
    else:
        payload = decode_value_untrusted(job.value, job.encoding)
        shown["payload"] = payload.decode("utf-8", "backslashreplace") if isinstance(payload, bytes) else payload
    return shown


@queue.command()
@_about_a_queue
@_as_worker
@click.option("--dead", metavar="TOPIC", help="Where the dead letters are; NAME.dead if it is not given.")
@connected
def redrive(
    connection: NodeOptions, name: str, bridge: str, timeout: float, cluster: str | None, dead: str | None
) -> int:
    """Put the dead letters of queue NAME back into it, as new jobs, in their order.

    Only those that are there when it begins: a job may die again meanwhile. A letter is done when its job is on the
    bridge's disk. Who is killed in between leaves one that is there twice. It says how many letters are left.
    """

    async def move() -> None:
        source = dead or name + DEAD_SUFFIX
        async with _shards(connection, bridge, timeout, cluster) as (node, shards):
            async with node.bridge(bridge).queue(name) as jobs, node.bridge(bridge).queue(source) as letters:
                count = await _redrive(jobs, letters, {shard.number: shard.next for shard in shards}, timeout)
            left = 0
            for address in sorted({shard.address for shard in shards}):
                status = await _ask(node, address, ShowQueue(group=GROUP + source), timeout)
                left += status.waiting + status.delayed + status.in_hand
        note(f"{count} jobs are in queue {name} again")
        if left:
            note(f"{left} letters are left in {source}: they came meanwhile, or other workers have them")

    return run_until_done(move)


async def _redrive(jobs: WorkQueue, letters: WorkQueue, ends: Mapping[int, int], timeout: float) -> int:
    """Put the letters before the ends of their shards back as jobs; return how many there were."""
    count, passed = 0, 0
    worker, deadline = letters.receive(IN_HAND), trio.current_time() + timeout
    later: list[Job] = []
    while True:
        letter = None
        with trio.move_on_at(deadline):
            letter = await anext(worker)
        if letter is None:
            if passed == len(later) or passed >= _MOST_LATER:
                break
            # The later ones may fill the worker's hand, and those of a lower priority wait behind them.
            passed = len(later)
            for one in later:
                one.extend()
            worker, deadline = letters.receive(IN_HAND), trio.current_time() + _QUIET
            continue
        shard, offset = letter._place
        if offset >= ends.get(shard, 0):
            later.append(letter)  # and not released: it would come again
            continue
        headers = {field: text for field, text in letter.headers.items() if field not in OWN_HEADERS}
        await jobs.put(letter.payload, key=letter.key, headers=headers, timeout=timeout)
        async with letter:
            count += 1
        deadline = trio.current_time() + _QUIET
    for letter in later:
        letter.release()
    return count


@queue.command()
@_about_a_queue
@_as_worker
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def purge(connection: NodeOptions, name: str, bridge: str, timeout: float, cluster: str | None, yes: bool) -> int:
    """Forget every job of queue NAME that waits now; the log keeps the events."""
    if not yes:
        click.confirm(f"Forget every job of queue {name}?", abort=True, err=True)

    async def forget() -> None:
        async with _addresses(connection, bridge, timeout, cluster) as (node, addresses):
            count = 0
            for address in addresses:
                count += await _ask(node, address, PurgeQueue(group=GROUP + name), max(60, timeout))
        note(f"{count} jobs of queue {name} are forgotten")

    return run_until_done(forget)
