"""Parents: whether a group has read what comes before the events of a new shard, where their keys were before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

import trio

from iris.kernel.errors import IrisError, NotAllowed
from iris.node.node import Node
from iris.spark_bridge.client import BridgeClient, number_of

_PAUSE: Final = 0.25
"""Seconds between looks how far a group is."""


@final
class Parents:
    """What comes before the shards of one member.

    Args:
        node: of the member.
        bridge: name of the bridge.
        after: offsets of shards by id, up to which they come before.
        address: returns where a shard is found; empty: the bridge was told to forget it.
    """

    def __init__(self, node: Node, bridge: str, after: Mapping[str, int], address: Callable[[int], str]) -> None:
        self._client = BridgeClient(node, bridge, patience=5.0)
        self._after = after
        self._address = address
        self._passed: set[str] = set()
        """Groups that have read all of it."""

    def has_read(self, group: str) -> bool:
        """Tell whether a group is known to have read everything that comes before."""
        return not self._after or group in self._passed

    async def wait_read(self, group: str) -> None:
        """Wait until a group has read everything that comes before; a member that is away is waited for."""
        if self.has_read(group):
            return
        for shard, mark in self._after.items():
            while not await self._is_behind(group, shard, mark):  # noqa: ASYNC110 -- another member knows
                await trio.sleep(_PAUSE)
        self._passed.add(group)

    async def _is_behind(self, group: str, shard: str, mark: int) -> bool:
        address = self._address(number_of(shard))
        if not address or not mark:
            return True
        try:
            position = await self._client.ask(address, "position", {"group": group, "shard": shard})
        except NotAllowed:
            raise
        except IrisError:  # away: it comes back
            return False
        return type(position) is int and position >= mark
