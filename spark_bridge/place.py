"""The place of a member in its bridge: nobody else has its shards or its name, and all count the shards alike.

Two logs that both begin with shard 0 would each be whole in itself, and readers could not tell them apart; so one that
would be the second is refused.  It looks before it joins, so that it disturbs nobody.  Members that start at the same
moment, or on the two sides of a network that is cut, see each other later: then the one with the greater node id gives
way.  A member that was killed and is still listed does not answer, and so is not in the way of who takes its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, final

from iris._node import Node
from iris.kernel.errors import ConfigError, IrisError, NoSuchCluster, NotAllowed, RemoteError
from iris.kernel.ids import NodeId
from iris.spark_bridge.client import RemoteShard, shards_untrusted
from iris.spark_bridge.errors import BridgeUnreachable

_PATIENCE: Final = 2.0
"""Seconds that a member may take to answer; one that was killed costs so much."""

_ALIVE: Final = (NotAllowed, RemoteError)
"""What only a member that is there answers."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a member wants to have for itself."""

    node: Node
    bridge: str
    address: str
    shards: Sequence[int]
    of: int | None

    async def keep(self) -> None:
        """Give way, by an error, when a member turns up that has it too and comes first; until cancelled.

        Raises:
            ConfigError, BridgeUnreachable: see ``check``.
        """
        async with self.node.watch(self.bridge) as changes:
            async for change in changes:
                if change.kind == "joined" and change.member.node < self.node.id:
                    await self.check(change.member.node)

    async def check(self, against: NodeId | None = None) -> None:
        """Make sure that nobody else has it.

        Args:
            against: the only member that matters; None: all of them.

        Raises:
            ConfigError: somebody does; the message says who, and what to do.
            BridgeUnreachable: a member refuses to say what it has.
        """
        try:
            async with self.node.survey(self.bridge, None, operation="shards", timeout=_PATIENCE) as answers:
                async for answer in answers:
                    if answer.member != self.node.id and against in (None, answer.member):
                        self._compare(shards_untrusted(answer.payload), answer.member)
        except NoSuchCluster:
            return
        for member, error in answers.errors.items():
            if member != self.node.id and against in (None, member) and isinstance(error, _ALIVE):
                raise self._refused(member, error)

    def _refused(self, member: str, error: IrisError) -> BridgeUnreachable:
        return BridgeUnreachable(f"node {member} of bridge {self.bridge!r} does not say which shards it has: {error}")

    def _compare(self, others: Sequence[RemoteShard], member: str) -> None:
        for other in others:
            if other.number in self.shards:
                raise ConfigError(
                    f"shard {other.number} of bridge {self.bridge!r} is at node {member} already: give this one other "
                    "shards, or another name if it is a bridge of its own"
                )
        for other in others:
            if other.of != (self.of or 0):
                raise ConfigError(
                    f"node {member} of bridge {self.bridge!r} {_counting(other.of)}, and this one "
                    f"{_counting(self.of)}: start all members alike"
                )
            if self.bridge in (other.address, self.address):
                raise ConfigError(
                    f"bridge {self.bridge!r} has another member, node {member}, and one of the two has no name of its "
                    "own: start each with a different --member, or all with --of"
                )
            if other.address == self.address:
                raise ConfigError(
                    f"node {member} of bridge {self.bridge!r} is reached as {other.address!r} already: give each "
                    "member a name of its own"
                )


def _counting(of: int | None) -> str:
    return f"divides the events among {of} shards" if of else "stores all events of its topics"
