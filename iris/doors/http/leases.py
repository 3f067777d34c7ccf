"""Programs that hold a lease of a bridge, by one WebSocket each.

The door renews the lease at the bridge for as long as the program asks it to.  A program that is cut off believes that
it has the lease until the time that it was told is over: so the door gives it back no sooner, unless the program has
said that it needs it no more.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

from starlette.websockets import WebSocket, WebSocketDisconnect

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.bridging import WAIT, Dialogue, DoorBridge, unknown
from iris.doors.http.encoding import Head
from iris.doors.http.reading import options_of
from iris.doors.http.tunnels import until_closed
from iris.doors.options import LEASE, TIMEOUT
from iris.doors.problems import Problem

PROTOCOL: Final = "iris.lease.1"
"""The WebSocket protocol of a program that holds a lease."""

_TTL: Final = 10.0
"""Seconds for which a lease is granted at a time, if the program does not say."""


async def hold_lease(bridge: DoorBridge, client: Client, socket: WebSocket) -> int:
    """Have a program hold the lease that it names, until one of both ends it.

    Returns the status of the problem by which it ended, or 0.
    """

    async def hold() -> None:
        options = options_of(socket, LEASE, TIMEOUT)
        cluster, _, name = str(socket.path_params["name"]).partition("/")
        client.check("lease", f"{cluster}/{name}")
        ttl, wait = options.get("ttl", _TTL), options.pop("wait", WAIT)
        async with client.streaming(), bridge.lent(client, wait):
            await bridge.converse(
                _Holding(client, socket, bridge.handle, name, ttl, cluster, float(options["timeout"]))
            )

    return await until_closed(socket, PROTOCOL, hold)


@final
class _Holding(Dialogue):
    """A program that holds a lease, or waits for it."""

    def __init__(
        self, client: Client, socket: WebSocket, bridge: iris.aio.Bridge, name: str, ttl: float, cluster: str,
        timeout: float,
    ) -> None:  # fmt: skip
        super().__init__(client, socket)
        self._entered = bridge.lease(name, ttl=ttl, timeout=timeout, cluster=cluster)
        self._ttl = ttl
        self._lease: iris.aio.Lease | None = None
        self._promised = 0.0
        """Time, on the loop's clock, until which the program believes that it has the lease."""
        self._due = asyncio.Event()
        """Set when the program has renewed it."""

    async def work(self) -> None:
        """See ``Dialogue``."""
        async with self._entered as self._lease:
            self.post({"type": "granted", "token": self._lease.token, "ttl": self._ttl})
            while True:
                self._due.clear()
                try:
                    async with asyncio.timeout(self._ttl):
                        await self._due.wait()
                except TimeoutError:
                    raise Problem(409, "lease_lost", f"it was not renewed for {self._ttl:g} s") from None

    def take(self, head: Head, payload: object) -> None:  # noqa: ARG002 -- no message here has one
        """See ``Dialogue``."""
        if head.get("type") == "release":
            self._promised = 0.0
            self.end()
        elif head.get("type") == "renew" and self._lease is not None:
            left = self._lease.left
            self._promised = asyncio.get_running_loop().time() + left
            self._due.set()
            self.post({"type": "renewed", "left": left})
        else:
            raise unknown(head)

    def drain(self) -> None:
        """See ``Dialogue``: it has to give the lease back."""
        self.post({"type": "drain"})

    async def receive(self) -> tuple[Head, object]:
        """See ``Dialogue``; of a program that is lost it waits until that believes no more that it has the lease."""
        try:
            return await super().receive()
        except WebSocketDisconnect:
            await asyncio.sleep(max(0.0, self._promised - asyncio.get_running_loop().time()))
            raise
