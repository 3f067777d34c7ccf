"""Dispatch: checks each request and tunnel against the caller's rights and limits, then hands it to an engine.

An engine is what keeps the events: the embedded log (``iris.spark_bridge.server.operations``), or Kafka
(``iris.spark_bridge.kafka.operations``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, final
from weakref import WeakValueDictionary

import trio

from iris.kernel.config import Config
from iris.kernel.errors import IrisError, RemoteError, TunnelBroken
from iris.kernel.names import account_of
from iris.patterns.bridge_protocol import Ask, Kind, as_fields, read_request
from iris.patterns.messages import Request, Sender
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.protocol import Permit, RequestHandler, RequestHandlers
from iris.spark_bridge.server.permissions import Permissions, check_owner

TunnelHandler = Callable[[Tunnel, Any, Permit], Awaitable[None]]
"""Handler, called with the tunnel of a caller that may open it, its first message, and the right to have more."""
TunnelHandlers = Mapping[type[Ask[object]], TunnelHandler]


class Engine(Protocol):
    """Port of the dispatch to what keeps the events."""

    def requests(self) -> RequestHandlers:
        """Return what answers requests.  Called once; the handlers get what their callers may have."""
        ...

    def tunnels(self) -> TunnelHandlers:
        """Return what serves tunnels, likewise."""
        ...

    async def claim(self, kind: Kind, name: str, cluster: str) -> str:
        """Return the cluster to which a group or query belongs: the one given, if the name is new.

        Called before every request that names one.  It may wait for the disk.

        Raises:
            QuotaExceeded: that cluster, or all together, have too many.
        """
        ...

    def owner(self, kind: Kind, name: str) -> str | None:
        """Return the same of a name that is known; None if it is not.  Called often; does not block."""
        ...


@final
class _CallerPermit:
    """See ``Permit``."""

    def __init__(self, permissions: Permissions, engine: Engine, sender: Sender, asked: Ask[object]) -> None:
        self._permissions = permissions
        self._engine = engine
        self._sender = sender
        self._asked = asked

    def check(self) -> None:
        """See ``Permit``."""
        asked, sender = self._asked, self._sender
        self._permissions.check(asked.operation, sender)
        self._permissions.check_named(asked, sender)
        owned = asked.permission.owns
        name = None if owned is None else getattr(asked, owned)
        if owned is not None and name is not None:
            owner = self._engine.owner(owned, name)  # one page of memory: 10 us
            if owner is not None:
                check_owner(owned, name, owner=owner, caller=sender.cluster)


@final
class Dispatch:
    """The operations of one member.

    Args:
        engine: keeps the events.
        permissions: rights to call each operation.
        config: limits of what one cluster may have, and do at a time.
    """

    def __init__(self, engine: Engine, permissions: Permissions, config: Config) -> None:
        self._engine = engine
        self._permissions = permissions
        self._at_a_time = {
            "read": config.bridge_reads_per_owner,
            "stage": config.bridge_stagings_per_owner,
            "take": config.bridge_workers_per_owner,
            "consume": config.bridge_workers_per_owner,
        }
        self._turns: WeakValueDictionary[tuple[str, str], trio.Semaphore] = WeakValueDictionary()
        """Limits by tunnel's operation and cluster, as long as a tunnel is open: each needs memory or a file."""

    def service(self, cluster: str) -> Service:
        """Return the service for one of the clusters that the member joins."""
        service = Service(cluster)
        for kind, handler in self._engine.requests().items():
            service.request(kind.operation)(partial(self._answer, kind, handler))
        for kind, tunnel_handler in self._engine.tunnels().items():
            service.tunnel(kind.operation)(partial(self._serve, kind, tunnel_handler))
        return service

    async def _answer(self, kind: type[Ask[object]], handler: RequestHandler, request: Request) -> object:
        """Answer a request by its handler, once the caller's rights were checked."""
        try:
            self._permissions.check(kind.operation, request.sender)
            asked = read_request(kind, request.payload)
            await self._check_named(asked, request.sender)
            return as_fields(await handler(request.sender, asked))
        except (RemoteError, LogDamaged):
            raise
        except IrisError as error:
            # An answer: nothing has gone wrong here, so nothing is logged as if it had.
            raise RemoteError(type(error).__name__, str(error)) from None

    async def _serve(self, kind: type[Ask[object]], handler: TunnelHandler, tunnel: Tunnel) -> None:
        """Have a handler serve a tunnel that was opened here, likewise; its first message is the ``Ask``."""
        async with _answering(tunnel):
            self._permissions.check(kind.operation, tunnel.sender)
            account = account_of(tunnel.sender.cluster)
            turns = self._turns.setdefault((kind.operation, account), trio.Semaphore(self._at_a_time[kind.operation]))
            async with turns:
                try:
                    asked = read_request(kind, await tunnel.receive())
                except trio.EndOfChannel:
                    raise RemoteError("bad_request", "the tunnel ended before it said what it is for") from None
                await self._check_named(asked, tunnel.sender)
                permit = _CallerPermit(self._permissions, self._engine, tunnel.sender, asked)
                await handler(tunnel, asked, permit)

    async def _check_named(self, asked: Ask[object], sender: Sender) -> None:
        """Check the sender's rights to what it names.  A group or query that had no owner belongs to it from now on."""
        self._permissions.check_named(asked, sender)
        kind = asked.permission.owns
        name: str | None = None if kind is None else getattr(asked, kind)
        if kind is not None and name is not None:
            check_owner(kind, name, owner=await self._engine.claim(kind, name, sender.cluster), caller=sender.cluster)


@asynccontextmanager
async def _answering(tunnel: Tunnel) -> AsyncIterator[None]:
    """Send an error and the end of file to the other end of a tunnel."""
    try:
        yield
    except RemoteError as error:
        await tunnel.send({"error": error.code, "message": error.message})
    except ValueError as error:
        await tunnel.send({"error": "bad_request", "message": str(error)})
    except TunnelBroken:
        raise
    except IrisError as error:
        await tunnel.send({"error": type(error).__name__, "message": str(error)})
    await tunnel.send_eof()
