"""The application: the page, its stream of views, and the two things that it may do."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection
from importlib import resources
from typing import Final, final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from iris.cli.operators.dash.feed import MAX_PAGES, Feed
from iris.kernel.errors import AuthenticationError, IrisError
from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.node.operators import order_drain
from iris.security.identity import MAX_LIST

_logger: Final = logging.getLogger("iris")

DRAIN: Final = "drain"
REVOKE: Final = "revoke"

FILES: Final = {
    "/": ("dash.html", "text/html"),
    "/dash.css": ("dash.css", "text/css"),
    "/dash.js": ("dash.js", "text/javascript"),
    "/dash.svg": ("dash.svg", "image/svg+xml"),
}
"""The page itself, which holds nothing of the realm."""

_MAX_ORDER: Final = 4096
"""Limit in bytes on the request by which a page drains a member."""


def make_app(node: Node, feed: Feed, allowed: Collection[str]) -> Starlette:
    """Return the application.

    Args:
        node: the node that acts for the pages.
        feed: the source of its views.
        allowed: actions that pages may do: ``drain``, ``revoke``, or none.
    """
    actions = _Actions(node)
    possible = {DRAIN: actions.drain, REVOKE: actions.revoke}
    routes = [Route(path, _file(*file), methods=["GET"]) for path, file in FILES.items()]
    routes += [Route(f"/{name}", possible[name], methods=["POST"]) for name in allowed]

    async def stream(_: Request) -> Response:
        return ViewStream(feed, sorted(allowed))

    routes.append(Route("/views", stream, methods=["GET"]))
    return Starlette(
        routes=routes,
        exception_handlers={IrisError: _refuse, HTTPException: _no_such_address, ClientDisconnect: _nobody},
    )


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = resources.files(__package__ or "").joinpath(name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


@final
class ViewStream(Response):
    """Views for one page, for as long as it reads."""

    def __init__(self, feed: Feed, allowed: Collection[str]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._feed = feed
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._feed.looking() as may:
            if not may:
                full = f"{MAX_PAGES} pages are open: close one\n"
                await PlainTextResponse(full, 503, {"retry-after": "5"})(scope, receive, send)
                return

            async def write() -> None:
                async def send_piece(piece: bytes) -> None:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})

                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                number = self._feed.number
                await send_piece(self._feed.history(self._allowed))
                while True:
                    number, message = await self._feed.next(number)
                    await send_piece(message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()


@final
class _Actions:
    """The actions of pages, as this node: the realm gives it the right, and members log the node that ordered it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def drain(self, request: Request) -> Response:
        """``POST /drain``: have one member take no new work, or work again."""
        match _object(await _body(request, _MAX_ORDER)):
            case {"node": str(member), "cluster": str(cluster), "draining": bool(draining)}:
                await order_drain(self._node, NodeId(member), cluster, draining=draining)
                return Response(status_code=204)
            case _:
                raise HTTPException(400, "say node, cluster and draining")

    async def revoke(self, request: Request) -> Response:
        """``POST /revoke``: put a revocation list in force, which the realm's owner has signed elsewhere."""
        newer = await self._node.revoke(await _body(request, MAX_LIST))
        number = self._node._parts.revoking.revocations.number
        if newer:
            _logger.warning("revocation list %d is in force, by the page", number, extra={"count": number})
        return JSONResponse({"newer": newer, "number": number})


async def _body(request: Request, most: int) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, f"at most {most} bytes are taken")
    return body


def _object(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def _refuse(_: Request, error: Exception) -> Response:
    status = 400 if isinstance(error, AuthenticationError) else 502
    return PlainTextResponse(f"{error}\n", status)


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # it is not sent: the connection is gone


async def _no_such_address(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)
