"""Guard: who may see the realm, and what browsers may do with it.  An ASGI application around another one.

- The token is behind the ``#`` of the address that the command prints, which browsers send to nobody.  The page keeps
  it for its own tab and shows it in a header.  It is no cookie: those are shared by all ports of a host, so that each
  server of another user that the browser visits at the same address would be given it.
- The page itself holds nothing of the realm, and is for everybody who calls this server by a name that it has.  A page
  of another site whose name is made to lead here (DNS rebinding) has that name in its requests: names are those that
  this server was told, and an address is no name.
- Browsers say from where a request comes.  One of another page gets nothing, and what changes something has to say so.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import Final, final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from iris.node.telemetry.host_names import host_of, is_address

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

ADMIT: Final = "admit"
"""Key in the state of a connection: the function to call when the token is shown on it."""


@final
class Guard:
    """Lets those in who show the token.

    Args:
        app: the application that is guarded.
        token: the secret, of letters, digits, - and _.
        names: names by which the server may be called, besides localhost and addresses.
        public: paths of the page itself, which show nothing of the realm.
    """

    def __init__(self, app: ASGIApp, *, token: str, names: Collection[str], public: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._names = {"localhost", *map(str.lower, names)}
        self._public = frozenset(public)

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
        reads = request.method in ("GET", "HEAD")
        if reads and request.url.path in self._public:
            return None
        if not self._is_shown(request.headers):
            return PlainTextResponse(_WHERE, 401)
        if not _is_same_origin(request.headers, named=not reads):
            return PlainTextResponse("this was not asked by the page of this server\n", 403)
        request.scope.get("state", {}).get(ADMIT, lambda: None)()
        return None

    def _is_shown(self, headers: Headers) -> bool:
        shown = headers.getlist("authorization")
        scheme, _, given = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        right = hmac.compare_digest(given.encode(errors="replace"), self._token)
        return scheme.lower() == "bearer" and right

    def _is_here(self, host: str) -> bool:
        name = host_of(host)
        return name in self._names or is_address(name)


def _is_same_origin(headers: Headers, *, named: bool) -> bool:
    """Return True if a request comes from the page; one that need not name its origin (``named``) may leave it out."""
    origins = headers.getlist("origin")
    if len(origins) != 1:
        return not (origins or named) and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    try:
        origin = urlsplit(origins[0]).netloc
    except ValueError:
        return False
    return origin == headers["host"] and headers.get("sec-fetch-site", "same-origin") == "same-origin"
