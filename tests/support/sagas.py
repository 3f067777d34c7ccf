"""Services whose steps can be undone, and nodes that run sagas over them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import iris
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network


def shop(name: str, calls: list[str], *, fails: bool = False, undo_fails: bool = False, **options: Any) -> iris.Service:
    service = iris.Service(name, outcomes=iris.Outcomes(rerun=True, **options))

    @service.request("do")
    async def do(request: iris.Request) -> str:
        calls.append(f"{name}.do {request.payload!s:.20}")
        if fails:
            raise iris.RemoteError("none_left", "not this week")
        return name

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"{name}.undo {request.payload!s:.20}")
        if undo_fails:
            raise iris.RemoteError("stuck", "it is gone")

    return service


@asynccontextmanager
async def open_shop(
    network: Network, directory: Path, service: iris.Service, **options: Any
) -> AsyncIterator[iris.Node]:
    """Open a bridge with ``options``, a node that serves ``service``, and one that runs sagas, which is yielded."""
    async with (
        network.open_node("bridge") as bridge,
        open_bridge(bridge, topics=["t.>"], directory=directory, **options),
        network.open_node(service.name) as served,
        served.join(service.name, service),
        network.open_node("desk") as desk,
    ):
        await served.wait_for("bridge")
        await desk.wait_for("bridge")
        await desk.wait_for(service.name)
        yield desk


@asynccontextmanager
async def open_shops(
    network: Network,
    directory: Path,
    calls: list[str],
    config: iris.Config | None = None,
    limits: iris.Config | None = None,
    **options: Any,
) -> AsyncIterator[tuple[iris.Node, iris.Node]]:
    """Open a bridge, three services, and two nodes that run sagas.

    Args:
        network: where they are.
        directory: of the bridge's log.
        calls: gets what the services do.
        config: of the first of the nodes.
        limits: configuration of the bridge's node.
        options: those of ``shop``, by its name.
    """
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(network.open_node("bridge", config=limits))
        await stack.enter_async_context(open_bridge(bridge, topics=["t.>"], directory=directory))
        served = await stack.enter_async_context(network.open_node("shops"))
        for name in ("stock", "money", "truck"):
            await stack.enter_async_context(served.join(name, shop(name, calls, **options.get(name, {}))))
        one = await stack.enter_async_context(network.open_node("desk", config=config))
        two = await stack.enter_async_context(network.open_node("desk"))
        for desk in (one, two):
            await desk.wait_for("truck")
            await desk.wait_for("bridge")
        yield one, two
