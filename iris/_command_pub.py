"""``iris pub``: publish one event, or one for each line of standard input."""

from __future__ import annotations

import contextlib
from typing import Any

import click

import iris
from iris._command_connection import Connection, connected, run_until_done
from iris._command_input import read_lines
from iris._command_number import POSITIVE
from iris._command_payload import parse_payload, read_headers, read_payload, takes_headers, takes_payload
from iris._command_progress import counting


@click.command()
@click.argument("topic")
@takes_payload
@takes_headers
@click.option("--lines", is_flag=True, help="Publish each line of standard input as one event.")
@click.option("--confirm", is_flag=True, help="Wait until every durable subscriber has it on disk.")
@click.option("--key", metavar="TEXT", help="Events with the same key stay in order in a durable log.")
@click.option("--timeout", type=POSITIVE, default=5.0, show_default=True, help="Seconds.")
@connected
def pub(
    connection: Connection,
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

    async def publish(node: iris.Node, one: Any) -> None:
        await node.publish(topic, one, confirm=confirm, key=key, timeout=timeout, headers=given_headers)

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
