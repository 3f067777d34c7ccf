"""``iris request``: ask one member of a cluster."""

from __future__ import annotations

import click
import trio

from iris._command_connection import Connection, connected, run_until_done
from iris._command_number import POSITIVE, takes_wait
from iris._command_output import write_object, write_payload
from iris._command_payload import as_fields, read_headers, read_payload, takes_headers, takes_payload


@click.command()
@click.argument("cluster")
@takes_payload
@takes_headers
@click.option("--operation", metavar="NAME", help="Which of the service's request handlers.")
@click.option("--key", metavar="TEXT", help="Requests with the same key go to the same member.")
@click.option("--idempotent", is_flag=True, help="Try again within the time: the service does not mind repetition.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds.")
@takes_wait
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@connected
def request(
    connection: Connection,
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
            reply = await node.request(
                cluster,
                value,
                timeout=timeout,
                idempotent=idempotent,
                operation=operation,
                key=key,
                headers=given_headers,
                wait=wait,
            )
            elapsed = trio.current_time() - before
        if as_json:
            write_object({**as_fields(reply), "seconds": round(elapsed, 6)})
        else:
            write_payload(reply)

    return run_until_done(ask)
