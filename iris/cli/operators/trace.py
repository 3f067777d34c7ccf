"""``iris trace``: the route of one request, hop by hop."""

from __future__ import annotations

from collections.abc import Iterator

import click
from msgspec import to_builtins

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.operators.top import seconds
from iris.cli.payload import payload_argument, read_payload
from iris.cli.terminal import POSITIVE, output_option, wait_option, write_line, write_object, write_table
from iris.node.realm import RequestTrace, trace_request
from iris.patterns.service import DESCRIBE


@click.command()
@click.argument("cluster")
@payload_argument
@click.option("--operation", metavar="NAME", help="Which of the service's request handlers.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, metavar="SECONDS", help="For the reply.")
@wait_option
@output_option
@connected
def trace(
    connection: NodeOptions,
    cluster: str,
    payload: str,
    json_payload: bool,
    operation: str | None,
    timeout: float,
    wait: float,
    output: str,
) -> int:
    """Ask one member of CLUSTER, and show the way of the request: gateways, then the member that answered.

    Without --operation and PAYLOAD the member is asked what it serves, which changes nothing. PAYLOAD is a text; @FILE
    sends the bytes of a file, - those of standard input.

    The time of a hop is a round trip from here, the shortest of three. How long the request waited for a handler, and
    how long that took, the member measures. The exit status is 1 if no reply came.
    """
    given = bool(payload or json_payload or operation)
    value = read_payload(payload, json_payload) if given else None
    asked = operation if given else DESCRIBE

    async def ask() -> int:
        async with connection.open() as node:
            found = await trace_request(node, cluster, value, operation=asked, timeout=timeout, wait=wait)
        if output == "json":
            write_object(to_builtins(found))
        else:
            write_table(("hop", "node", "site", "kind", "round trip"), _rows(found))
            for line in _summary(found):
                write_line(line)
        if found.error is not None:
            raise click.ClickException(found.error)
        return 0

    return run_until_done(ask)


def _rows(found: RequestTrace) -> Iterator[tuple[str, ...]]:
    for number, hop in enumerate(found.hops, 1):
        yield str(number), hop.node or "-", hop.site or "-", hop.kind, seconds(hop.round_trip)


def _summary(found: RequestTrace) -> Iterator[str]:
    yield f"request\t{seconds(found.taken)}"
    yield f"waited for a handler\t{seconds(found.waited)}"
    yield f"handler\t{seconds(found.ran)}"
    yield f"trace\t{found.trace_id}"
