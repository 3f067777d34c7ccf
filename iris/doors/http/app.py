"""The web application of the door: its addresses, and what is done for each."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

import iris.aio
from iris.doors.clients import Client, Clients, Right
from iris.doors.http import asyncapi, events, openapi, reading
from iris.doors.http.answering import (
    Begin,
    CallAnswer,
    Hold,
    HungUp,
    Stream,
    Write,
    answer,
    refusal,
    send_held,
    while_connected,
)
from iris.doors.http.bridged import routes_of
from iris.doors.http.bridging import DoorBridge
from iris.doors.http.limits import HttpLimits, HttpStatistics
from iris.doors.http.serving import serve_program
from iris.doors.http.tunnels import serve_tunnel
from iris.doors.options import BROADCAST, PUBLISH, REQUEST, SURVEY, Readers, request_of
from iris.doors.problems import Problem, problem_of
from iris.doors.programs import ServedClusters
from iris.doors.values import enveloped, to_line
from iris.kernel.errors import IrisError

MODULE: Final = Path(__file__).with_name("iris.js")
"""The module for pages and for Node.js, which the door hands out itself."""

TYPES: Final = MODULE.with_name("iris.d.ts")
"""Types of it for TypeScript and editors, by hand."""

_MODULE_TEXT: Final = MODULE.read_bytes()
_TYPES_TEXT: Final = TYPES.read_bytes()
"""Kept, and handed out as wholes: a range of a file is of no use here, and many of them in one request are dear."""

_SURVEY_TIMEOUT: Final = 1.0
"""Seconds that a survey takes if the client does not say."""


def make_app(
    node: iris.aio.Node,
    clients: Clients,
    clusters: ServedClusters,
    bridge: DoorBridge,
    limits: HttpLimits,
    counted: HttpStatistics,
    origins: Sequence[str],
) -> Starlette:
    """Return the application.

    Args:
        node: node whose place is lent.
        clients: clients that may use it.
        clusters: clusters that it serves for programs.
        bridge: bridge whose jobs, log and leases it lends.
        limits: limits of all of them together.
        counted: counters of what is done.
        origins: origins of pages elsewhere that may use it, as browsers name them; ``*`` for all.
    """
    door = _Door(node, clients, clusters, limits, counted)
    app = Starlette(
        routes=[
            # a path, as names of other realms have a slash: acme/databases
            Route("/request/{name:path}", door.request, methods=["POST"]),
            Route("/survey/{name:path}", door.survey, methods=["POST"]),
            Route("/broadcast/{name:path}", door.broadcast, methods=["POST"]),
            Route("/publish/{name:path}", door.publish, methods=["POST"]),
            Route("/subscribe", door.subscribe, methods=["GET"]),
            WebSocketRoute("/tunnel/{name:path}", door.tunnel),
            WebSocketRoute("/serve/{name:path}", door.serve),
            *routes_of(bridge, door, limits.body),
            WebSocketRoute("/{name:path}", door.no_such_tunnel),
            Route("/iris.js", partial(_file, _MODULE_TEXT, "text/javascript"), methods=["GET"]),
            Route("/iris.d.ts", partial(_file, _TYPES_TEXT, "application/typescript"), methods=["GET"]),
            Route("/asyncapi.json", partial(_document, asyncapi.document), methods=["GET"]),
            Route("/openapi.json", partial(_document, openapi.document), methods=["GET"]),
        ],
        middleware=_middleware(origins),
        exception_handlers={
            Problem: door.problem,
            IrisError: door.problem,
            HTTPException: door.no_such_address,
            HungUp: _nobody,
            ClientDisconnect: _nobody,
        },
    )
    for route in app.routes:
        if isinstance(route, Route) and route.methods is not None:
            route.methods.discard("HEAD")  # Starlette has it do what GET does, and a stream without bytes has no end
    app.router.redirect_slashes = False  # an address is one of those above, or none
    return app


def make_full_app(origins: Sequence[str]) -> Starlette:
    """Return the application that tells everybody that the door is full; pages may read it, too."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        detail = "this door has as many connections as it may: close some that are idle, or try again"
        await refusal(Problem(503, "too_many_connections", detail, retry_after=1))(scope, receive, send)

    return Starlette(routes=[Mount("/", refuse)], middleware=_middleware(origins))


def _middleware(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            max_age=3600,
        )
    ]  # fmt: skip


class _Door:
    """Asks, tells and follows for its clients."""

    def __init__(
        self,
        node: iris.aio.Node,
        clients: Clients,
        clusters: ServedClusters,
        limits: HttpLimits,
        counted: HttpStatistics,
    ) -> None:
        self._node = node
        self._clients = clients
        self._clusters = clusters
        self._limits = limits
        self._counted = counted

    async def request(self, http: Request) -> Response:
        """``POST /request/CLUSTER``: ask one member; the answer is its reply."""
        client = await reading.client_of(http, self._clients)
        key = reading.key_of(http, client)

        async def ask(cluster: str, payload: object, *, headers: Mapping[str, str], **options: Any) -> Any:
            return await self._node.request(cluster, payload, headers=headers, **request_of(options, key))

        return self._call(http, client, "call", ask, REQUEST, lambda reply: answer(http, reply))

    async def broadcast(self, http: Request) -> Response:
        """``POST /broadcast/CLUSTER``: tell all members."""
        return await self.call(http, "call", self._node.broadcast, BROADCAST)

    async def publish(self, http: Request) -> Response:
        """``POST /publish/TOPIC``: send an event to all subscribers."""
        client = await reading.client_of(http, self._clients)
        reading.check_no_key(http)
        return self._call(http, client, "publish", partial(client.publish, self._node), PUBLISH, _done)

    async def call(
        self, http: Request, right: Right, function: Callable[..., Awaitable[object]], known: Readers
    ) -> Response:
        """See ``Caller``."""
        client = await reading.client_of(http, self._clients)
        reading.check_no_key(http)
        return self._call(
            http, client, right, function, known, lambda reply: _done(reply) if reply is None else answer(http, reply)
        )

    def _call(
        self,
        http: Request,
        client: Client,
        right: Right,
        function: Callable[..., Awaitable[object]],
        known: Readers,
        reply: Callable[[object], Response],
    ) -> Response:
        name = http.path_params["name"]
        client.check(right, name)
        client.check_rate()
        options = reading.options_of(http, known)
        headers = reading.headers_of(http, client)

        async def work(hold: Hold) -> Response:
            payload = await reading.payload_of(http, client, self._limits, hold)
            client.check(right, name)  # the body took its time
            calling = function(name, payload, headers=headers, **options)
            replied = await while_connected(http.receive, _awaited(calling))
            await client.processor.wait()  # of many answers that are here, others wait for one only
            response = reply(replied)
            self._counted.answered += 1
            return response

        return CallAnswer(client, work)

    async def survey(self, http: Request) -> Response:
        """``POST /survey/CLUSTER``: ask all members; each line of the answer is a reply, the last says who lacks."""
        client = await reading.client_of(http, self._clients)
        reading.check_no_key(http)
        cluster = http.path_params["name"]
        client.check("call", cluster)
        client.check_rate()
        options = reading.options_of(http, SURVEY, _SURVEY_TIMEOUT)
        headers = reading.headers_of(http, client)

        async def work(hold: Hold) -> Response:
            payload = await reading.payload_of(http, client, self._limits, hold)
            client.check("call", cluster)

            async def write(begin: Begin, send: Write) -> None:
                async with self._node.survey(cluster, payload, headers=headers, **options) as answers:
                    await begin()
                    lines = (_line({"member": str(one.member), **enveloped(one.payload)}) async for one in answers)
                    await send_held(client, lines, send)
                missing = [str(node) for node in answers.missing]
                errors = {str(node): problem_of(error).document() for node, error in answers.errors.items()}
                last: dict[str, object] = {
                    "ended_by": answers.ended_by, "expected": answers.expected, "missing": missing, "errors": errors,
                }  # fmt: skip
                await send(_line(last))
                self._counted.answered += 1

            return Stream("application/x-ndjson", write, self._end(lambda told: _line({"error": told.document()})))

        return CallAnswer(client, work)

    async def subscribe(self, http: Request) -> Response:
        """``GET /subscribe?topic=PATTERN``: follow topics, by server-sent events."""
        client = await reading.client_of(http, self._clients)
        patterns = http.query_params.getlist("topic")
        groups = http.query_params.getlist("group")
        others = set(http.query_params) - {"topic", "group"}
        if others or len(groups) > 1 or not patterns:
            raise Problem(400, "malformed", "say topic= at least once, group= at most once, and nothing else")
        client.check_rate()
        follower = events.Follower(self._node, client, self._limits, self._counted)
        group = groups[0] if groups else None
        follow = follower.follow(patterns, group, came_back="last-event-id" in http.headers)
        return Stream("text/event-stream", follow, self._end(events.end_of))

    async def tunnel(self, socket: WebSocket) -> None:
        """``/tunnel/CLUSTER``: a tunnel to one member."""
        await self.talk(socket, lambda client: serve_tunnel(self._node, client, socket, self._counted))

    async def serve(self, socket: WebSocket) -> None:
        """``/serve/CLUSTER``: a program that serves a cluster."""
        limit, counted = self._limits.body, self._counted
        await self.talk(socket, lambda client: serve_program(self._clusters, client, socket, limit, counted))

    async def talk(self, socket: WebSocket, work: Callable[[Client], Awaitable[int]]) -> None:
        """See ``Caller``."""
        try:
            client = await reading.client_of(socket, self._clients)
        except Problem as error:
            await socket.send_denial_response(self._refuse(error))
            return
        status = await work(client)
        if status:
            self._counted.refused[status] += 1

    # Starlette would call handlers that are plain functions in a thread each, of which there may be none.

    async def problem(self, _: Request, error: Exception) -> Response:
        """Tell a client why it does not get what it has asked for."""
        problem = problem_of(error) if isinstance(error, IrisError) else error
        assert isinstance(problem, Problem)
        return self._refuse(problem)

    def _refuse(self, problem: Problem) -> Response:
        self._counted.refused[problem.status] += 1
        return refusal(problem)

    async def no_such_tunnel(self, socket: WebSocket) -> None:
        """Tell a client that there is no WebSocket at an address."""
        detail = f"there is no WebSocket at {socket.url.path:.200}: see docs/reference/doors"
        await socket.send_denial_response(self._refuse(Problem(404, "no_such_address", detail)))

    async def no_such_address(self, http: Request, error: Exception) -> Response:
        """Tell a client that there is nothing at an address, or nothing for its method."""
        assert isinstance(error, HTTPException)
        code = "no_such_address" if error.status_code == 404 else "no_such_method"
        detail = f"{http.method} {http.url.path:.200}: {error.detail}"
        answer = self._refuse(Problem(error.status_code, code, detail))
        answer.headers.update(error.headers or {})  # which methods there are
        return answer

    def _end(self, encode: Callable[[Problem], bytes]) -> Callable[[Problem], bytes]:
        def end(problem: Problem) -> bytes:
            self._counted.refused[problem.status] += 1
            return encode(problem)

        return end


async def _awaited(work: Awaitable[object]) -> object:
    return await work


def _done(_: object) -> Response:
    return Response(status_code=204)


def _line(value: dict[str, object]) -> bytes:
    return to_line(value) + b"\n"


_ANYWHERE: Final = {"access-control-allow-origin": "*", "cache-control": "max-age=300"}


async def _file(text: bytes, media_type: str, _: Request) -> Response:
    return Response(text, media_type=media_type, headers=_ANYWHERE)


async def _document(make: Callable[[], object], _: Request) -> Response:
    return Response(json.dumps(make()), media_type="application/json", headers=_ANYWHERE)


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # it is not sent: the connection is gone
