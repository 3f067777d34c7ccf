"""Parents: whether a group has read what comes before the events of a new shard, where their keys were before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, final

import trio

from iris.kernel.errors import IrisError, NotAllowed
from iris.node.node import Node
from iris.spark_bridge.client import BridgeClient, number_of
from iris.spark_bridge.errors import DataLost
from iris.spark_bridge.protocol import FindPosition

_log: Final = logging.getLogger("iris")

_PAUSE: Final = 0.25
"""Seconds between looks at a group's progress."""


@final
class Parents:
    """Events in other shards that come before the shards of one member.

    Args:
        node: node of the member.
        bridge: name of the bridge.
        after: other shards by id, with the offset up to which their events come before.
        address: returns the cluster that serves a shard; empty: an operator made the bridge forget it.
    """

    def __init__(self, node: Node, bridge: str, after: Mapping[str, int], address: Callable[[int], str]) -> None:
        self._client = BridgeClient(node, bridge, patience=5.0)
        self._after = after
        self._address = address
        self._passed: set[str] = set()
        """Groups that have read all of it."""

    def has_read(self, group: str) -> bool:
        """Return True if a group is known to have read everything that comes before."""
        return not self._after or group in self._passed

    def forget(self, group: str) -> None:
        """Forget what is known of a group: it was dropped, and may begin again."""
        self._passed.discard(group)

    async def wait_read(self, group: str) -> None:
        """Wait until a group has read everything that comes before; a member that is away is waited for."""
        if self.has_read(group):
            return
        for shard, mark in self._after.items():
            while True:
                _, offset = await self._position(group, shard, mark)
                if offset >= mark:
                    break
                await trio.sleep(_PAUSE)
        self._passed.add(group)

    async def wait_begun(self, group: str) -> bool:
        """Wait until a group is known to all; return whether it began before the new shards did.

        Then it reads these from their first event on, wherever new groups begin.
        """
        return any([(await self._position(group, shard, mark))[0] <= mark for shard, mark in self._after.items()])

    async def _position(self, group: str, shard: str, mark: int) -> tuple[int, int]:
        """Return the offsets at which a group began in a shard and to which it has come, once it is known there."""
        while True:
            address = self._address(number_of(shard))
            if not address:
                return mark + 1, mark  # there is nothing any more that it could read
            try:
                found = await self._client.ask(address, FindPosition(group=group, shard=shard))
                if found is not None:
                    return found  # else its consumer, or worker, comes to that member as well
            except NotAllowed:
                raise
            except DataLost:
                return mark + 1, mark  # the log was lost, and what it had with it
            except IrisError as error:
                _log.debug("group %s: %s", group, error, extra={"cluster": address, "reason": str(error)})
            await trio.sleep(_PAUSE)
