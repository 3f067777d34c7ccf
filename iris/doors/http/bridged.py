"""Addresses of the door at which programs use the bridge behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from iris.doors.clients import Client, Right
from iris.doors.http.bridging import DoorBridge
from iris.doors.http.jobs import take_jobs
from iris.doors.http.leases import hold_lease
from iris.doors.http.log import read_log
from iris.doors.options import PUT, QUEUE, Readers
from iris.patterns.pubsub.queues import check_queue


class Caller(Protocol):
    """Steps of the door for every address."""

    async def talk(self, socket: WebSocket, work: Callable[[Client], Awaitable[int]]) -> None:
        """Have a client that shows its token talk by a WebSocket; the work returns the status by which that ended."""
        ...

    async def call(
        self, http: Request, right: Right, function: Callable[..., Awaitable[object]], known: Readers
    ) -> Response:
        """Answer a request by what a function returns for its name, payload, headers and options; 204 for None."""
        ...


def routes_of(bridge: DoorBridge, door: Caller, max_message: int) -> list[BaseRoute]:
    """Return the addresses."""

    async def take(socket: WebSocket) -> None:
        """``/take/QUEUE``: a program that takes jobs."""
        await door.talk(socket, lambda client: take_jobs(bridge, client, socket, max_message))

    async def read(socket: WebSocket) -> None:
        """``/read``: a program that reads the log."""
        await door.talk(socket, lambda client: read_log(bridge, client, socket, max_message))

    async def lease(socket: WebSocket) -> None:
        """``/lease/CLUSTER/NAME``: a program that holds a lease."""
        await door.talk(socket, lambda client: hold_lease(bridge, client, socket))

    async def put_job(name: str, payload: object, **options: Any) -> None:
        async with bridge.handle.queue(name) as queue:
            await queue.put(payload, **options)

    async def put(http: Request) -> Response:
        """``POST /put/QUEUE``: put a job."""
        return await door.call(http, "publish", put_job, PUT)

    async def status(name: str, _: object, *, timeout: float, headers: object) -> object:  # noqa: ARG001
        check_queue(name, "name")
        found = await bridge.ask_all({"group": f"queue/{name}"}, "queue", timeout)
        counts = [{key: value for key, value in one.items() if isinstance(value, int)} for one in found]
        return {"queue": name, **{key: sum(one.get(key, 0) for one in counts) for key in counts[0]}}

    async def queue(http: Request) -> Response:
        """``GET /queue/QUEUE``: how many jobs wait, are in hand, done, dead."""
        return await door.call(http, "take", status, QUEUE)

    return [
        WebSocketRoute("/take/{name:path}", take),
        WebSocketRoute("/read", read),
        WebSocketRoute("/lease/{name:path}", lease),
        Route("/put/{name:path}", put, methods=["POST"]),
        Route("/queue/{name:path}", queue, methods=["GET"]),
    ]
