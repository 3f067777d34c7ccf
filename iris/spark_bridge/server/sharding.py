"""Sharding: which shard of its log a member of a bridge puts an event into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from iris.patterns.pubsub.interest import ShardMap
from iris.patterns.pubsub.subscribe import EventRun


@final
class Sharding:
    """Assigns events to the shards of a member; see ``iris.patterns.pubsub.interest.shards``.

    Args:
        shards: those of the member, at least one.
        of: number of shards of the bridge, if its members divide the events. None: the member's own are all.
    """

    def __init__(self, shards: Sequence[int], of: int | None = None) -> None:
        self._own = frozenset(shards)
        self._map: Final = ShardMap(tuple(shards) if of is None else range(of))
        self.only: Final = self._map.only
        """The shard of every event, if there is one alone."""

    def split(self, runs: Sequence[EventRun]) -> tuple[dict[int, list[EventRun]], list[EventRun]]:
        """Return the events by shard, each in the order given, and those of shards that other members have."""
        if self.only is not None:
            return {self.only: list(runs)}, []
        parts: dict[int, list[EventRun]] = {}
        for run in runs:
            parts.setdefault(self.shard_of(run.key, run.publisher, run.topic), []).append(run)
        misrouted = [run for shard in parts.keys() - self._own for run in parts.pop(shard)]
        return parts, misrouted

    def shard_of(self, key: str | None, publisher: str, topic: str) -> int:
        """Return the shard of one event."""
        return self._map.shard_of(key, publisher, topic)

    def owns(self, key: str | None, publisher: str, topic: str) -> bool:
        """Return whether the shard of an event is one of this member's."""
        return self.shard_of(key, publisher, topic) in self._own
