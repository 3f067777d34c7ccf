"""Tunnels by WebSocket: ordered messages both ways, throttled by credits.

A page cannot stop a WebSocket from delivering, so each side lends the other a number of messages, and more as it has
used them up.  A binary message is a payload of bytes.  A text message is JSON: ``{"payload": ...}``, an envelope, is a
payload as well; ``{"credit": N}`` lends N messages more; ``{"eof": true}`` says that no payload comes any more.  When
both have said that, the door closes with 1000.  Every problem closes with 4000 and its status: 4404, no such cluster.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, Protocol, final

from starlette.websockets import WebSocket, WebSocketDisconnect

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.answering import first_of
from iris.doors.http.limits import HttpStatistics
from iris.doors.http.reading import headers_of, options_of
from iris.doors.options import TUNNEL
from iris.doors.problems import Problem, problem_of
from iris.doors.values import AS_VALUE, enveloped, from_json, opened
from iris.kernel.errors import IrisError
from iris.kernel.shapes import is_map

PROTOCOL: Final = "iris.tunnel.1"
"""The WebSocket protocol of a tunnel."""

LENT: Final = 16
"""Messages that the door lends its client at first."""

MAX_CREDIT: Final = 1 << 20
"""Messages that a client may lend the door at most."""

_MAX_REASON: Final = 123
"""Size limit of the reason in a WebSocket's close, in bytes."""


async def serve_tunnel(node: iris.aio.Node, client: Client, socket: WebSocket, counted: HttpStatistics) -> int:
    """Connect a client to a member of the cluster that it names, until one of them ends it.

    Returns the status of the problem by which it ended, or 0.
    """

    async def talk() -> None:
        options = options_of(socket, TUNNEL)
        cluster = str(socket.path_params["name"])
        client.check("call", cluster)
        client.check_rate()
        headers = headers_of(socket, client)
        async with client.streaming(), node.open_tunnel(cluster, headers=headers, **options) as tunnel:
            await _Conversation(client, socket, tunnel, counted).run()

    return await until_closed(socket, PROTOCOL, talk)


async def until_closed(socket: WebSocket, protocol: str, work: Callable[[], Awaitable[None]]) -> int:
    """Accept a WebSocket, do its work, and close it; return the status of the problem by which it ended, or 0."""
    await socket.accept(protocol if protocol in socket.scope["subprotocols"] else None)
    status, reason = 0, ""
    with suppress(WebSocketDisconnect):
        try:
            await work()
        except (Problem, IrisError) as error:
            problem = problem_of(error) if isinstance(error, IrisError) else error
            status = problem.status
            reason = f"{problem.code}: {problem.detail}".encode()[:_MAX_REASON].decode(errors="ignore")
        with suppress(RuntimeError):  # raised for one of which a write has found that it is gone
            await socket.close(4000 + status if status else 1000, reason)
    return status


class Outlet(Protocol):
    """The way from a carrier to its client.  Each method waits until it has room for more."""

    async def send_payload(self, payload: object) -> None:
        """Send a payload."""
        ...

    async def send_credit(self, credit: int) -> None:
        """Lend so many messages more."""
        ...

    async def send_eof(self) -> None:
        """Say that no payload comes any more."""
        ...


@final
class Carrier:
    """Carries payloads between a client and a tunnel, throttled by credits.

    Args:
        client: the client; what waits for the tunnel is counted among its bytes.
        tunnel: the tunnel.
        outlet: the way to the client.
        counted: counts payloads that waited as the client's token has a rate.
    """

    def __init__(self, client: Client, tunnel: iris.aio.Tunnel, outlet: Outlet, counted: HttpStatistics) -> None:
        self._client = client
        self._counted = counted
        self._tunnel = tunnel
        self._outlet = outlet
        self._credit = 0
        self._more = asyncio.Event()
        self._arrived: asyncio.Queue[tuple[object, int] | None] = asyncio.Queue()
        """Queue of what the client has sent: payloads and their bytes, LENT at most, and None for the end."""
        self._lent = LENT
        self._held = 0
        self._finished = False
        self._ended = asyncio.Event()

    async def run(self, *others: Coroutine[object, object, None]) -> None:
        """Carry until both sides have ended, or one of ``others`` does.

        Raises:
            IrisError: the tunnel broke.
        """
        try:
            await first_of(*others, self._carry_in(), self._client.processor.metered(self._carry_out()))
        finally:
            self._client.release(self._held)
            self._held = 0

    def accept(self, payload: object, size: int) -> None:
        """Take a payload of the client, of so many bytes; raise Problem if it may not send one."""
        self._check_finished("a payload after the end")
        if not self._lent:
            raise Problem(429, "no_credit", f"more than the {LENT} messages that were lent")
        self._client.hold(size)
        self._held += size
        self._lent -= 1
        self._arrived.put_nowait((payload, size))

    def finish(self) -> None:
        """Take it that the client sends no more; raise Problem if it has said so before."""
        self._check_finished("the end was said before")
        self._finished = True
        self._arrived.put_nowait(None)

    def add_credit(self, credit: object) -> None:
        """Take what the client lends; raise Problem if that is no number, or too many."""
        if not isinstance(credit, int) or isinstance(credit, bool) or not 0 < credit <= MAX_CREDIT - self._credit:
            raise Problem(400, "malformed", f"credit is a whole number from 1; {MAX_CREDIT} may be lent at a time")
        self._credit += credit
        self._more.set()

    def _check_finished(self, detail: str) -> None:
        if self._finished:
            raise Problem(400, "malformed", detail)

    async def _carry_out(self) -> None:
        """Carry what the other end says, for as long as the client lends, until both have said the end."""
        async for payload in self._tunnel:
            while not self._credit:
                self._more.clear()
                await self._more.wait()
            self._credit -= 1
            await self._outlet.send_payload(payload)
        await self._outlet.send_eof()
        await self._ended.wait()

    async def _carry_in(self) -> None:
        """Carry what the client says to the other end, and lend as much again."""
        used = 0
        while (arrived := await self._arrived.get()) is not None:
            payload, size = arrived
            paused = await self._client.pace(size if isinstance(payload, bytes) else size // AS_VALUE)
            self._counted.paused += paused
            await self._tunnel.send(payload)
            self._client.release(size)
            self._held -= size
            used += 1
            if used >= LENT // 2:
                self._lent += used
                await self._outlet.send_credit(used)
                used = 0
        await self._tunnel.send_eof()
        self._ended.set()
        await asyncio.Event().wait()  # the other tasks end it all


@final
class _Conversation:
    """A WebSocket that is a tunnel."""

    def __init__(self, client: Client, socket: WebSocket, tunnel: iris.aio.Tunnel, counted: HttpStatistics) -> None:
        self._client = client
        self._socket = socket
        self._carrier = Carrier(client, tunnel, self, counted)

    async def run(self) -> None:
        """Carry until both sides have ended.

        Raises:
            WebSocketDisconnect: the client is gone.
            Problem: it has not kept to the rules.
            IrisError: the tunnel broke.
        """
        await self.send_credit(LENT)
        await self._carrier.run(self._client.processor.metered(self._receive()))

    async def send_payload(self, payload: object) -> None:
        """See ``Outlet``."""
        if isinstance(payload, bytes):
            await self._socket.send_bytes(payload)
        else:
            await self._send_text(enveloped(payload))

    async def send_credit(self, credit: int) -> None:
        """See ``Outlet``."""
        await self._send_text({"credit": credit})

    async def send_eof(self) -> None:
        """See ``Outlet``."""
        await self._send_text({"eof": True})

    async def _receive(self) -> None:
        """Take what the client sends, whether or not the member does: so its end is seen at once."""
        while True:
            message = await self._socket.receive()
            await self._client.processor.rest()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            payload: object = message.get("bytes")
            if payload is not None:
                self._carrier.accept(payload, len(message["bytes"]))
                continue
            said = from_json(message["text"])
            if is_map(said) and said.keys() == {"credit"}:
                self._carrier.add_credit(said["credit"])
            elif said == {"eof": True}:
                self._carrier.finish()
            else:
                self._carrier.accept(opened(said), len(message["text"]) * AS_VALUE)

    async def _send_text(self, said: dict[str, object]) -> None:
        await self._socket.send_text(json.dumps(said, ensure_ascii=False, separators=(",", ":")))
