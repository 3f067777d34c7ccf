"""Division: how the events of a bridge are divided among its shards, now and before it grew (sans-IO).

Each growth begins a *generation*, which has more shards than the one before.  By rendezvous hashing a key either stays
in its shard or moves to one of the new ones.  Where a generation begins in an old shard is its *mark*: no event of a
key that has moved is behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import msgspec

from iris.spark_bridge.errors import LogDamaged


@final
class Division(msgspec.Struct, frozen=True, kw_only=True):
    """Division of a bridge's events among shards, as one of its logs has it.

    Attributes:
        grown: number of shards of the bridge in each generation, the present one last.
        marks: generations after the first of this log, by number of shards: the offset at which each began in each
            shard of this log.
        after: for shards of this log that are not of the first generation: offsets of earlier shards, by id, below
            which the events come before all of theirs.
    """

    grown: Sequence[int]
    marks: Mapping[int, Mapping[int, int]] = msgspec.field(default_factory=dict[int, Mapping[int, int]])
    after: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])

    @property
    def of(self) -> int:
        """Number of shards of the bridge now."""
        return self.grown[-1]

    def marks_of(self, shard: int) -> dict[int, int]:
        """Return where each generation began in a shard."""
        return {of: offsets[shard] for of, offsets in self.marks.items() if shard in offsets}

    def divided(self, of: int, offsets: Mapping[int, int]) -> Division:
        """Return the division after a growth to ``of`` shards that begins at these offsets; the same if it is that."""
        if of <= self.of:
            return self
        return msgspec.structs.replace(self, grown=(*self.grown, of), marks={**self.marks, of: dict(offsets)})

    def encode(self) -> bytes:
        """Return it as it is stored."""
        return msgspec.msgpack.encode(self)


def decode_division(record: bytes | None) -> Division | None:
    """Read what ``Division.encode`` returned; raise LogDamaged for anything else."""
    if record is None:
        return None
    try:
        return msgspec.msgpack.decode(record, type=Division)
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"how the log's events are divided cannot be read: {error}") from None


def are_of_one_bridge(grown: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two members can be of one bridge: one has grown as the other, and perhaps further."""
    return all(one == another for one, another in zip(grown, other, strict=False))
