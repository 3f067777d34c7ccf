"""Newcomer: a member whose shards the bridge does not have yet, until the bridge has grown by them.

It takes over from the members of earlier generations, when all of these have begun the new one, which events of each
publisher they have stored.  So a publisher that sends one of them again, to the shard where its key has moved, finds it
known there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, final

import trio
from msgspec import Struct

from iris.kernel.errors import NoSuchCluster, RemoteProtocolError
from iris.kernel.tasks import run_in_thread
from iris.node.node import Node
from iris.patterns.bridge_protocol import ListShards, MemberShards, RemoteShard, as_fields, read_reply
from iris.patterns.messages import Request
from iris.patterns.service import Service
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.log import Store
from iris.spark_bridge.protocol import ReadWindows
from iris.spark_bridge.server.growth.division import Division

_PAUSE: Final = 0.2
"""Seconds between looks whether the bridge has grown."""

_PATIENCE: Final = 60.0
"""Seconds that a member of an earlier generation may be away while this one takes over; then it begins again."""


class Waiting(Struct):
    """The shards that a newcomer is to have, and how many the bridge has then."""

    shards: tuple[int, ...]
    of: int


def newcomers_cluster(bridge: str) -> str:
    """Return the cluster of the members that wait until a bridge has grown."""
    return f"{bridge}.newcomers"


async def grown_members(node: Node, bridge: str) -> Sequence[RemoteShard]:
    """Return the shards of reachable members that divide their events; those that do not answer are left out."""
    found: list[RemoteShard] = []
    with suppress(NoSuchCluster):
        async with node.survey(bridge, None, operation=ListShards.operation, timeout=2.0) as answers:
            async for answer in answers:
                with suppress(RemoteProtocolError):
                    found += [shard for shard in read_reply(MemberShards, answer.payload).shards if shard.grown]
    return found


def history_of(shards: Sequence[RemoteShard]) -> Sequence[int]:
    """Return how many shards a bridge had in each generation, as the member says that knows of the most."""
    return max((shard.grown for shard in shards), key=len, default=())


@final
class Newcomer:
    """A member that waits until the bridge has grown.

    Args:
        node: node of the member.
        bridge: name of the bridge.
        shards: numbers of the shards that it is to have.
        of: number of shards that the bridge is to have.
    """

    def __init__(self, node: Node, bridge: str, shards: Sequence[int], of: int) -> None:
        self._node = node
        self._bridge = bridge
        self._shards = shards
        self._of = of

    def parents(self, grown: Sequence[int]) -> int:
        """Return how many shards, the lowest ones, have the events that come before this member's; 0: none.

        Args:
            grown: number of shards of the bridge in each generation so far.
        """
        return max((of for of in grown if of <= min(self._shards)), default=0)

    async def wait(self, waiting: Callable[[str], None]) -> tuple[Sequence[int], Mapping[str, tuple[str, int]]]:
        """Wait until it is known how the bridge has grown, and all members of earlier generations have begun this one.

        A bridge begins with its shard 0: a member with a new log and without that shard waits for one that is no
        newcomer.  Otherwise members that wait for a growth, started again while the others are away, would begin a
        bridge of their own.

        Args:
            waiting: called with the reason, if it has to wait.

        Returns:
            How many shards the bridge had in each generation, and the address and the mark of each earlier shard.
        """
        service = Service(newcomers_cluster(self._bridge))
        service.request("new")(self._answer)
        reported = ""
        async with self._node.join(newcomers_cluster(self._bridge), service):
            while True:
                shards = await grown_members(self._node, self._bridge)
                grown = history_of(shards)
                before = self.parents(grown)
                if grown and not before:
                    return (grown if grown[-1] == self._of else (self._of,)), {}
                if not grown and 0 in self._shards:
                    return (self._of,), {}
                begun = {
                    shard.id: (shard.address, shard.marks[self._of])
                    for shard in shards
                    if shard.number < before and self._of in shard.marks
                }
                if before and len(begun) == before:
                    return grown[: [*grown].index(self._of) + 1], begun
                reason = self._reason(grown, before)
                if reason != reported:
                    reported = reason
                    waiting(reason)
                await trio.sleep(_PAUSE)

    def _reason(self, grown: Sequence[int], before: int) -> str:
        if not grown:
            return f"the log is new, and nobody else of bridge {self._bridge!r} is there: first start what has shard 0"
        if self._of in grown:
            return (
                f"bridge {self._bridge!r} grows, and not all of its {before} shards have said where they end: start "
                "the members that are away"
            )
        return (
            f"bridge {self._bridge!r} has {grown[-1]} shards, and this member begins when it has {self._of}: "
            f"'iris bridge grow {self._bridge} --of {self._of}'"
        )

    async def _answer(self, _request: Request) -> object:
        return as_fields(Waiting(shards=tuple(self._shards), of=self._of))

    async def import_former(
        self, store: Store, grown: Sequence[int], parents: Mapping[str, tuple[str, int]], *, now: Callable[[], int]
    ) -> Division:
        """Take over what the members of earlier generations have stored; from then on this log has its shards.

        Raises:
            BridgeUnreachable: one of them is away.
            StoreFull: there is no room.
        """
        client = BridgeClient(self._node, self._bridge, patience=_PATIENCE)
        for address in sorted({address for address, _ in parents.values()}):
            begin = "00" * 16
            while True:
                windows = await client.ask(address, ReadWindows(begin=begin))
                if not windows:
                    break
                await run_in_thread(partial(store.appender.merge_windows, windows, now=now()))
                following = int(windows[-1][0], 16) + 1
                if following >= 2**128:
                    break
                begin = f"{following:032x}"
        division = Division(grown=grown, after={shard: mark for shard, (_, mark) in parents.items()})
        await run_in_thread(store.put_division, division.encode())
        return division
