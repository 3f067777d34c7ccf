"""Sharding: a fixed partition of a group's events, independent of the publishers and of the members that are alive.

A group that stores events must not let them go to whichever member happens to be alive: an event that is repeated after
a loss would be stored by two members.  So such a group has a fixed number of shards, each event belongs to one of them
for ever, and each member announces its shards.  While nobody has a shard, its events wait or are lost; they never go to
another shard.

Rendezvous hashing: when the number of shards grows, only what belongs to the new shards moves.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import shown
from iris.kernel.shapes import are_numbers

MAX_SHARDS: Final = 512
"""Shards of one group.  A key that is new costs one hash of 1 us for each."""

_REMEMBERED: Final = 65536


class Share(NamedTuple):
    """The part of a durable group's events that one subscriber receives, see ``Node.subscribe_durable``.

    Each event belongs to one shard, by its key or else by its publisher and topic, and goes to the member with that
    shard and to nobody else.  While no member has it, a confirmed event waits, and another one is lost and counted by
    its publisher.

    Attributes:
        of: number of shards of the group, 1 to 512; the same for every member.
        shards: shards of this subscriber, counted from 0.
    """

    of: int
    shards: tuple[int, ...]


def is_share(value: object) -> bool:
    """Return whether ``value``, perhaps of a peer, is the number of shards and then different ones of them."""
    if not are_numbers(value) or not 2 <= len(value) <= MAX_SHARDS + 1:
        return False
    of, *shards = value
    return 0 < of <= MAX_SHARDS and len(set(shards)) == len(shards) and min(shards) >= 0 and max(shards) < of


def check_share(share: Share) -> Share:
    """Return ``share``; raise ConfigError if its shards are none, stand twice, or are not below their number."""
    if not isinstance(share, Share) or not isinstance(share.shards, Sequence):
        raise ConfigError(f"share is {shown(share)}: use iris.Share(of, shards), with a tuple of shards")
    if not is_share((share.of, *share.shards)):
        raise ConfigError(
            f"shards {shown(share.shards)} of {shown(share.of)}: use different whole numbers from 0 on and below the "
            f"number of all shards, which is 1 to {MAX_SHARDS}"
        )
    return share


@final
class ShardMap:
    """Assigns events to shards.

    An event with a key goes where all events of that key go, no matter which node publishes them.  One without goes
    where those of its publisher and topic go.

    Args:
        shards: numbers of the shards, at least one.
    """

    def __init__(self, shards: Sequence[int]) -> None:
        self._shards: Final = tuple(shards)
        self._known: dict[str, int] = {}
        self.only: Final = shards[0] if len(shards) == 1 else None
        """Shard of every event, if there is only one.  Else None."""

    def shard_of(self, key: str | None, publisher: str, topic: str) -> int:
        """Return the shard of one event."""
        name = f"t{publisher}.{topic}" if key is None else f"k{key}"
        shard = self._known.get(name)
        if shard is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            shard = self._known[name] = max(self._shards, key=lambda number: stable_hash(f"{name}\0{number}"))
        return shard


@final
class ShardMaps:
    """Assigns events to shards as ``ShardMap(range(of))`` does, for every ``of`` together.

    Subscribers choose how many shards their groups have.  A key that is new costs one hash for each shard of the
    largest group, and not for those of each group.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        """Number of shards looked at, the highest hash, and the shards whose hash exceeded all before; by name."""

    def shard_of(self, of: int, key: str | None, publisher: str, topic: str) -> int:
        """Return the shard of one event in a group that has ``of`` shards."""
        name = f"t{publisher}.{topic}" if key is None else f"k{key}"
        looked, highest, higher = self._known.get(name, (0, -1, ()))
        if looked < of:
            more: list[int] = []
            for number in range(looked, of):
                value = stable_hash(f"{name}\0{number}")
                if value > highest:
                    highest = value
                    more.append(number)
            higher = (*higher, *more)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[name] = (of, highest, higher)
        return higher[bisect_left(higher, of) - 1]


def stable_hash(text: str) -> int:
    """Return 64 bits that are the same in every process, unlike ``hash``."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
