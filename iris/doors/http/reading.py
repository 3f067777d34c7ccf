"""Contents of an HTTP request: its token, its options, its headers and its payload."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import HTTPConnection, Request

from iris.doors.clients import Client, Clients
from iris.doors.http.connections import ADMIT
from iris.doors.http.limits import HttpLimits
from iris.doors.options import TIMEOUT, Options, Readers, read_options
from iris.doors.problems import Problem
from iris.doors.values import AS_VALUE, from_json, unpacked

HEADER_PREFIX: Final = "iris-header-"
"""Prefix of HTTP headers that go to the member as headers of the name that follows."""

KEY_HEADER: Final = "idempotency-key"
"""Header of an idempotency key, as in draft-ietf-httpapi-idempotency-key-header."""

_STRING: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])+)"')
"""A string of RFC 9651, section 3.3.3, that is not empty."""

TOKEN_PROTOCOL: Final = "iris.token."  # noqa: S105 -- no token itself
"""Prefix of the WebSocket protocol in which a page, which cannot set headers, shows its token."""


async def client_of(http: HTTPConnection, clients: Clients) -> Client:
    """Return who shows the token of a request, when it is that client's turn.

    Raises:
        Problem: it shows none, or one that is unknown here, or has as many connections as it may.
    """
    scheme, _, secret = http.headers.get("authorization", "").partition(" ")
    shown = [secret.strip()] if scheme.lower() == "bearer" else []
    offered = http.scope.get("subprotocols", ())
    shown += [one.removeprefix(TOKEN_PROTOCOL) for one in offered if one.startswith(TOKEN_PROTOCOL)]
    if not shown:
        raise Problem(401, "no_token", "show a token: Authorization: Bearer TOKEN")
    client = clients.admit(shown[0])
    http.scope["state"][ADMIT](client)
    await client.processor.wait()
    return client


def options_of(http: HTTPConnection, known: Readers, timeout: float = TIMEOUT) -> Options:
    """Return the options in the query of a request; see ``read_options``.

    Raises:
        Problem: one is unknown, stands twice or cannot be read, or the call would take too long.
    """
    return read_options(http.query_params.multi_items(), known, timeout)


def headers_of(http: HTTPConnection, client: Client) -> Mapping[str, str]:
    """Return headers for the member: the client's, and who it is; raise Problem if one stands twice or is no UTF-8."""
    headers: dict[str, str] = {}
    for name, value in http.headers.items():
        if name.startswith(HEADER_PREFIX):
            key = name.removeprefix(HEADER_PREFIX)
            if key in headers:
                raise Problem(400, "malformed", f"the header {name:.100} twice: members have each name once")
            headers[key] = _text(name, value)
            client.charge(len(key) + len(value))
    return client.headers(headers.items())


def key_of(http: HTTPConnection, client: Client) -> str | None:
    """Return the idempotency key of a request, which belongs to this client alone; None if it has none.

    Raises:
        Problem: there are several, or it is no string in quotes.
    """
    shown = http.headers.getlist(KEY_HEADER)
    if not shown:
        return None
    string = _STRING.fullmatch(shown[0].strip()) if len(shown) == 1 else None
    if string is None:
        raise Problem(400, "malformed", 'write one key of printable ASCII in quotes, as in Idempotency-Key: "order-7"')
    # The name of a client has no slash, so that of two clients neither can name a key of the other one.
    return f"{client.name}/" + re.sub(r"\\(.)", r"\1", string[1])


def check_no_key(http: HTTPConnection) -> None:
    """Raise ``Problem`` if there is an idempotency key where none is of use."""
    if KEY_HEADER in http.headers:
        raise Problem(400, "malformed", "an Idempotency-Key is for POST /request/CLUSTER: nothing else is done once")


def _text(name: str, value: str) -> str:
    """Return a header's value, of which Starlette has made a character of each byte."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Problem(400, "malformed", f"the header {name:.100} is no UTF-8") from None


async def payload_of(http: Request, client: Client, limits: HttpLimits, hold: Callable[[int], None]) -> object:
    """Read the body of a request: JSON, text and MessagePack if its type says so, else bytes.

    Args:
        http: the request.
        client: client whose rate its bytes count for.
        limits: limits of its body.
        hold: counts bytes that are about to be kept.

    Raises:
        Problem: it is too large, too slow, or not of its type; or its client has too much that is kept for it.
    """
    body, size = bytearray(), int(http.headers.get("content-length", 0))  # a number: the parser has checked it
    too_large = Problem(413, "too_large", f"a body has at most {limits.body} bytes: use a tunnel for more")
    if size > limits.body:  # nothing of it is read
        raise too_large
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    hold(size)
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for piece in http.stream():
                body += piece
                if len(body) > limits.body:
                    raise too_large
                if not size:
                    hold(len(piece))
    except TimeoutError:
        raise Problem(408, "too_slow", f"the body was not here after {limits.body_timeout:g} s") from None
    data = bytes(body)
    client.charge(len(data))
    if kind in _VALUES:
        value = _VALUES[kind](data)
        hold((AS_VALUE - 1) * len(data))
        return value
    if kind.startswith("text/"):
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Problem(400, "malformed", "the text is no UTF-8") from None
    return data


_VALUES: Final[Mapping[str, Callable[[bytes], object]]] = {
    "application/json": from_json,
    "application/msgpack": unpacked,
}
"""Readers of bodies that stand for values, by media type."""
