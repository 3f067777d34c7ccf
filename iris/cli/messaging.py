"""Verbs of the messaging patterns.

- ``iris pub`` publishes one event, or one for each line of standard input; ``iris sub`` prints events as they arrive.
- ``iris request`` asks one member of a cluster.
- ``iris broadcast`` sends to every member of a cluster, ``iris survey`` asks every member.
- ``iris state`` reads, changes and follows a document that the members of a cluster have in common.
- ``iris tunnel`` is standard input and output as a two-way channel to one member of a cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import click
import trio

import iris
from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.payload import (
    as_fields,
    as_text,
    header_option,
    parse_payload,
    payload_argument,
    read_headers,
    read_payload,
)
from iris.cli.terminal import (
    POSITIVE,
    Lines,
    Whole,
    counting,
    input_size,
    note,
    open_lines,
    read_chunks,
    read_lines,
    wait_option,
    write_chunk,
    write_line,
    write_object,
    write_payload,
)
from iris.patterns.pubsub.subscribe import AnnouncedLosses


@click.command()
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@click.option("--group", metavar="NAME", help="Share the events with the other subscribers of this group.")
@click.option("--count", type=Whole(1), help="End after this many events.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each event.")
@click.option("--timestamps", is_flag=True, help="Say of each event when it came: UTC, ISO 8601.")
@connected
def sub(
    connection: NodeOptions,
    patterns: tuple[str, ...],
    group: str | None,
    count: int | None,
    as_json: bool,
    timestamps: bool,
) -> int:
    """Print the events of every topic that matches a PATTERN, until Ctrl-C.

    In a pattern, * stands for one word of a topic and > for all that follow.
    """
    taken = printed = 0

    async def show(event: iris.Event, missed: int, lines: Lines) -> None:
        if missed:
            note(f"{missed} events were lost before this one")
        came = datetime.now(UTC).isoformat(timespec="milliseconds") if timestamps else ""
        if as_json:
            sender = {"cluster": event.sender.cluster, "node": event.sender.node}
            fields = {"topic": event.topic, **as_fields(event.payload), "sender": sender, "missed": missed}
            fields = {"received": came, **fields} if timestamps else fields
            await lines.write_object({**fields, "headers": dict(event.headers)} if event.headers else fields)
        else:
            await lines.write(f"{came} {event.topic} {as_text(event.payload)}".lstrip())

    async def follow(node: iris.Node, pattern: str, lines: Lines, scope: trio.CancelScope) -> None:
        nonlocal taken, printed
        async with node.subscribe(pattern, group=group) as events:
            note(f"subscribed to {pattern}")
            losses = AnnouncedLosses(events)
            async for event in events:
                # The writing of a line may wait for its reader, while another pattern has an event, too.
                if taken == count:
                    return
                taken += 1
                await show(event, losses.before(event), lines)
                printed += 1
                if printed == count:
                    scope.cancel()
                    return

    async def follow_all() -> None:
        async with connection.open() as node, open_lines() as lines, trio.open_nursery() as nursery:
            for pattern in patterns:
                nursery.start_soon(follow, node, pattern, lines, nursery.cancel_scope)

    return run_until_done(follow_all, endless=True)


@click.command()
@click.argument("cluster")
@payload_argument
@header_option
@click.option("--operation", metavar="NAME", help="Which of the service's request handlers.")
@click.option("--key", metavar="TEXT", help="Requests with the same key go to the same member.")
@click.option("--idempotent", is_flag=True, help="Try again within the time: the service does not mind repetition.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds.")
@wait_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@connected
def request(
    connection: NodeOptions,
    cluster: str,
    payload: str,
    json_payload: bool,
    headers: tuple[str, ...],
    operation: str | None,
    key: str | None,
    idempotent: bool,
    timeout: float,
    wait: float,
    as_json: bool,
) -> int:
    """Ask one member of CLUSTER and print its reply.

    PAYLOAD is a text; @FILE sends the bytes of a file, - those of standard input.
    """
    value = read_payload(payload, json_payload)
    given_headers = read_headers(headers)

    async def ask() -> None:
        async with connection.open() as node:
            before = trio.current_time()
            try:
                reply = await node.request(
                    cluster,
                    value,
                    operation=operation,
                    key=key,
                    timeout=timeout,
                    headers=given_headers,
                    wait=wait,
                    options=iris.RequestOptions(idempotent=idempotent),
                )
            except iris.RemoteError as error:
                if error.code == "bad_request" and not json_payload:
                    error.add_note("without --json-payload PAYLOAD is a text or bytes, and no value")
                raise
            elapsed = trio.current_time() - before
        if as_json:
            write_object({**as_fields(reply), "seconds": round(elapsed, 6)})
        else:
            write_payload(reply)

    return run_until_done(ask)


@click.command()
@click.argument("cluster")
@payload_argument
@header_option
@wait_option
@connected
def broadcast(
    connection: NodeOptions,
    cluster: str,
    payload: str,
    json_payload: bool,
    headers: tuple[str, ...],
    wait: float,
) -> int:
    """Tell every member of CLUSTER.

    PAYLOAD is a text; @FILE sends the bytes of a file, - those of standard input.
    """
    value = read_payload(payload, json_payload)
    given_headers = read_headers(headers)

    async def send() -> None:
        async with connection.open() as node:
            await node.broadcast(cluster, value, headers=given_headers, wait=wait)

    return run_until_done(send)


@click.command()
@click.argument("cluster")
@payload_argument
@header_option
@click.option("--operation", metavar="NAME", help="Which of the service's request handlers.")
@click.option("--timeout", type=POSITIVE, default=1.0, show_default=True, help="Seconds.")
@wait_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each answer and one for those missing.")
@connected
def survey(
    connection: NodeOptions,
    cluster: str,
    payload: str,
    json_payload: bool,
    headers: tuple[str, ...],
    operation: str | None,
    timeout: float,
    wait: float,
    as_json: bool,
) -> int:
    """Ask every member of CLUSTER and print each answer with the id of its member.

    The exit status is 1 if a member did not answer in time.
    PAYLOAD is a text; @FILE sends the bytes of a file, - those of standard input.
    """
    value = read_payload(payload, json_payload)
    given_headers = read_headers(headers)

    async def ask_all() -> int:
        count = 0
        async with (
            connection.open() as node,
            node.survey(
                cluster, value, timeout=timeout, operation=operation, headers=given_headers, wait=wait
            ) as answers,
        ):
            async for answer in answers:
                count += 1
                if as_json:
                    write_object({"member": answer.member, **as_fields(answer.payload)})
                else:
                    write_line(f"{answer.member} {as_text(answer.payload)}")
        missing = {member: str(answers.errors.get(member, "no answer in time")) for member in sorted(answers.missing)}
        if as_json:
            write_object({"answers": count, "expected": answers.expected, "missing": missing})
        for member, reason in missing.items():
            note(f"{member} is missing: {reason}")
        return 1 if missing else 0

    return run_until_done(ask_all)


@click.command()
@click.argument("topic")
@payload_argument
@header_option
@click.option("--lines", is_flag=True, help="Publish each line of standard input as one event.")
@click.option("--confirm", is_flag=True, help="Wait until every durable subscriber has it on disk.")
@click.option("--key", metavar="TEXT", help="Events with the same key stay in order in a durable log.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds.")
@connected
def pub(
    connection: NodeOptions,
    topic: str,
    payload: str,
    json_payload: bool,
    headers: tuple[str, ...],
    lines: bool,
    confirm: bool,
    key: str | None,
    timeout: float,
) -> int:
    """Publish an event under TOPIC.

    PAYLOAD is a text; @FILE sends the bytes of a file, - those of standard input.
    """
    if lines and payload:
        raise click.UsageError("--lines reads the payloads from standard input: give no PAYLOAD")
    value = None if lines else read_payload(payload, json_payload)
    given_headers = read_headers(headers)

    async def publish(node: iris.Node, one: object) -> None:
        if confirm:
            await node.publish_confirmed(topic, one, key=key, timeout=timeout, headers=given_headers)
        else:
            await node.publish(topic, one, key=key, headers=given_headers)

    async def publish_all() -> None:
        async with connection.open() as node:
            if not lines:
                await publish(node, value)
                return
            with counting("events published") as count:
                async with contextlib.aclosing(read_lines()) as given:
                    async for line in given:
                        await publish(node, parse_payload(_text_of(line), json_payload))
                        count(1)

    return run_until_done(publish_all)


def _text_of(line: bytes) -> str | bytes:
    """Return a line as a text; as it is if it is none."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


@click.command()
@click.argument("cluster")
@click.option("--operation", metavar="NAME", help="Which of the service's tunnel handlers.")
@click.option("--key", metavar="TEXT", help="Tunnels with the same key go to the same member.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds to open it.")
@wait_option
@connected
def tunnel(
    connection: NodeOptions, cluster: str, operation: str | None, key: str | None, timeout: float, wait: float
) -> int:
    """Connect standard input and output to one member of CLUSTER.

    Ends when both sides have ended: end of input here, and there the end of the handler.
    """

    async def send_input(channel: iris.Tunnel) -> None:
        with counting("sent", total=input_size(), unit_bytes=True, beside_output=True) as count:
            async with contextlib.aclosing(read_chunks()) as chunks:
                async for chunk in chunks:
                    await channel.send(chunk)
                    count(len(chunk))
        await channel.send_eof()

    async def connect() -> None:
        async with (
            connection.open() as node,
            node.open_tunnel(cluster, timeout=timeout, operation=operation, key=key, wait=wait) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(send_input, channel)
            async for payload in channel:
                data = payload if isinstance(payload, bytes) else as_text(payload).encode() + b"\n"
                await trio.to_thread.run_sync(write_chunk, data, abandon_on_cancel=True)

    return run_until_done(connect)


@click.group()
def state() -> None:
    """Read, change and follow the document of a cluster.

    The command is a member of the cluster meanwhile, so it needs the right to serve it.
    """


@contextlib.asynccontextmanager
async def _open_state(connection: NodeOptions, cluster: str, wait: float) -> AsyncGenerator[iris.SharedState]:
    """Open the document of a cluster; raise NoSuchCluster if it has no other members, and so no document."""
    async with connection.open(cluster) as node:
        if wait and not node.members(cluster):
            with contextlib.suppress(iris.RequestTimeout):
                await node.wait_for(cluster, timeout=wait)
        if not node.members(cluster):
            raise iris.NoSuchCluster(f"no reachable member has the document {cluster!r} open")
        async with node.state(cluster) as document:
            yield document


@state.command()
@click.argument("cluster")
@click.argument("key", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@wait_option
@connected
def get(connection: NodeOptions, cluster: str, key: str | None, wait: float, as_json: bool) -> int:
    """Print the value of KEY in the document of CLUSTER, or of all keys, each on a line."""

    async def read() -> int:
        async with _open_state(connection, cluster, wait) as document:
            values = dict(document)
        if key is not None and key not in values:
            note(f"the document {cluster!r} has no key {key!r}")
            return 1
        if key is not None and not as_json:
            write_payload(values[key])
            return 0
        for name in sorted(values) if key is None else [key]:
            if as_json:
                write_object({"key": name, **as_fields(values[name])})
            else:
                write_line(f"{name} {as_text(values[name])}")
        return 0

    return run_until_done(read)


@state.command("set")
@click.argument("cluster")
@click.argument("key")
@payload_argument
@wait_option
@connected
def set_value(connection: NodeOptions, cluster: str, key: str, payload: str, json_payload: bool, wait: float) -> int:
    """Set KEY in the document of CLUSTER; it is done when another member has it.

    PAYLOAD is a text; @FILE sends the bytes of a file, - those of standard input.
    """
    value = read_payload(payload, json_payload)

    async def write() -> None:
        async with _open_state(connection, cluster, wait) as document:
            document[key] = value
            await document.settled(2)

    return run_until_done(write)


@state.command()
@click.argument("cluster")
@click.argument("pattern", default=">")
@click.option("--count", type=Whole(1), help="End after this many changes.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each change.")
@wait_option
@connected
def watch(connection: NodeOptions, cluster: str, pattern: str, count: int | None, wait: float, as_json: bool) -> int:
    """Print the keys in the document of CLUSTER that match PATTERN, and each change of them, until Ctrl-C.

    In a pattern, * stands for one word of a key and > for all that follow.
    """

    async def follow() -> None:
        async with _open_state(connection, cluster, wait) as document, open_lines() as lines:
            printed = 0
            async for change in document.watch(pattern):
                if as_json:
                    shown = {} if change.removed else as_fields(change.value)
                    fields = {"key": change.key, "kind": change.kind, **shown, "removed": change.removed}
                    await lines.write_object(fields)
                elif change.removed:
                    await lines.write(f"{change.key} (removed)")
                else:
                    kind = "" if change.kind == "value" else f" ({change.kind})"
                    text = as_text(change.value) if change.kind in ("value", "counter") else ""
                    await lines.write(f"{change.key}{kind} {text}".rstrip())
                printed += 1
                if printed == count:
                    return

    return run_until_done(follow, endless=True)
