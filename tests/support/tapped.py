"""A tap on the connections between real nodes: what goes over them is recorded, and can be made to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import trio

from iris.kernel.config import Config
from iris.kernel.tasks import HostLoop
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.port import (
    ConnectionObserver,
    ConnectionUser,
    IncomingConnection,
    OutgoingConnection,
    Permit,
)


@final
class Wire:
    """A tap on every connection to the listeners that it stands before."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.recorded: list[bytearray] = []
        self.stalls = False
        """True to stop what goes to the listeners in the middle of the next chunk, with the connections open."""
        self.hung_up_at: list[float] = []
        """Times at which listeners ended connections that had stalled."""
        self._nursery = nursery

    async def tap(self, url: str) -> str:
        """Return a URL that leads to ``url`` by way of the tap."""
        port = int(url.rpartition(":")[2])
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def serve(near: trio.SocketStream) -> None:
            far = await trio.open_tcp_stream("127.0.0.1", port)
            async with near, far, trio.open_nursery() as nursery:
                nursery.start_soon(self._copy, near, far, nursery.cancel_scope, True)
                nursery.start_soon(self._copy, far, near, nursery.cancel_scope, False)

        self._nursery.start_soon(trio.serve_listeners, serve, [listener])
        return f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope, inwards: bool
    ) -> None:
        record = bytearray()
        self.recorded.append(record)
        try:
            async for chunk in source:
                record += chunk
                if self.stalls and inwards:
                    await target.send_all(chunk[: len(chunk) // 2])
                    await trio.sleep_forever()
                await target.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if self.stalls and not inwards:
            self.hung_up_at.append(trio.current_time())
        scope.cancel()

    @property
    def size(self) -> int:
        return sum(map(len, self.recorded))


@final
class TappedTransport:
    """The real network; others reach this node through the tap only."""

    def __init__(self, config: Config, wire: Wire) -> None:
        self._real = NetworkTransport(config)
        self._wire = wire

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        return tuple([await self._wire.tap(url) for url in await self._real.listen(urls)])

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> OutgoingConnection:
        return await self._real.dial(url, user, permit)

    async def accept_reverse(self, token: str, user: ConnectionUser) -> OutgoingConnection:
        return await self._real.accept_reverse(token, user)

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> IncomingConnection:
        return self._real.dial_reverse(url, token, user)

    def receive_nowait(self) -> bytes | memoryview | None:
        return self._real.receive_nowait()

    async def wait_readable(self) -> None:
        await self._real.wait_readable()

    def receive_in(self, host: HostLoop, readable: Callable[[], None]) -> bool:
        return self._real.receive_in(host, readable)

    def interrupt(self) -> None:
        self._real.interrupt()

    def observe(self, observer: ConnectionObserver) -> None:
        self._real.observe(observer)

    @property
    def held(self) -> int:
        return self._real.held

    def source(self) -> int:
        return self._real.source()

    def hang_up(self, connection: int) -> None:
        self._real.hang_up(connection)

    def close(self) -> None:
        self._real.close()
