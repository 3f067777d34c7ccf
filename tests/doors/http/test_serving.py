"""The HTTP door: programs that serve a cluster by WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import iris
from iris.doors import grant, withdraw
from tests.support.doors import Place, Run

RIGHTS = {"call": (">",), "serve": ("orders", "others")}


class Program:
    """A program that serves, as a client in any language would be."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def next(self) -> dict[str, Any]:
        """Return the next message, a payload of bytes in it as such."""
        message = await self.socket.recv()
        if isinstance(message, str):
            return json.loads(message)
        head, _, payload = message.partition(b"\n")
        return {**json.loads(head), "payload": payload}

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def send_bytes(self, payload: bytes, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}).encode() + b"\n" + payload)

    async def ending(self) -> tuple[int, str]:
        """Read to the end; return the code and the reason of the close."""
        try:
            while True:
                await self.socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code, closed.rcvd.reason


@asynccontextmanager
async def dialled(place: Place, path: str = "orders", token: str | None = None) -> AsyncGenerator[Program]:
    url = f"ws://{place.address[0]}:{place.address[1]}/serve/{path}"
    bearer = {"authorization": f"Bearer {token or place.token}"}
    async with connect(url, additional_headers=bearer, subprotocols=["iris.serve.1"], max_size=None) as socket:  # type: ignore[list-item]
        yield Program(socket)


@asynccontextmanager
async def serving(place: Place, path: str = "orders", token: str | None = None) -> AsyncGenerator[Program]:
    async with dialled(place, path, token) as program:
        ready = await program.next()
        assert ready["type"] == "ready"
        await place.member.wait_for(path.partition("?")[0])
        yield program


async def serve_all(program: Program, seconds: float = 0.0) -> None:
    """Answer every request by its payload, each after a while."""

    async def answer(asked: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)
        await program.send("reply", id=asked["id"], payload=asked["payload"])

    async with asyncio.TaskGroup() as tasks:
        while True:
            asked = await program.next()
            if asked["type"] == "request":
                tasks.create_task(answer(asked))


def test_a_program_answers_requests(run: Run) -> None:
    async def work(place: Place) -> None:
        async with serving(place) as program:
            asking = asyncio.create_task(
                place.member.request("orders", {"tea": 2}, operation="price", headers={"trace": "7"}, timeout=3)
            )
            asked = await program.next()
            assert 2 < asked.pop("timeout") <= 3
            assert asked == {
                "type": "request", "id": 1, "sender": "greeters", "node": str(place.member.id),
                "headers": {"trace": "7"}, "operation": "price", "payload": {"tea": 2},
            }  # fmt: skip
            await program.send("reply", id=1, payload=[3.5])
            assert await asking == [3.5]
            asking = asyncio.create_task(place.member.request("orders", b"\n\x00"))
            asked = await program.next()
            assert (asked["payload"], "operation" in asked) == (b"\n\x00", False)
            await program.send_bytes(b"\n\n", "reply", id=asked["id"])
            assert await asking == b"\n\n"

    run(work, rights=RIGHTS)
