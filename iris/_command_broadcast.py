"""``iris broadcast``: tell every member of a cluster."""

from __future__ import annotations

import click

from iris._command_connection import Connection, connected, run_until_done
from iris._command_number import takes_wait
from iris._command_payload import read_headers, read_payload, takes_headers, takes_payload


@click.command()
@click.argument("cluster")
@takes_payload
@takes_headers
@takes_wait
@connected
def broadcast(
    connection: Connection,
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

    async def tell() -> None:
        async with connection.open() as node:
            await node.broadcast(cluster, value, headers=given_headers, wait=wait)

    return run_until_done(tell)
