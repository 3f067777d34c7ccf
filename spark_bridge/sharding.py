"""Which shard an event goes to: events that belong together stay together, in the order of their publisher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from iris.patterns.publishing import stable_hash
from iris.spark_bridge.arrivals import Arrivals

_REMEMBERED: Final = 65536


@final
class Sharding:
    """Assigns events to shards.

    An event with a key goes where all events of that key go, whoever publishes them.  One without goes where those of
    its publisher and topic go.  Rendezvous hashing: when shards are added, only what moves to them moves.

    Args:
        shards: their numbers, at least one.
    """

    def __init__(self, shards: Sequence[int]) -> None:
        self._shards: Final = tuple(shards)
        self._known: dict[str, int] = {}

    def split(self, runs: Sequence[Arrivals]) -> dict[int, list[Arrivals]]:
        """Return the events by shard, each in the order given."""
        if self.only is not None:
            return {self.only: list(runs)}
        parts: dict[int, list[Arrivals]] = {}
        for run in runs:
            parts.setdefault(self.shard_of(run.key, run.publisher, run.topic), []).append(run)
        return parts

    def shard_of(self, key: str | None, publisher: str, topic: str) -> int:
        """Return the shard of one event."""
        return self._shard(f"t{publisher}.{topic}" if key is None else f"k{key}")

    @property
    def only(self) -> int | None:
        """The shard of every event, if there is one alone."""
        return self._shards[0] if len(self._shards) == 1 else None

    def _shard(self, name: str) -> int:
        shard = self._known.get(name)
        if shard is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            shard = self._known[name] = max(self._shards, key=lambda number: stable_hash(f"{name}\0{number}"))
        return shard
