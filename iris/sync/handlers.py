"""Handlers of a service that are plain functions: each call has a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from iris.kernel.errors import ConfigError
from iris.patterns.messages import OwnNode
from iris.patterns.service import InThread, Service, handler_name, is_async
from iris.patterns.tunnel import Tunnel as TrioTunnel
from iris.sync.handles import Tunnel
from iris.sync.portal import Portal


def served_by_threads(service: Service, portal: Portal, node: OwnNode) -> Service:
    """Return a service for trio with these handlers in worker threads; raise ConfigError for an ``async def``.

    Their requests show ``node``.
    """
    served = service._adapted(
        request=lambda handler: partial(_handle, InThread(_checked(handler), "request").showing(node)),
        broadcast=lambda handler: partial(_handle, InThread(_checked(handler), "broadcast")),
        tunnel=lambda handler: partial(_handle_tunnel, InThread(_checked(handler), "tunnel"), portal),
    )
    for name, handler in service.requests.items():
        if isinstance(handler, InThread):
            served.requests[name] = handler.showing(node)
    return served


def _checked(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if is_async(handler):
        raise ConfigError(f"{handler_name(handler)} is an async def: with iris.sync use def, or join with iris.aio")
    return handler


async def _handle(in_thread: InThread, given: object) -> Any:
    try:
        return await in_thread(given)
    except (SystemExit, BaseExceptionGroup) as error:
        # As in every other thread it ends no program; to let it end the run would leave a program without its node.
        if _only_exits(error):
            raise RuntimeError("the handler raised SystemExit, which ends no program from its thread") from error
        raise


def _only_exits(error: BaseException) -> bool:
    """Return whether what was raised is, or has in it, SystemExit and no Ctrl-C."""
    if not isinstance(error, BaseExceptionGroup):
        return isinstance(error, SystemExit)
    group = cast("BaseExceptionGroup[BaseException]", error)
    return group.subgroup(SystemExit) is not None and group.subgroup(KeyboardInterrupt) is None


async def _handle_tunnel(in_thread: InThread, portal: Portal, inner: TrioTunnel) -> None:
    await _handle(in_thread, Tunnel(inner, portal))
