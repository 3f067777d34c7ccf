"""Payload syntax: payloads and headers as people write and read them on a command line."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

TOO_DEEP = "(nested too deep to be shown)"
"""Stands for a payload that another program has sent: Iris itself sends 500 levels at most."""

Verb = TypeVar("Verb", bound=Callable[..., object])


def payload_argument(verb: Verb) -> Verb:
    """Give ``verb`` the argument PAYLOAD and the option ``--json-payload``, to be read by ``read_payload``."""
    verb = click.option("--json-payload", is_flag=True, help="PAYLOAD is JSON and arrives as the value it stands for.")(
        verb
    )
    return click.argument("payload", default="")(verb)


def header_option(verb: Verb) -> Verb:
    """Give ``verb`` the repeatable option ``--header``, to be read by ``read_headers``."""
    return click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be repeated.")(verb)


def read_payload(argument: str, json_payload: bool) -> object:
    """Return what ``argument`` stands for.

    ``@FILE`` is the bytes of that file, ``-`` those of standard input, nothing is no bytes, anything else is itself, a
    text.  With ``json_payload`` each of them is read as JSON.

    Raises:
        click.UsageError: the file cannot be read, or the payload should be JSON and is not.
    """
    payload: bytes | str
    if argument == "-":
        payload = sys.stdin.buffer.read()
    elif argument.startswith("@"):
        try:
            payload = Path(argument[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"cannot read {argument[1:]}: {error.strerror}") from None
    else:
        payload = argument or b""
    return parse_payload(payload, json_payload)


def parse_payload(payload: bytes | str, json_payload: bool) -> object:
    """Return ``payload``, or the value it stands for as JSON; raise UsageError if it should be JSON and is not."""
    if not json_payload:
        return payload
    try:
        return json.loads(payload)
    except ValueError as error:
        raise click.UsageError(f"the payload is not JSON: {error}") from None
    except RecursionError:
        raise click.UsageError("the payload is not JSON that can be read: it is nested too deep") from None


def read_headers(headers: Sequence[str]) -> dict[str, str] | None:
    """Return headers given as ``NAME=VALUE``, None without any; raise UsageError if one has no ``=`` or name."""
    read: dict[str, str] = {}
    for header in headers:
        name, equals, value = header.partition("=")
        if not (name and equals):
            raise click.UsageError(f"{header!r} is not a header: write NAME=VALUE")
        read[name] = value
    return read or None


def as_text(payload: object) -> str:
    """Return ``payload`` as people read it: texts as they are, other values as JSON, bytes as UTF-8 or base64.

    JSON knows no bytes: those inside of other values become texts in the same way.
    """
    if isinstance(payload, bytes):
        try:
            return payload.decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(payload).decode()
    if isinstance(payload, str):
        return payload
    try:
        return json.dumps(payload, default=as_text)
    except RecursionError:
        return TOO_DEEP


def as_fields(payload: object) -> dict[str, object]:
    """Return ``payload`` as the fields of a JSON object: ``payload``, and ``encoding`` if it arrived as bytes."""
    if not isinstance(payload, bytes):
        return {"payload": payload}
    try:
        return {"payload": payload.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}
