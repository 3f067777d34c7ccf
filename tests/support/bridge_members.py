"""Members of a bridge on a network in memory, each on a node of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from iris.kernel.config import Config
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network


@asynccontextmanager
async def open_member(
    network: Network,
    directory: Path,
    *,
    topics: Sequence[str] = (">",),
    host: str | None = None,
    config: Config | None = None,
    **options: Any,
) -> AsyncIterator[BridgeMember]:
    """Open a node of cluster ``bridge`` that keeps its log in ``directory``; ``options`` are those of the bridge."""
    async with (
        network.open_node("bridge", host=host, config=config) as node,
        open_bridge(node, topics=topics, directory=directory, **options) as member,
    ):
        yield member


@asynccontextmanager
async def open_members(
    network: Network, directory: Path, names: Sequence[str], *, of: int | None = None, **options: Any
) -> AsyncIterator[None]:
    """Open members by these names; each has one shard, in the order of the names, and a directory of its own."""
    async with AsyncExitStack() as stack:
        for shard, name in enumerate(names):
            place = directory / str(shard)
            member = open_member(network, place, shards=[shard], of=of, member=name, **options)
            await stack.enter_async_context(member)
        yield
