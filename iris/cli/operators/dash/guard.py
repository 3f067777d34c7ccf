"""Guard: who may see the page, and what browsers may do with it.  An ASGI application around another one.

- The token comes once in the address that the command prints, and from then on in a cookie that scripts cannot read and
  that no other site's requests carry.  Cookies are shared by all ports of a host, so the name has the port in it.
- A page of another site whose name is made to lead here (DNS rebinding) has that name in its requests: names are those
  that this server was told, and an address is no name.
- What changes something has to come from this page: browsers say from where it comes.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from typing import Final, final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_WHERE: Final = "open the address that 'iris dash' has printed: its token is missing or of another run\n"


@final
class Guard:
    """Lets those in who show the token.

    Args:
        app: what is guarded.
        token: the secret, of letters, digits, - and _.
        port: where it listens.
        secure: whether browsers come by TLS.
        names: by which the server may be called, besides localhost and addresses.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, secure: bool, names: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = f"iris_dash_{port}"
        self._secure = secure
        self._names = {"localhost", *map(str.lower, names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        await answer(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return what is answered to a request that goes no further; None lets it in."""
        host = request.headers.getlist("host")
        if len(host) != 1 or not self._is_here(host[0]):
            return PlainTextResponse("this server has another name: say --name if it is this one, too\n", 421)
        given = request.query_params.getlist("token")
        if given and request.method == "GET" and request.url.path == "/":
            return self._welcome() if len(given) == 1 and self._is_token(given[0]) else PlainTextResponse(_WHERE, 401)
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return PlainTextResponse(_WHERE, 401)
        if request.method not in ("GET", "HEAD") and not _is_same_origin(request.headers):
            return PlainTextResponse("this was not asked by the page of this server\n", 403)
        return None

    def _welcome(self) -> Response:
        """Put the token where no history, log or page sees it."""
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self._cookie, self._token.decode(), httponly=True, samesite="strict", secure=self._secure, path="/"
        )
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self._token)

    def _is_here(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_same_origin(headers: Headers) -> bool:
    try:
        origin = urlsplit(headers.get("origin", "")).netloc
    except ValueError:
        return False
    return origin == headers["host"] and headers.get("sec-fetch-site", "same-origin") == "same-origin"
