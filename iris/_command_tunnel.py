"""``iris tunnel``: standard input and output as a two-way channel to one member of a cluster."""

from __future__ import annotations

import contextlib

import click
import trio

import iris
from iris._command_connection import Connection, connected, run_until_done
from iris._command_input import input_size, read_chunks
from iris._command_number import POSITIVE, takes_wait
from iris._command_output import write_chunk
from iris._command_payload import as_text
from iris._command_progress import counting


@click.command()
@click.argument("cluster")
@click.option("--operation", metavar="NAME", help="Which of the service's tunnel handlers.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds to open it.")
@takes_wait
@connected
def tunnel(connection: Connection, cluster: str, operation: str | None, timeout: float, wait: float) -> int:
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
            node.open_tunnel(cluster, timeout=timeout, operation=operation, wait=wait) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(send_input, channel)
            async for payload in channel:
                data = payload if isinstance(payload, bytes) else as_text(payload).encode() + b"\n"
                await trio.to_thread.run_sync(write_chunk, data, abandon_on_cancel=True)

    return run_until_done(connect)
