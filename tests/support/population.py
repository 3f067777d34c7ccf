"""State that all nodes of a settled realm share, kept once: memory of 10,000 views instead of 10,000 x 10,000 members.

Each view holds only where it differs.  Everything that decides anything is the product's own code; a test lets both
kinds of view run the same realm and compares every effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from iris.cluster.swim.records import NodeRecord
from iris.cluster.swim.view import BUCKETS, NodeState, View, bucket_of, entry_hash
from iris.kernel.names import NodeId

_LONG_AGO: Final = -60.0
"""Time at which all nodes met, in seconds: a node that has just come is not found silent."""


@final
class Population:
    """The records that everybody starts with."""

    def __init__(self, records: list[NodeRecord]) -> None:
        self.records = {record.node: record for record in records}
        self.buckets: list[dict[NodeId, int]] = [{} for _ in range(BUCKETS)]
        self.hashes = [0] * BUCKETS
        for record in records:
            bucket = bucket_of(record.node)
            self.buckets[bucket][record.node] = record.incarnation
            self.hashes[bucket] ^= entry_hash(record.node, record.incarnation)

    def view(self, own: NodeRecord) -> View:
        """Return the view of one of the population, who knows all the others."""
        return SettledView(own, self)

    def whole_view(self, own: NodeRecord) -> View:
        """Return the same view with nothing shared."""
        view = View(own)
        for record in self.records.values():
            if record.node != own.node:
                view.add(record, _LONG_AGO)
        return view


@final
class SettledView(View):
    """A view that shares a population's records and buckets until it changes them."""

    __slots__ = ("_forgotten", "_own_buckets", "_population")

    def __init__(self, own: NodeRecord, population: Population) -> None:
        super().__init__(own)
        assert population.records[own.node] == own
        self._population = population
        self._forgotten: set[NodeId] = set()
        self._own_buckets: set[int] = set()
        self.live = [node for node in population.records if node != own.node]
        self.buckets = population.buckets.copy()
        self._hashes = population.hashes.copy()

    def find(self, node: NodeId) -> NodeState | None:
        member = self._members.get(node)
        if member is None:
            record = self._population.records.get(node)
            if record is not None and node != self.own.node and node not in self._forgotten:
                member = self._members[node] = NodeState(record, _LONG_AGO)
        return member

    def add(self, record: NodeRecord, now: float) -> NodeState:
        self._forgotten.discard(record.node)
        return super().add(record, now)

    def forget(self, node: NodeId) -> None:
        self._forgotten.add(node)
        super().forget(node)

    def records(self) -> Iterator[NodeRecord]:
        held, shared = self._members, self._population.records
        for node in self.live:
            yield held[node].record if node in held else shared[node]

    def _list(self, record: NodeRecord) -> None:
        self.live.append(record.node)
        self._enter(record)

    def _unlist(self, node: NodeId) -> None:
        at = self.live.index(node)
        last = self.live.pop()
        if last != node:
            self.live[at] = last

    def _enter(self, record: NodeRecord) -> None:
        self._own_bucket(record.node)
        super()._enter(record)

    def _leave(self, node: NodeId) -> None:
        self._own_bucket(node)
        super()._leave(node)

    def _own_bucket(self, node: NodeId) -> None:
        # Called by the base class's constructor too, before there is anything to share.
        bucket = bucket_of(node)
        owned: set[int] | None = getattr(self, "_own_buckets", None)
        if owned is not None and bucket not in owned:
            owned.add(bucket)
            self.buckets[bucket] = self.buckets[bucket].copy()
