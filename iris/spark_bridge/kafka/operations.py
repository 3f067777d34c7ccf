"""Operations of a member on Kafka: reading and groups.  What needs the embedded log is refused by its name."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, final

import trio

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import RemoteError
from iris.kernel.names import account_of
from iris.kernel.tasks import run_in_thread
from iris.patterns.bridge_protocol import Ask, Consume, Kind, ListShards, MemberShards, RemoteShard
from iris.patterns.messages import Sender
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.client import number_of
from iris.spark_bridge.events.gaps import Gap
from iris.spark_bridge.kafka.consumers import LEAVING, KafkaConsumers
from iris.spark_bridge.kafka.log import KafkaLog, RangeReader, Span, TopicState
from iris.spark_bridge.kafka.member import KafkaMember
from iris.spark_bridge.kafka.records import Record, as_batch
from iris.spark_bridge.log import MAX_REGEX, TopicFilter, frame_header
from iris.spark_bridge.protocol import (
    OPERATIONS,
    CopyStatus,
    CountDamage,
    DamageList,
    Drop,
    Extent,
    FindTimes,
    GroupCursor,
    ListCopies,
    ListCursors,
    ListGaps,
    ListTiers,
    Locate,
    Permit,
    PollOffsets,
    ReadCounters,
    ReadLog,
    RequestHandlers,
)
from iris.spark_bridge.server.dispatch import TunnelHandlers
from iris.spark_bridge.server.permissions import Permissions
from iris.spark_bridge.tier import TierStatus

_READ_BYTES: Final = MIB
_PIECE: Final = 256 * KIB
"""Size of one message in a reader's tunnel, in bytes: one frame."""

_LOOK: Final = 0.25
"""Seconds between two looks for news of a reader that waits for them."""

_THREADS: Final = 64
"""Readers and consumers of a member that are served at the same moment."""

_GROUPS_AT_A_TIME: Final = 8
"""Groups whose place is asked for at the same moment, each by a client of its own: some 50 ms, and more with TLS."""

_MAX_RANGE: Final = 2**31
"""Offsets that one chunk may stand for."""


@final
class KafkaOperations:
    """The handlers of one member; see ``Engine``.

    Args:
        member: has the topic, and counts.
        address: cluster at which readers find any member of the bridge.
        permissions: rights to call each operation.
        config: limits of what one cluster may have, and do at a time.
    """

    def __init__(self, member: KafkaMember, address: str, permissions: Permissions, config: Config) -> None:
        self._member = member
        self._log: KafkaLog = member.log
        self._address = address
        self._permissions = permissions
        self._config = config
        self._threads = trio.CapacityLimiter(_THREADS)
        """Threads that wait for records, which others than readers do not wait for."""
        self._consumers = KafkaConsumers(member.log, config, self._threads)
        self._polls: Counter[str] = Counter()
        """Number of requests that wait for news, by cluster."""
        self._listing = trio.Lock()
        """Held by who asks for the places of all groups: each takes a client of Kafka for a moment."""

    def close(self) -> None:
        """End what would go on until the caller leaves: the member leaves."""
        self._consumers.close()

    def requests(self) -> RequestHandlers:
        """See ``Engine``."""
        refused = {kind: partial(self._refuse, kind) for kind in OPERATIONS.values() if not kind.is_tunnel}
        return {
            **refused,
            ListShards: self._shards,
            PollOffsets: self._offsets,
            FindTimes: self._times,
            ListCursors: self._cursors,
            Drop: self._drop,
            ReadCounters: self._status,
            ListCopies: self._copies,
            ListTiers: self._tiers,
            ListGaps: self._gaps,
            CountDamage: self._damage,
            Locate: self._locate,
        }

    def tunnels(self) -> TunnelHandlers:
        """See ``Engine``."""
        refused = {kind: partial(self._refuse_tunnel, kind) for kind in OPERATIONS.values() if kind.is_tunnel}
        return {**refused, ReadLog: self._read, Consume: self._consumers.consume}

    async def claim(self, kind: Kind, name: str, cluster: str) -> str:
        """See ``Engine``: each cluster has groups of its own."""
        del kind, name
        return cluster

    def owner(self, kind: Kind, name: str) -> str | None:
        """See ``Engine``."""
        del kind, name
        return None

    async def _refuse(self, kind: type[Ask[object]], _sender: Sender, _asked: Ask[object]) -> object:
        raise refusal(kind)

    async def _refuse_tunnel(self, kind: type[Ask[object]], _tunnel: Tunnel, _asked: Ask[object], _: Permit) -> None:
        raise refusal(kind)

    # -- status ---------------------------------------------------------------------------------------------

    async def _shards(self, _sender: Sender, _asked: ListShards) -> MemberShards:
        state, spans = await run_in_thread(self._look)
        return MemberShards(
            shards=tuple(
                RemoteShard(
                    id=state.shard(partition),
                    number=partition,
                    address=self._address,
                    earliest=span.earliest,
                    next=span.next,
                    size=0,
                    timestamp=0,
                    of=state.partitions,
                    gap=-1,
                    term=0,
                )
                for partition, span in sorted(spans.items())
            ),
            known={},
        )

    def _look(self) -> tuple[TopicState, Mapping[int, Span]]:
        state = self._log.describe()
        return state, self._log.spans(range(state.partitions))

    async def _offsets(self, sender: Sender, asked: PollOffsets) -> dict[str, Extent]:
        account = account_of(sender.cluster)
        timeout = 0.0 if self._polls[account] >= self._config.bridge_polls_per_owner else asked.timeout
        self._polls[account] += 1
        try:
            end = trio.current_time() + timeout
            state = await run_in_thread(self._log.describe)
            while True:
                spans = await run_in_thread(self._log.spans, range(state.partitions))
                found = {
                    state.shard(partition): Extent(earliest=span.earliest, next=span.next)
                    for partition, span in spans.items()
                    if not asked.known or state.shard(partition) in asked.known
                }
                news = any(extent.next != asked.known.get(shard) for shard, extent in found.items())
                if news or found.keys() != asked.known.keys() or trio.current_time() >= end:
                    return found
                await trio.sleep(_LOOK)
        finally:
            self._polls[account] -= 1
            if not self._polls[account]:
                del self._polls[account]

    async def _times(self, _sender: Sender, asked: FindTimes) -> dict[str, int]:
        def find() -> dict[str, int]:
            state = self._log.describe()
            found = self._log.at_time(range(state.partitions), asked.timestamp)
            return {state.shard(partition): offset for partition, offset in found.items()}

        return await run_in_thread(find)

    async def _cursors(self, _sender: Sender, _asked: ListCursors) -> list[GroupCursor]:
        def find() -> list[GroupCursor]:
            state, groups = self._log.describe(), self._log.groups()

            def look(one: tuple[str, str]) -> GroupCursor:
                owner, group = one
                places = self._log.committed(owner, group, range(state.partitions))
                offsets = {state.shard(partition): offset for partition, offset in places.items()}
                return GroupCursor(group=group, owner=owner, start={}, offsets=offsets, timestamp=0)

            with ThreadPoolExecutor(_GROUPS_AT_A_TIME) as threads:
                return list(threads.map(look, groups))

        async with self._listing:
            return await run_in_thread(find)

    async def _drop(self, _sender: Sender, asked: Drop) -> bool:
        if asked.group is None:
            raise refusal(Drop)
        group = asked.group

        def drop() -> bool:
            owners = [owner for owner, name in self._log.groups() if name == group]
            end = time.monotonic() + LEAVING
            there = owners
            while there := [owner for owner in there if not self._log.drop_group(owner, group)]:
                if time.monotonic() < end:
                    time.sleep(_LOOK)
                    continue
                raise RemoteError("bad_request", f"group {group!r} is in use: a consumer of it is here. End that first")
            return bool(owners)

        return await run_in_thread(drop)

    async def _status(self, _sender: Sender, _asked: ReadCounters) -> object:
        return self._member.statistics()

    async def _copies(self, _sender: Sender, _asked: ListCopies) -> Sequence[CopyStatus]:
        return ()

    async def _tiers(self, _sender: Sender, _asked: ListTiers) -> Sequence[TierStatus]:
        return ()

    async def _gaps(self, _sender: Sender, _asked: ListGaps) -> Sequence[Gap]:
        return ()

    async def _damage(self, _sender: Sender, _asked: CountDamage) -> DamageList:
        return DamageList(count=0, places=())

    async def _locate(self, _sender: Sender, _asked: Locate) -> None:
        return None  # it is in no file of this machine's that a reader could open

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self, tunnel: Tunnel, asked: ReadLog, permit: Permit) -> None:
        state = await run_in_thread(self._log.describe)
        partition = number_of(asked.shard)
        if state.shard(partition) != asked.shard or partition >= state.partitions:
            raise RemoteError("DataLost", f"shard {asked.shard} is not there: Kafka's topic was deleted and made anew")
        wanted = TopicFilter(asked.topics, asked.regex)
        if not wanted.is_linear:
            raise RemoteError("bad_request", f"regex is none that RE2 knows, of {MAX_REGEX} bytes at most")
        span = (await run_in_thread(self._log.spans, (partition,)))[partition]
        if asked.end > span.next:
            raise RemoteError("bad_request", f"no events up to {asked.end}: shard {asked.shard} ends at {span.next}")
        if asked.start < span.earliest:
            raise RemoteError("DataLost", f"shard {asked.shard} begins at {span.earliest}, behind {asked.start}")
        reading = self._log.reading(partition, asked.start)
        reader = await run_in_thread(reading.__enter__)
        try:
            while reader.at < asked.end:
                permit.check()
                frame = await run_in_thread(_next_frame, reader, asked, wanted, state.epoch, limiter=self._threads)
                for position in range(0, len(frame), _PIECE):
                    await tunnel.send(frame[position : position + _PIECE])
        finally:
            with trio.CancelScope(shield=True):
                await run_in_thread(reading.__exit__, None, None, None)


def _next_frame(reader: RangeReader, asked: ReadLog, wanted: TopicFilter, epoch: str) -> bytes:
    """Read the next events and return the wanted ones in the form of the embedded log's chunks."""
    first = reader.at
    records: Sequence[Record] = reader.read(min(asked.end, first + _MAX_RANGE), max_bytes=_READ_BYTES)
    data = wanted.keep(as_batch(records)).serialize().to_pybytes()
    timestamp = records[0].timestamp if records else 0
    header = frame_header(
        data,
        shard=number_of(asked.shard),
        epoch=epoch,
        first=first,
        count=reader.at - first,
        timestamp=timestamp,
    )
    return header + data


def refusal(kind: type[Ask[object]]) -> RemoteError:
    """Return the answer to what only the embedded log can do."""
    needs = {
        "take": "queues need",
        "queue": "queues need",
        "peek": "queues need",
        "purge": "queues need",
        "lease": "leases need",
        "renew": "leases need",
        "release": "leases need",
        "key.claim": "outcomes of requests need",
        "key.note": "outcomes of requests need",
        "key.record": "outcomes of requests need",
        "key.release": "outcomes of requests need",
        "stage": "Spark's sink needs",
        "commit": "Spark's sink needs",
        "abort": "Spark's sink needs",
        "committed": "Spark's sink needs",
        "pin": "a query with format('iris') and a group needs",
        "move": "a query with format('iris') and a group needs",
        "trim": "Kafka's topic has retention of its own, and trimming by hand needs",
        "transfer": "each cluster has groups of its own here, and handing them over needs",
    }
    what = needs.get(kind.operation, f"operation {kind.operation!r} needs")
    return RemoteError(
        "unsupported", f"this bridge keeps its events in Kafka, and {what} the embedded log: 'iris bridge --data DIR'"
    )
