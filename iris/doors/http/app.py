"""The web application of the door: its addresses, and what is done for each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import iris.aio
from iris.doors.clients import Clients
from iris.doors.http import events, reading
from iris.doors.http.answering import HungUp, Stream, Write, answer, problem, while_connected
from iris.doors.http.tunnels import serve_tunnel
from iris.doors.problems import Problem, problem_of
from iris.doors.values import enveloped
from iris.kernel.errors import IrisError

MODULE: Final = Path(__file__).with_name("iris.js")
"""The module for pages and for Node.js, which the door hands out itself."""


def make_app(node: iris.aio.Node, clients: Clients, *, max_body: int, origins: Sequence[str]) -> Starlette:
    """Return the application.

    Args:
        node: whose place is lent.
        clients: who may use it.
        max_body: bytes of a request's body.
        origins: of pages elsewhere that may use it, as browsers name them; ``*`` for all.
    """
    door = _Door(node, clients, max_body)
    cors = Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"], max_age=3600
    )
    return Starlette(
        routes=[
            Route("/request/{cluster}", door.request, methods=["POST"]),
            Route("/survey/{cluster}", door.survey, methods=["POST"]),
            Route("/broadcast/{cluster}", door.broadcast, methods=["POST"]),
            Route("/publish/{topic:path}", door.publish, methods=["POST"]),
            Route("/subscribe", door.subscribe, methods=["GET"]),
            WebSocketRoute("/tunnel/{cluster}", door.tunnel),
            Route("/iris.js", _module, methods=["GET"]),
        ],
        middleware=[cors] if origins else [],
        exception_handlers={Problem: problem, IrisError: problem, HTTPException: _no_such_address, HungUp: _nobody},
    )


class _Door:
    """Asks, tells and follows for its clients."""

    def __init__(self, node: iris.aio.Node, clients: Clients, max_body: int) -> None:
        self._node = node
        self._clients = clients
        self._max_body = max_body

    async def request(self, http: Request) -> Response:
        """``POST /request/CLUSTER``: ask one member; the answer is its reply."""
        return answer(
            http,
            await self._call(
                http, self._node.request, operation=str, timeout=reading.number, wait=reading.number, key=str,
                idempotent=reading.flag, hedge=reading.number, priority=str, prefer_site=str,
            ),
        )  # fmt: skip

    async def broadcast(self, http: Request) -> Response:
        """``POST /broadcast/CLUSTER``: tell all members."""
        await self._call(http, self._node.broadcast, wait=reading.number)
        return Response(status_code=204)

    async def _call(self, http: Request, function: Callable[..., Awaitable[Any]], **known: Callable[[str], Any]) -> Any:
        client = reading.client_of(http, self._clients)
        cluster = http.path_params["cluster"]
        client.check("call", cluster)
        options = reading.options_of(http, **known)
        with client.calling():
            payload = await reading.payload_of(http, self._max_body)
            headers = reading.headers_of(http, client)
            return await while_connected(http.receive, _awaited(function(cluster, payload, headers=headers, **options)))

    async def survey(self, http: Request) -> Response:
        """``POST /survey/CLUSTER``: ask all members; each line of the answer is a reply, the last says who lacks."""
        client = reading.client_of(http, self._clients)
        cluster = http.path_params["cluster"]
        client.check("call", cluster)
        options = reading.options_of(
            http, operation=str, timeout=reading.number, wait=reading.number, count=int, quiet=reading.number,
            priority=str,
        )  # fmt: skip
        with client.calling():
            payload = await reading.payload_of(http, self._max_body)
        headers = reading.headers_of(http, client)

        async def write(begin: Callable[[], Awaitable[None]], send: Write) -> None:
            with client.calling():
                async with self._node.survey(cluster, payload, headers=headers, **options) as answers:
                    await begin()
                    async for one in answers:
                        await send(_line({"member": str(one.member), **enveloped(one.payload)}))
                missing = [str(node) for node in answers.missing]
                errors = {str(node): problem_of(error).document() for node, error in answers.errors.items()}
                await send(_line({"ended_by": answers.ended_by, "missing": missing, "errors": errors}))

        return Stream("application/x-ndjson", write, lambda told: _line({"error": told.document()}))

    async def publish(self, http: Request) -> Response:
        """``POST /publish/TOPIC``: send an event to all subscribers."""
        client = reading.client_of(http, self._clients)
        topic = http.path_params["topic"]
        client.check("publish", topic)
        options = reading.options_of(http, confirm=reading.flag, timeout=reading.number, key=str, retain=reading.flag)
        with client.calling():
            payload = await reading.payload_of(http, self._max_body)
            headers = reading.headers_of(http, client)
            publishing = self._node.publish(topic, payload, headers=headers, **options)
            await while_connected(http.receive, _awaited(publishing))
        return Response(status_code=204)

    async def subscribe(self, http: Request) -> Response:
        """``GET /subscribe?topic=PATTERN``: follow topics, by server-sent events."""
        client = reading.client_of(http, self._clients)
        patterns = http.query_params.getlist("topic")
        groups = http.query_params.getlist("group")
        others = set(http.query_params) - {"topic", "group"}
        if others or len(groups) > 1 or not 1 <= len(patterns) <= events.MAX_PATTERNS:
            told = f"say topic= once to {events.MAX_PATTERNS} times, group= at most once, and nothing else"
            raise Problem(400, "malformed", told)
        for pattern in patterns:
            client.check("subscribe", pattern)
        last = http.headers.get("last-event-id")
        return events.follow(self._node, client, patterns, groups[0] if groups else None, last)

    async def tunnel(self, socket: WebSocket) -> None:
        """``/tunnel/CLUSTER``: a tunnel to one member."""
        try:
            client = reading.client_of(socket, self._clients)
        except Problem as error:
            await socket.send_denial_response(problem(Request({**socket.scope, "type": "http"}), error))
            return
        await serve_tunnel(self._node, client, socket)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


async def _module(_: Request) -> Response:
    anywhere = {"access-control-allow-origin": "*", "cache-control": "max-age=300"}
    return FileResponse(MODULE, media_type="text/javascript", headers=anywhere)


def _no_such_address(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "no_such_address" if error.status_code == 404 else "refused"
    return problem(http, Problem(error.status_code, code, f"{http.method} {http.url.path:.200}: {error.detail}"))


def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)
