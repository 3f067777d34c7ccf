"""Tunnels by WebSocket: ordered messages both ways, throttled by credits.

A page cannot stop a WebSocket from delivering, so each side lends the other a number of messages, and more as it has
used them up.  A binary message is a payload of bytes.  A text message is JSON: ``{"payload": ...}``, an envelope, is a
payload as well; ``{"credit": N}`` lends N messages more; ``{"eof": true}`` says that no payload comes any more.  When
both have said that, the door closes with 1000.  Every problem closes with 4000 and its status: 4404, no such cluster.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Final

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
    await socket.accept(PROTOCOL if PROTOCOL in socket.scope["subprotocols"] else None)
    status, reason = 0, ""
    with suppress(WebSocketDisconnect):
        try:
            options = options_of(socket, TUNNEL)
            cluster = str(socket.path_params["name"])
            client.check("call", cluster)
            headers = headers_of(socket, client)
            async with client.streaming(), node.open_tunnel(cluster, headers=headers, **options) as tunnel:
                await _Carrier(client, socket, tunnel, counted).run()
        except (Problem, IrisError) as error:
            problem = problem_of(error) if isinstance(error, IrisError) else error
            status = problem.status
            reason = f"{problem.code}: {problem.detail}".encode()[:_MAX_REASON].decode(errors="ignore")
        await socket.close(4000 + status if status else 1000, reason)
    return status


class _Carrier:
    """Carries messages between a WebSocket and a tunnel."""

    def __init__(self, client: Client, socket: WebSocket, tunnel: iris.aio.Tunnel, counted: HttpStatistics) -> None:
        self._client = client
        self._counted = counted
        self._socket = socket
        self._tunnel = tunnel
        self._credit = 0
        self._more = asyncio.Event()
        self._arrived: asyncio.Queue[tuple[object, int] | None] = asyncio.Queue()
        """Queue of what the client has sent: payloads and their bytes, LENT at most, and None for the end."""
        self._lent = LENT
        self._held = 0
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Carry until both sides have ended.

        Raises:
            WebSocketDisconnect: the client is gone.
            Problem: it has not kept to the rules.
            IrisError: the tunnel broke.
        """
        try:
            await self._send_text({"credit": LENT})
            metered = self._client.processor.metered
            await first_of(metered(self._receive()), self._carry_in(), metered(self._carry_out()))
        finally:
            self._client.release(self._held)

    async def _carry_out(self) -> None:
        """Carry what the member says, for as long as the client lends, until both have said the end."""
        async for payload in self._tunnel:
            while not self._credit:
                self._more.clear()
                await self._more.wait()
            self._credit -= 1
            if isinstance(payload, bytes):
                await self._socket.send_bytes(payload)
            else:
                await self._send_text(enveloped(payload))
        await self._send_text({"eof": True})
        await self._ended.wait()

    async def _carry_in(self) -> None:
        """Carry what the client says to the member, and lend as much again."""
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
                await self._send_text({"credit": used})
                used = 0
        await self._tunnel.send_eof()
        self._ended.set()
        await asyncio.Event().wait()  # the other tasks end it all

    async def _receive(self) -> None:
        """Take what the client sends, whether or not the member does: so its end is seen at once."""
        finished = False
        while True:
            message = await self._socket.receive()
            await self._client.processor.rest()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            payload: object = message.get("bytes")
            size = len(message["text"] if payload is None else message["bytes"])
            if payload is None:
                said = from_json(message["text"])
                if is_map(said) and said.keys() == {"credit"}:
                    self._add_credit(said["credit"])
                    continue
                if said == {"eof": True}:
                    if finished:
                        raise Problem(400, "malformed", "the end was said before")
                    finished = True
                    self._arrived.put_nowait(None)
                    continue
                payload = opened(said)
                size *= AS_VALUE
            if finished:
                raise Problem(400, "malformed", "a payload after the end")
            if not self._lent:
                raise Problem(429, "no_credit", f"more than the {LENT} messages that were lent")
            self._client.hold(size)
            self._held += size
            self._lent -= 1
            self._arrived.put_nowait((payload, size))

    def _add_credit(self, credit: object) -> None:
        if not isinstance(credit, int) or isinstance(credit, bool) or not 0 < credit <= MAX_CREDIT - self._credit:
            raise Problem(400, "malformed", f"credit is a whole number from 1; {MAX_CREDIT} may be lent at a time")
        self._credit += credit
        self._more.set()

    async def _send_text(self, said: dict[str, object]) -> None:
        await self._socket.send_text(json.dumps(said, ensure_ascii=False, separators=(",", ":")))
