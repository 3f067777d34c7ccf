"""Watch on a bridge: its members and shards, and the offsets of each shard, kept up to date."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final, final

import trio
from msgspec import structs

from iris.spark_bridge.client.client import BridgeClient, one_error
from iris.spark_bridge.client.offsets import divide, number_of
from iris.spark_bridge.log import EVERYTHING, TopicFilter
from iris.spark_bridge.protocol import Extent

_SURVEY: Final = 10.0
"""Seconds after which members are looked for again, at the next question; so a new one is seen within some 20 s."""


@final
class BridgeWatch:
    """Watch on the shards of a bridge.

    Args:
        numbers: numbers of the shards to watch. None: all.
        wanted: topics whose events are looked for.
    """

    def __init__(self, numbers: Collection[int] | None, wanted: TopicFilter = EVERYTHING) -> None:
        self._numbers = numbers
        self._wanted = wanted
        self._passed: dict[str, int] = {}
        """Each shard's offset below which every wanted event was read: the range below is not looked at again."""
        self._expected: set[int] = set()
        self._extents: dict[str, dict[str, Extent]] = {}
        self._surveyed = -float("inf")

    @property
    def extents(self) -> dict[str, Extent]:
        """Extent of every watched shard, as of the last look."""
        return {
            shard: extent
            for extents in self._extents.values()
            for shard, extent in extents.items()
            if self._matters(shard)
        }

    def _matters(self, shard: str) -> bool:
        return self._numbers is None or number_of(shard) in self._numbers

    @property
    def passed(self) -> Mapping[str, int]:
        """Each shard's offset below which every wanted event had been read, as of the last look."""
        return self._passed

    def expect(self, shards: Iterable[str]) -> None:
        """Let ``look`` fail as long as one of these shards, which a query has read, is missing."""
        new = {number_of(shard) for shard in shards} - self._expected
        self._expected |= new
        if new - {number_of(shard) for shard in self.extents}:
            self._surveyed = -math.inf

    def address(self, shard: str) -> str | None:
        """Return the cluster that serves a shard; None if no member reported the shard."""
        return next((address for address, extents in self._extents.items() if shard in extents), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Clusters of the members."""
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

    async def wait(
        self, client: BridgeClient, known: Mapping[str, int], timeout: float, limit: int | None = None
    ) -> None:
        """Look again; if nothing wanted is behind ``known`` in any shard, wait for that, or ``timeout`` seconds.

        Args:
            client: asks.
            known: by shard, the offset to which the caller has come.
            timeout: seconds.
            limit: most events of all shards to read.

        Raises:
            BridgeUnreachable: see ``BridgeClient``.
        """
        if trio.current_time() > self._surveyed + _SURVEY:
            await self.look(client)
        members = self._asked(known)
        if len(members) == 1:
            ((address, asked),) = members.items()
            await self._wait_member(client, address, asked, timeout, limit)
        else:
            answered: set[str] = set()
            with one_error():
                async with trio.open_nursery() as nursery:

                    async def wait_member(address: str, asked: Mapping[str, int]) -> None:
                        if await self._wait_member(client, address, asked, timeout, limit):
                            nursery.cancel_scope.cancel()
                        answered.add(address)

                    for address, asked in members.items():
                        nursery.start_soon(wait_member, address, asked)
            for address in members.keys() - answered:
                await self._wait_member(client, address, members[address], 0, limit)
        if limit is not None:
            await self._divide(client, members, limit)

    async def count(self, client: BridgeClient, known: Mapping[str, int], most: int) -> int:
        """Return how many wanted events are behind ``known``, about ``most`` at most; nothing is noted.

        Raises:
            BridgeUnreachable: see ``BridgeClient``.
        """
        total = 0
        for address, asked in self._asked(known).items():
            found = await client.wait_offsets(address, asked, 0, self._wanted, most)
            for shard, extent in found.items():
                if self._matters(shard) and extent.has_news:
                    every = extent.next - max(asked.get(shard, 0), extent.earliest)
                    total += every if extent.count is None else extent.count
        return total

    def _asked(self, known: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return, by member, from which offset of each of its shards on there may be something to read."""
        members = {
            address: {
                shard: max(known.get(shard, 0), self._passed.get(shard, 0)) for shard in extents if self._matters(shard)
            }
            for address, extents in self._extents.items()
        }
        return {address: asked for address, asked in members.items() if asked}

    async def _wait_member(
        self, client: BridgeClient, address: str, asked: Mapping[str, int], timeout: float, limit: int | None
    ) -> bool:
        """Ask one member; return whether it has news."""
        found = await client.wait_offsets(address, asked, timeout, self._wanted, limit)
        self._extents[address] = found
        self._passed |= {shard: extent.first for shard, extent in found.items() if extent.first is not None}
        return found.keys() != asked.keys() or any(extent.has_news for extent in found.values())

    async def _divide(self, client: BridgeClient, members: Mapping[str, Mapping[str, int]], limit: int) -> None:
        """Let each shard be read as far as its share of the limit goes, in proportion to what waits in each."""
        waiting = {shard: extent.count or 0 for shard, extent in self.extents.items() if extent.has_news}
        shares = divide(waiting, limit)
        for address, asked in members.items():
            extents = self._extents[address]
            for shard, share in shares.items():
                if shard in extents and share < waiting[shard]:
                    if share:
                        again = await client.wait_offsets(address, asked, 0, self._wanted, share)
                        upto = again[shard].upto if shard in again else extents[shard].first
                    else:
                        upto = extents[shard].first
                    extents[shard] = structs.replace(extents[shard], count=share, upto=upto)
