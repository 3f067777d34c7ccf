"""Clients, and a realm for them to ask."""

from __future__ import annotations

from typing import Any

import trio

import iris
from iris.testing import inspect
from tests.support.stages import Stage


def naming(host: str, cluster: str = "store") -> iris.Service:
    """Return a service that answers with the name of its host."""
    service = iris.Service(cluster)

    @service.request
    async def reply(_: iris.Request) -> object:
        await trio.sleep(0.002)
        return host

    @service.tunnel
    async def echo(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    return service


async def open_realm(stage: Stage, *hosts: str) -> dict[str, iris.Node]:
    """Bring up members of ``store``, and a member of something else that clients find first."""
    door = await stage.member(naming("door", "door"), "door")
    return {host: await stage.member(naming(host), host) for host in hosts} | {"door": door}


async def open_client(stage: Stage, name: str = "shop", **options: Any) -> iris.Node:
    return await stage.node(name, client=True, seeds=["door"], **options)


def linked(node: iris.Node) -> set[str]:
    """Return the clusters that the linked nodes of one speak for."""
    return {peer.cluster for peer in inspect(node).peers.values()}
