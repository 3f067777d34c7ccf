"""Programs that hold a lease of a bridge, by one WebSocket each.

The door renews the lease at the bridge for as long as the program asks it to.  A program that is cut off, or loses its
right, believes that it has the lease until the time that it was told is over: so the door gives it back no sooner,
unless the program has said that it needs it no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, final

from starlette.websockets import WebSocket

import iris.aio
from iris.doors.clients import Client
from iris.doors.http.answering import first_of
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

_UNREAD: Final = 64
"""Answers that wait for a program to read them."""


async def hold_lease(bridge: DoorBridge, client: Client, socket: WebSocket) -> int:
    """Have a program hold the lease that it names, until one of both ends it.

    Returns the status of the problem by which it ended, or 0.
    """

    async def hold() -> None:
        options = options_of(socket, LEASE, TIMEOUT)
        cluster, _, name = str(socket.path_params["name"]).partition("/")
        client.check("lease", f"{cluster}/{name}")
        client.check_rate()
        ttl, wait = options.get("ttl", _TTL), options.pop("wait", WAIT)
        open_lease = partial(bridge.handle.lease, name, ttl=ttl, timeout=float(options["timeout"]), cluster=cluster)
        async with client.streaming():
            await bridge.converse(_Holding(client, socket, bridge, open_lease, ttl, wait))

    return await until_closed(socket, PROTOCOL, hold)


@final
class _Holding(Dialogue):
    """A program that holds a lease, or waits for it.

    A task of the bridge keeps the lease, which goes on when the program, or its token's right, is gone.
    """

    def __init__(
        self, client: Client, socket: WebSocket, bridge: DoorBridge,
        open_lease: Callable[[], AbstractAsyncContextManager[iris.aio.Lease]], ttl: float, wait: float,
    ) -> None:  # fmt: skip
        super().__init__(client, socket)
        self._bridge = bridge
        self._open_lease = open_lease
        self._ttl = ttl
        self._wait = wait
        self._lease: iris.aio.Lease | None = None
        self._promised = 0.0
        """Time, on the loop's clock, until which the program believes that it has the lease."""
        self._granted = asyncio.Event()
        self._due = asyncio.Event()
        """Set when the program has renewed it."""
        self._left = asyncio.Event()

    async def work(self) -> None:
        """See ``Dialogue``."""
        keeping = self._bridge.keep(self._keep())
        try:
            await first_of(_end_of(keeping), self._look_at_renewals())
        finally:
            self._left.set()
            if not self._promised:
                keeping.cancel()
                await asyncio.wait([keeping])

    async def _keep(self) -> None:
        """Keep the lease until the program has gone, and believes no more that it has it."""
        async with self._bridge.lent(self.client, self._wait), self._open_lease() as self._lease:
            self._granted.set()
            await self._left.wait()
            await asyncio.sleep(max(0.0, self._promised - asyncio.get_running_loop().time()))

    async def _look_at_renewals(self) -> None:
        await self._granted.wait()
        assert self._lease is not None
        self.post({"type": "granted", "token": self._lease.token, "ttl": self._ttl})
        while True:
            self._due.clear()
            try:
                async with asyncio.timeout(self._ttl):
                    await self._due.wait()
            except TimeoutError:
                raise Problem(409, "lease_lost", f"it was not renewed for {self._ttl:g} s") from None

    def handle(self, head: Head, payload: object) -> None:  # noqa: ARG002 -- no message here has one
        """See ``Dialogue``."""
        if head.get("type") == "release":
            self._promised = 0.0
            self.end()
        elif head.get("type") == "renew" and self._granted.is_set():
            assert self._lease is not None
            if self.unread >= _UNREAD:
                raise Problem(429, "too_fast", f"{_UNREAD} answers to renew that were not read")
            left = self._lease.left
            self._promised = asyncio.get_running_loop().time() + left
            self._due.set()
            self.post({"type": "renewed", "left": left})
        else:
            raise unknown(head)

    def drain(self) -> None:
        """See ``Dialogue``: it has to give the lease back."""
        self.post({"type": "drain"})


async def _end_of(keeping: asyncio.Task[None]) -> None:
    await asyncio.shield(keeping)
