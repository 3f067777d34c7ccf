"""Gaps: events that publishers have sent and the log does not have, recorded at offsets for readers (sans-IO).

A gap stands before the event at its offset.  A shard has a bounded number of gaps for each topic and cluster of
publishers.  Beyond the bound the next gap is merged with the last, which then reaches from one offset to another.
Retention removes gaps with the events around them.

Publishers choose their numbers, so a node that may publish on a topic can pretend that events of it are missing.  That
concerns readers of this topic only, and takes no room from the gaps of other clusters.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Iterator
from typing import Final, final

from iris.kernel.names import account_of
from iris.kernel.wire import saturated
from iris.patterns.bridge_protocol import Cluster, NodeName, Number, Offset, Topic
from iris.spark_bridge.errors import LogDamaged

GAPS_AT_ONCE: Final = 256
"""Gaps in one answer of a bridge: 200 KiB at most."""

MAX_OF_TOPIC: Final = 64
"""Gaps of one topic and cluster in one shard."""

MAX_OF_CLUSTER: Final = 4096
"""Gaps of one cluster's publishers, or those of one other realm; when there are more, the oldest goes."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap: consecutive missing events of one publisher and topic."""

    shard: Number
    offset: Offset
    """The events are missing before the event with this offset ..."""
    upto: Offset
    """... or, if several gaps were merged, offset of the last such event."""
    topic: Topic
    cluster: Cluster
    """Cluster of the publishers."""
    publisher: NodeName
    """Publishing node; the last one if there were several."""
    count: Number
    """Number of missing events."""
    timestamp: Number
    """Time at which the last of them was noticed, in microseconds since 1970."""

    def spans(self, start: int, end: int) -> bool:
        """Return True if a reader of the events ``start`` up to but not including ``end`` meets the gap."""
        return start <= self.upto and self.offset < end

    def describe(self, shard: str) -> str:
        """Return a line for people."""
        place = f"offset {self.offset}" if self.offset == self.upto else f"offsets {self.offset} to {self.upto}"
        noticed = datetime.datetime.fromtimestamp(self.timestamp / 1e6, datetime.UTC).isoformat(timespec="seconds")
        return (
            f"{self.count} of {self.topic!r} from node {self.publisher} of cluster {self.cluster!r} are missing before "
            f"{place} of shard {shard} (noticed {noticed})"
        )

    def to_record(self) -> bytes:
        """Return the form in the index."""
        fields = dataclasses.asdict(self)
        del fields["shard"], fields["offset"]
        return json.dumps(fields).encode()


def read_gap(shard: int, offset: int, record: bytes) -> Gap:
    """Read what ``Gap.to_record`` wrote; raise LogDamaged for anything else."""
    try:
        return Gap(shard=shard, offset=offset, **json.loads(record))
    except (ValueError, TypeError):
        raise LogDamaged("the index is damaged: a gap is not what was written") from None


GapKey = tuple[int, int, str, str]
"""Shard, offset, topic and cluster."""


@final
class GapBook:
    """All gaps of a log.

    ``changed`` are those to write and ``removed`` those to delete; the writer empties both.
    """

    def __init__(self, gaps: Iterable[Gap] = ()) -> None:
        self._gaps: dict[GapKey, Gap] = {}
        self._of_topics: dict[tuple[int, str, str], list[GapKey]] = {}
        self._of_accounts: dict[str, dict[GapKey, None]] = {}
        self._last: dict[int, int] = {}
        self.changed: set[GapKey] = set()
        self.removed: set[GapKey] = set()
        for gap in sorted(gaps, key=lambda gap: (gap.timestamp, gap.offset)):
            self._put(gap)
        self.changed.clear()

    def reset(self, gaps: Iterable[Gap]) -> None:
        """Hold other gaps instead; who asks in another thread sees either."""
        other = GapBook(gaps)
        self._gaps, self._of_topics, self._of_accounts = other._gaps, other._of_topics, other._of_accounts
        self._last, self.changed, self.removed = other._last, other.changed, other.removed

    def __len__(self) -> int:
        return len(self._gaps)

    def __iter__(self) -> Iterator[Gap]:
        return iter(tuple(self._gaps.values()))

    def get(self, key: GapKey) -> Gap:
        """Return a gap."""
        return self._gaps[key]

    def last(self, shard: int) -> int:
        """Return the greatest offset before which events of a shard are missing; -1 if there is none."""
        return self._last.get(shard, -1)

    def note(self, gap: Gap) -> None:
        """Add a gap; it may be put together with the last one of its topic, cluster and shard."""
        keys = self._of_topics.get((gap.shard, gap.topic, gap.cluster), [])
        last = self._gaps[keys[-1]] if keys else None
        if last is not None and (last.offset == gap.offset or len(keys) >= MAX_OF_TOPIC):
            gap = dataclasses.replace(
                gap,
                offset=last.offset,
                upto=max(last.upto, gap.upto),
                count=saturated(last.count + gap.count),
            )
        elif len(self._of_accounts.get(account_of(gap.cluster), ())) >= MAX_OF_CLUSTER:
            self._remove(next(iter(self._of_accounts[account_of(gap.cluster)])))
        self._put(gap)

    def trim(self, shard: int, before: int) -> None:
        """Remove the gaps of a shard that no reader comes by any more, as events below ``before`` are gone."""
        for key, gap in list(self._gaps.items()):
            if gap.shard == shard and gap.upto < before:
                self._remove(key)

    def _put(self, gap: Gap) -> None:
        key = (gap.shard, gap.offset, gap.topic, gap.cluster)
        if key not in self._gaps:
            self._of_topics.setdefault((gap.shard, gap.topic, gap.cluster), []).append(key)
            self._of_accounts.setdefault(account_of(gap.cluster), {})[key] = None
        self._gaps[key] = gap
        self._last[gap.shard] = max(self._last.get(gap.shard, -1), gap.upto)
        self.changed.add(key)
        self.removed.discard(key)

    def _remove(self, key: GapKey) -> None:
        gap = self._gaps.pop(key)
        keys = self._of_topics[gap.shard, gap.topic, gap.cluster]
        keys.remove(key)
        if not keys:
            del self._of_topics[gap.shard, gap.topic, gap.cluster]
        of_account = self._of_accounts[account_of(gap.cluster)]
        del of_account[key]
        if not of_account:
            del self._of_accounts[account_of(gap.cluster)]
        self.changed.discard(key)
        self.removed.add(key)
