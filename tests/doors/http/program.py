"""Programs at the door for HTTP, as those in any language would be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed


class Program:
    """A program that has dialled the door by WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def next(self) -> dict[str, Any]:
        """Return the next message, a payload of bytes in it as such."""
        message = await self.socket.recv()
        if isinstance(message, str):
            return dict(json.loads(message))
        head, _, payload = message.partition(b"\n")
        return {**json.loads(head), "payload": payload}

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def ending(self) -> tuple[int, str]:
        """Read to the end; return the code and the reason of the close."""
        with pytest.raises(ConnectionClosed) as closed:
            await self._read_all()
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code, closed.value.rcvd.reason

    async def _read_all(self) -> None:
        while True:
            await self.socket.recv()
