"""Watch on a bridge: its members and shards, and the offsets of each shard, kept up to date."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final, final

import trio

from iris.spark_bridge.client.client import BridgeClient, one_error
from iris.spark_bridge.client.offsets import Extent, number_of

_SURVEY: Final = 10.0
"""Seconds after which members are looked for again, at the next question; so a new one is seen within some 20 s."""


@final
class BridgeWatch:
    """Watch on the shards of a bridge.

    Args:
        numbers: of the shards that matter; None: all.
    """

    def __init__(self, numbers: Collection[int] | None) -> None:
        self._numbers = numbers
        self._expected: set[int] = set()
        self._extents: dict[str, dict[str, Extent]] = {}
        self._surveyed = -float("inf")

    @property
    def extents(self) -> dict[str, Extent]:
        """What every shard held when it was last looked at."""
        return {
            shard: extent
            for extents in self._extents.values()
            for shard, extent in extents.items()
            if self._numbers is None or number_of(shard) in self._numbers
        }

    def expect(self, shards: Iterable[str]) -> None:
        """Let ``look`` fail as long as one of these is not there: a query has read from it."""
        new = {number_of(shard) for shard in shards} - self._expected
        self._expected |= new
        if new - {number_of(shard) for shard in self.extents}:
            self._surveyed = -math.inf

    def address(self, shard: str) -> str | None:
        """Return the cluster at which a shard is found; None if it is not known."""
        return next((address for address, extents in self._extents.items() if shard in extents), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The clusters of the members."""
        return tuple(self._extents)

    async def look(self, client: BridgeClient) -> None:
        """Ask for the present members and the extents of their shards.

        Raises:
            BridgeUnreachable: see ``BridgeClient``; also if a shard is not there that the bridge is known to have, or
                that is expected.
        """
        shards = await client.shards(self._expected)
        self._extents = {}
        for shard in shards:
            extent = Extent(earliest=shard.earliest, next=shard.next, gap=shard.gap)
            self._extents.setdefault(shard.address, {})[shard.id] = extent
        self._surveyed = trio.current_time()

    async def wait(self, client: BridgeClient, known: Mapping[str, int], timeout: float) -> None:
        """Look again; if no shard's next offset differs from ``known``, wait for that, or ``timeout`` seconds.

        Raises:
            BridgeUnreachable: see ``BridgeClient``.
        """
        if trio.current_time() > self._surveyed + _SURVEY:
            await self.look(client)
        members = list(self._extents.items())
        if len(members) == 1:
            await self._wait_member(client, *members[0], known, timeout, trio.CancelScope())
            return
        with one_error():
            async with trio.open_nursery() as nursery:
                for address, extents in members:
                    nursery.start_soon(
                        self._wait_member, client, address, extents, known, timeout, nursery.cancel_scope
                    )

    async def _wait_member(
        self,
        client: BridgeClient,
        address: str,
        before: Mapping[str, Extent],
        known: Mapping[str, int],
        timeout: float,
        others: trio.CancelScope,
    ) -> None:
        wanted = {shard: known.get(shard, 0) for shard in before}
        found = await client.wait_offsets(address, wanted, timeout)
        self._extents[address] = found
        if {shard: extent.next for shard, extent in self._extents[address].items()} != wanted:
            others.cancel()
