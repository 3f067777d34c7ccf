"""Who may see the page: tokens, names, and from where an order comes."""

from __future__ import annotations

from typing import Any, Final

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from iris.cli.operators.dash.guard import Guard

TOKEN: Final = "t" * 43
COOKIE: Final = f"iris_dash_7780={TOKEN}"
HERE: Final = "127.0.0.1:7780"


async def _ask(path: str = "/", *, method: str = "GET", secure: bool = False, **headers: str | None) -> Any:
    guard = Guard(PlainTextResponse("the page"), token=TOKEN, port=7780, secure=secure, names=["Dash.example"])
    sent: list[Message] = []
    given = {"host": HERE, "cookie": COOKIE, **headers}
    address, _, query = path.partition("?")

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": address,
        "query_string": query.encode(),
        "scheme": "http",
        "server": ("127.0.0.1", 7780),
        "headers": [
            (name.replace("_", "-").encode(), text.encode()) for name, text in given.items() if text is not None
        ],
    }
    await guard(scope, receive, send)
    told = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("cookie", [None, "", "iris_dash_7780=", "iris_dash_7780=x", f"iris_dash_7781={TOKEN}", "é=ü"])
async def test_nothing_is_shown_without_the_token(cookie: str | None) -> None:
    for path in ("/", "/dash.js", "/views", "/nothing"):
        status, _, body = await _ask(path, cookie=cookie)
        assert status == 401
        assert b"the page" not in body
        assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    "query", ["token=", "token=x", f"token={TOKEN}x", f"token={TOKEN}&token={TOKEN}", "token=%C3%A9"]
)
async def test_a_wrong_token_lets_nobody_in(query: str) -> None:
    status, headers, _ = await _ask(f"/?{query}", cookie=None)
    assert (status, headers.get("set-cookie")) == (401, None)


@pytest.mark.parametrize("secure", [False, True])
async def test_the_token_goes_from_the_address_into_a_cookie(secure: bool) -> None:
    status, headers, body = await _ask(f"/?token={TOKEN}", cookie=None, secure=secure)
    assert (status, headers["location"], body) == (303, "/", b"")
    first, *marks = headers["set-cookie"].split("; ")
    assert first == COOKIE
    assert {mark.lower() for mark in marks} == {"httponly", "samesite=strict", "path=/"} | (
        {"secure"} if secure else set()
    )
    assert headers["referrer-policy"] == "no-referrer"


async def test_whoever_shows_the_cookie_sees_the_page_with_a_strict_policy() -> None:
    status, headers, body = await _ask()
    assert (status, body) == (200, b"the page")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "host", [HERE, "localhost:7780", "LOCALHOST", "[::1]:7780", "10.1.2.3", "dash.example", "DASH.example:443"]
)
async def test_names_that_the_server_has(host: str) -> None:
    assert (await _ask(host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:7780", "127.0.0.1.evil.example", "localhost.evil", "[::1", "@127.0.0.1x"],
)
async def test_a_name_that_was_made_to_lead_here_gets_nothing(host: str | None) -> None:
    for path in ("/", f"/?token={TOKEN}"):
        status, headers, _ = await _ask(path, host=host)
        assert (status, headers.get("set-cookie")) == (421, None)


@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        (f"http://{HERE}", None, 200),
        (f"http://{HERE}", "same-origin", 200),
        (f"https://{HERE}", "same-origin", 200),  # a proxy in front has TLS
        (f"http://{HERE}", "cross-site", 403),
        (f"http://{HERE}", "same-site", 403),
        ("http://127.0.0.1:7781", "same-site", 403),
        ("http://localhost:7780", None, 403),
        ("http://evil.example", "cross-site", 403),
        (f"http://evil.example/{HERE}", None, 403),
        ("http://[", None, 403),
        ("null", None, 403),
        (None, None, 403),
        (None, "none", 403),
    ],
)
async def test_orders_come_from_the_page_alone(origin: str | None, site: str | None, status: int) -> None:
    assert (await _ask("/drain", method="POST", origin=origin, sec_fetch_site=site))[0] == status


async def test_a_socket_of_the_web_is_closed() -> None:
    guard = Guard(PlainTextResponse("the page"), token=TOKEN, port=7780, secure=False, names=[])
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await guard({"type": "websocket", "path": "/views", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close"}]
