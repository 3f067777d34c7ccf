"""Members of a bridge, as users of its log without Spark find them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final, cast, final

import trio

from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    NotAllowed,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
)
from iris.kernel.names import NodeId
from iris.patterns.bridge_protocol import ListShards, MemberShards, read_reply
from iris.patterns.pubsub.queues.bridge_user import BridgeUser

TRANSIENT: Final = (DeliveryError, RemoteProtocolError)
"""Errors of an attempt to reach a bridge that may work the next time, but for those that are ``is_final``."""

_PASSING: Final = frozenset({"BridgeUnreachable", "NotCopied", "StoreFull", "TierUnreachable"})
"""Codes of errors of a bridge that are over when its disk has room, or its copies or its tier are back."""

_FRESH: Final = 5.0
"""Seconds for which it is known where the members are, as long as the same nodes are members of the bridge."""

_TIMEOUT: Final = 2.0
"""Seconds that the members have to say which shards they have."""


def is_final(error: BaseException) -> bool:
    """Return whether an error of a bridge comes again however often one asks."""
    if isinstance(error, RemoteError):
        return error.code not in _PASSING
    return isinstance(error, NotAllowed | ConfigError)


@final
class BridgeMembers:
    """The members of one bridge.

    Args:
        bridge: cluster of the bridge.
        node: asks them.
    """

    def __init__(self, bridge: str, node: BridgeUser) -> None:
        self.bridge: Final = bridge
        self.node: Final = node
        self.owners: Final[dict[int, str]] = {}
        """Clusters of the members by number of their shards, as reported last: a member may have got another name."""
        self.found: Collection[str] = ()
        """Clusters at which the members were found when they were looked for last."""
        self._asked: frozenset[NodeId] = frozenset()
        """Nodes that were asked then."""
        self._asked_at = -math.inf

    def __repr__(self) -> str:
        return f"<BridgeMembers {self.bridge}>"

    async def addresses(self) -> list[str]:
        """Return the clusters at which the members are found, those that are away as well, sorted.

        The members are asked, unless they have answered a moment ago.

        Raises:
            NoSuchCluster: there is none.
            ConfigError: each of them stores all events of its topics, so that each job would be done several times.
            RequestTimeout: not every one that is there answered.
            RemoteProtocolError: one answered something else.
            DeliveryError: as ``Node.request``.
        """
        now, asked = trio.current_time(), frozenset([member.node for member in self.node.members(self.bridge)])
        if asked == self._asked and now < self._asked_at + _FRESH:
            return list(self.found)
        found: dict[str, int] = {}
        survey = self.node.survey(self.bridge, None, operation=ListShards.operation, timeout=_TIMEOUT)
        async with survey as answers:
            async for answer in answers:
                listed = read_reply(MemberShards, answer.payload)
                found |= members_of(listed)
                self.owners.update((shard.number, shard.address) for shard in listed.shards)
        for error in answers.errors.values():
            raise error
        if answers.missing:
            raise RequestTimeout(f"not every member of bridge {self.bridge!r} has answered")
        if len(found) > 1 and not all(found.values()):
            raise ConfigError(
                f"each member of bridge {self.bridge!r} stores all events of its topics: start them with --of, so that "
                "each event is at one of them"
            )
        self.found, self._asked, self._asked_at = sorted(found), asked, now
        return list(self.found)


def members_of(listed: MemberShards) -> dict[str, int]:
    """Return the members that one has listed, with the number of shards that they divide; 0 if they divide none."""
    found = {shard.address: shard.of for shard in listed.shards}
    divided = listed.shards[-1].of if listed.shards else 0
    return {**dict.fromkeys(listed.known.values(), divided), **found}


def first_error(group: BaseException) -> Exception:
    """Return the first error of a group."""
    first = group
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    assert isinstance(first, Exception)
    return first
