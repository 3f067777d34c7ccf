"""``iris sub``: print events as they come."""

from __future__ import annotations

import click
import trio

import iris
from iris._command_connection import Connection, connected, run_until_done
from iris._command_output import Lines, note, open_lines
from iris._command_payload import as_fields, as_text


@click.command()
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@click.option("--group", metavar="NAME", help="Share the events with the other subscribers of this group.")
@click.option("--count", type=click.IntRange(1), help="End after this many events.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each event.")
@connected
def sub(
    connection: Connection,
    patterns: tuple[str, ...],
    group: str | None,
    count: int | None,
    as_json: bool,
) -> int:
    """Print the events of every topic that matches a PATTERN, until Ctrl-C.

    In a pattern, * stands for one word of a topic and > for all that follow.
    """
    taken = printed = 0

    async def show(event: iris.Event, lines: Lines) -> None:
        if event.missed:
            note(f"{event.missed} events were lost before this one")
        if as_json:
            sender = {"cluster": event.sender.cluster, "node": event.sender.node}
            fields = {"topic": event.topic, **as_fields(event.payload), "sender": sender, "missed": event.missed}
            await lines.write_object({**fields, "headers": dict(event.headers)} if event.headers else fields)
        else:
            await lines.write(f"{event.topic} {as_text(event.payload)}")

    async def follow(node: iris.Node, pattern: str, lines: Lines, scope: trio.CancelScope) -> None:
        nonlocal taken, printed
        async with node.subscribe(pattern, group=group) as events:
            note(f"subscribed to {pattern}")
            async for event in events:
                # The writing of a line may wait for its reader, while another pattern has an event, too.
                if taken == count:
                    return
                taken += 1
                await show(event, lines)
                printed += 1
                if printed == count:
                    scope.cancel()
                    return

    async def follow_all() -> None:
        async with connection.open() as node, open_lines() as lines, trio.open_nursery() as nursery:
            for pattern in patterns:
                nursery.start_soon(follow, node, pattern, lines, nursery.cancel_scope)

    return run_until_done(follow_all, endless=True)
