"""Shard claim: a member's exclusive right to its shards and its name, in a bridge whose members count the shards alike.

Two logs that both begin with shard 0 would each be complete, and readers could not distinguish them.  So a member
that would be the second is refused.  It checks before it joins, so that it disturbs nobody.  Members that start at the
same moment, or on the two sides of a network that is cut, see each other later: then the one with the greater node id
gives way.  A member that was killed and is still listed does not answer, and so does not block its successor.

A member whose log was promoted comes first, whenever it comes: its term is the greater one.

A member remembers the members that it meets: a reader that comes while one is away learns so from the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

import trio

from iris.cluster.membership import Change
from iris.kernel.errors import (
    ConfigError,
    IrisError,
    NoSuchCluster,
    NotAllowed,
    RemoteError,
    RemoteProtocolError,
)
from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.patterns.bridge_protocol import ListShards, MemberShards, RemoteShard, read_reply
from iris.spark_bridge.copies import deposed
from iris.spark_bridge.errors import BridgeUnreachable, StoreFull

_PATIENCE: Final = 2.0
"""Seconds to wait for a member's answer; one that was killed costs so much."""

_AGAIN: Final = 1.0
"""Seconds between questions to a member that has turned up and does not answer."""

_ALIVE: Final = (NotAllowed, RemoteError)
"""Errors that only a running member answers with."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Others:
    """Shards and members of the answers to a survey.

    Attributes:
        shards: numbers of their shards, with the cluster at which each is found.
        members: those that have answered.
    """

    shards: Mapping[int, str]
    members: frozenset[NodeId]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardClaim:
    """Claim of a member: its shards and its name in the bridge."""

    node: Node
    bridge: str
    address: str
    shards: Sequence[int]
    of: int
    """Number of shards of the bridge if its members divide the events; else 0."""
    term: int = 1
    """Term of this member's log, see ``iris.spark_bridge.copies``."""

    async def keep(self, note: Callable[[Mapping[int, str]], Awaitable[None]]) -> None:
        """Give way, by an error, when a member joins that has the same claim and comes first; until cancelled.

        Args:
            note: called with the shards of members that join, and where they are found; again after StoreFull.

        Raises:
            ConfigError, BridgeUnreachable: see ``check``.
        """
        unmet: set[NodeId] = set()
        async with self.node.watch(self.bridge) as changes:
            while True:
                with trio.move_on_after(_AGAIN if unmet else math.inf):
                    change = await anext(changes)
                    unmet = self._update(unmet, change)
                if unmet:
                    found = await self._ask(unmet)
                    with suppress(StoreFull):  # they are met again in a second
                        await note(found.shards)
                        unmet -= found.members

    def _update(self, unmet: set[NodeId], change: Change) -> set[NodeId]:
        match change.kind:
            case "joined" if change.member.node != self.node.id:
                return unmet | {change.member.node}
            case "left" | "lost":
                return unmet - {change.member.node}
            case _:
                return unmet

    async def check(self) -> Mapping[int, str]:
        """Check that no other member has the claim; return the shards of the others, and their clusters.

        Raises:
            ConfigError: somebody does; the message says who, and what to do.
            BridgeUnreachable: a member refuses to say what it has.
        """
        return (await self._ask(None)).shards

    async def _ask(self, members: Collection[NodeId] | None) -> _Others:
        """Ask members for their claims; compare all of them, or those that come before this one.

        Args:
            members: members to ask, beside which this one has its place already. None: all, and it has none yet.

        Raises:
            ConfigError, BridgeUnreachable: see ``check``.
        """
        shards: dict[int, str] = {}
        answered: set[NodeId] = set()

        def matters(member: NodeId) -> bool:
            return member != self.node.id and (members is None or member in members)

        def comes_first(member: NodeId) -> bool:
            return members is None or member < self.node.id

        try:
            async with self.node.survey(
                self.bridge, None, operation=ListShards.operation, timeout=_PATIENCE
            ) as answers:
                async for answer in answers:
                    if matters(answer.member):
                        try:
                            others = read_reply(MemberShards, answer.payload).shards
                        except RemoteProtocolError as nonsense:
                            if comes_first(answer.member):
                                raise self._refused(answer.member, nonsense) from None
                            continue
                        self._compare_terms(others)
                        if comes_first(answer.member):
                            self._compare([one for one in others if not self._replaces(one)], answer.member)
                        shards |= {shard.number: shard.address for shard in others if shard.number not in self.shards}
                        answered.add(answer.member)
        except NoSuchCluster:
            return _Others(shards=shards, members=frozenset(answered))
        for member, error in answers.errors.items():
            if matters(member) and comes_first(member) and isinstance(error, _ALIVE):
                raise self._refused(member, error)
        return _Others(shards=shards, members=frozenset(answered))

    def _refused(self, member: str, error: IrisError) -> BridgeUnreachable:
        return BridgeUnreachable(f"node {member} of bridge {self.bridge!r} does not say which shards it has: {error}")

    def _compare_terms(self, others: Sequence[RemoteShard]) -> None:
        for other in others:
            if other.number in self.shards and other.term > self.term:
                raise deposed(self.bridge, min(self.shards), other.term, self.term)

    def _replaces(self, other: RemoteShard) -> bool:
        """Return whether a member has a shard of this one, and is to give way: it was the primary before."""
        return other.number in self.shards and other.term < self.term

    def _compare(self, others: Sequence[RemoteShard], member: str) -> None:
        for other in others:
            if other.number in self.shards:
                raise ConfigError(
                    f"shard {other.number} of bridge {self.bridge!r} is at node {member} already: give this one other "
                    "shards, or another --name if it is a bridge of its own"
                )
        for other in others:
            if other.of != self.of:
                raise ConfigError(
                    f"node {member} of bridge {self.bridge!r} {_counting(other.of)}, and this one "
                    f"{_counting(self.of)}: start all members alike, or this one with another --name, as a bridge of "
                    "its own"
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


def _counting(of: int) -> str:
    return f"divides the events among {of} shards" if of else "stores all events of its topics"
