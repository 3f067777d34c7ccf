"""Access to the page: tokens, names, and the origin of an order."""

from __future__ import annotations

from typing import Any, Final

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from iris.cli.operators.dash.guard import Guard

TOKEN: Final = "t" * 43
SHOWN: Final = f"Bearer {TOKEN}"
HERE: Final = "127.0.0.1:7780"


async def _ask(path: str = "/views", *, method: str = "GET", **headers: str | None) -> Any:
    guard = Guard(PlainTextResponse("the realm"), token=TOKEN, names=["Dash.example"], public=["/", "/dash.js"])
    sent: list[Message] = []
    given = {"host": HERE, "authorization": SHOWN, **headers}
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


@pytest.mark.parametrize("shown", [None, "", "Bearer ", "Bearer x", f"Bearer {TOKEN}x", TOKEN, f"Basic {TOKEN}", "é ü"])
async def test_nothing_is_shown_without_the_token(shown: str | None) -> None:
    for path in ("/views", "/drain", "/nothing", f"/views?token={TOKEN}", "/dash.js/"):
        status, _, body = await _ask(path, authorization=shown)
        assert status == 401
        assert b"the realm" not in body
        assert TOKEN.encode() not in body


async def test_a_cookie_is_no_token_and_none_is_given() -> None:
    status, headers, _ = await _ask(authorization=None, cookie=f"iris_dash_7780={TOKEN}")
    assert (status, headers.get("set-cookie")) == (401, None)


@pytest.mark.parametrize("path", ["/", "/dash.js", f"/?token={TOKEN}"])
async def test_the_page_itself_is_for_everybody_and_says_nothing(path: str) -> None:
    status, headers, _ = await _ask(path, authorization=None)
    assert (status, headers.get("set-cookie")) == (200, None)
    assert (await _ask(path, authorization=None, method="POST"))[0] == 401


async def test_whoever_shows_the_token_sees_the_realm_with_a_strict_policy() -> None:
    status, headers, body = await _ask()
    assert (status, body) == (200, b"the realm")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"


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
    for path in ("/", "/views"):
        assert (await _ask(path, host=host))[0] == 421


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


@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        (None, None, 200),
        (None, "same-origin", 200),
        (f"http://{HERE}", "same-origin", 200),
        ("http://127.0.0.1:7781", None, 403),
        (None, "same-site", 403),
        (None, "cross-site", 403),
        ("null", None, 403),
    ],
)
async def test_other_pages_see_nothing_even_with_the_token(origin: str | None, site: str | None, status: int) -> None:
    assert (await _ask("/views", origin=origin, sec_fetch_site=site))[0] == status


async def test_a_socket_of_the_web_is_closed() -> None:
    guard = Guard(PlainTextResponse("the realm"), token=TOKEN, names=[], public=[])
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await guard({"type": "websocket", "path": "/views", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close"}]
