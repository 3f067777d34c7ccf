"""Parents: whether a group has read what comes before the events of a new shard, where their keys were before."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol, final

import trio

from iris.kernel.errors import IrisError, NotAllowed
from iris.spark_bridge.client import BridgeClient, number_of
from iris.spark_bridge.errors import DataLost
from iris.spark_bridge.protocol import FindPosition
from iris.spark_bridge.server.growth.division import Division

_log: Final = logging.getLogger("iris")

_PAUSE: Final = 0.25
"""Seconds between looks at a group's progress."""


class KnownShards(Protocol):
    """Port to what a member knows of the bridge's shards."""

    @property
    def known(self) -> Mapping[int, str]:
        """Cluster that serves each shard, by number; an operator may make the bridge forget one."""
        ...


@final
class Parents:
    """Events in other shards that come before the shards of one member.

    Args:
        client: asks the members that have these shards.
        division: how the member's log is divided from others. None: it has all events of its topics.
    """

    def __init__(self, client: BridgeClient, division: Division | None) -> None:
        self.division: Final = division
        self._client = client
        self._after: Mapping[str, int] = {} if division is None else division.after
        """Other shards by id, with the offset up to which their events come before."""
        self._passed: set[str] = set()
        """Groups that have read all of it."""

    def has_read(self, group: str) -> bool:
        """Return True if a group is known to have read everything that comes before."""
        return not self._after or group in self._passed

    def forget(self, group: str) -> None:
        """Forget what is known of a group: it was dropped, and may begin again."""
        self._passed.discard(group)

    async def wait_read(self, group: str, shards: KnownShards) -> None:
        """Wait until a group has read everything that comes before; a member that is away is waited for."""
        if self.has_read(group):
            return
        for shard, mark in self._after.items():
            while True:
                _, offset = await self._position(group, shard, mark, shards)
                if offset >= mark:
                    break
                await trio.sleep(_PAUSE)
        self._passed.add(group)

    async def wait_begun(self, group: str, shards: KnownShards) -> bool:
        """Wait until a group is known to all; return whether it began before the new shards did.

        Then it reads these from their first event on, wherever new groups begin.
        """
        positions = [await self._position(group, shard, mark, shards) for shard, mark in self._after.items()]
        return any(start <= mark for (start, _), mark in zip(positions, self._after.values(), strict=True))

    async def _position(self, group: str, shard: str, mark: int, shards: KnownShards) -> tuple[int, int]:
        """Return the offsets at which a group began in a shard and to which it has come, once it is known there."""
        while True:
            address = shards.known.get(number_of(shard))
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
