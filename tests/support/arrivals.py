"""Events as a bridge gets them, made without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Payload
from iris.kernel.wire.payload import payload_size
from iris.patterns.messages import Sender
from iris.patterns.pubsub.interest.start_offsets import Milestones
from iris.patterns.pubsub.subscribe.events import EventRun
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.log.segments import SEGMENT_BYTES, Disk
from iris.spark_bridge.log.store import Store

PUBLISHER = "ab" * 16


def fake_event(
    payload: Payload = b"",
    topic: str = "a.b",
    sequence: int = 0,
    publisher: str = PUBLISHER,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    sender: Sender | None = None,
    first: int = 0,
    owed: int = 0,
    milestones: Milestones = (),
) -> EventRun:
    """Return a run of one event."""
    events = kinds.Events(topic, first, sequence, None, None, key, (payload,), milestones)
    run = EventRun(
        sender or Sender("publishers", NodeId(publisher)),
        events,
        headers or {},
        payload_size(payload),
        plain=isinstance(payload, bytes),
    )
    run.owed = owed
    return run


def numbered(first: int, last: int, *, publisher: str = PUBLISHER) -> list[EventRun]:
    """Return the events that a publisher numbered ``first`` to ``last``; the payload is the number."""
    return [fake_event(b"%d" % number, sequence=number, publisher=publisher) for number in range(first, last + 1)]


def make_store(
    directory: Path,
    *,
    shards: Sequence[int] = (0,),
    seed: int = 0,
    disk: Disk | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> Store:
    """Open a small store."""
    return open_store(
        directory,
        shards=shards,
        entropy=Random(seed).randbytes,
        disk=disk,
        segment_bytes=segment_bytes,
        map_bytes=64 * 1024 * 1024,
    )


def payloads(chunks: Sequence[Chunk]) -> list[bytes]:
    """Return the payloads of the events in chunks."""
    return [value for chunk in chunks for value in decode_events(chunk.data).column("value").to_pylist()]


def stored(store: Store, shard: int = 0) -> list[bytes]:
    """Return the payloads of every event of a shard."""
    (state,) = (state for state in store.shards() if state.number == shard)
    found: list[bytes] = []
    at = state.earliest
    while at < state.next:
        chunks = store.reader.read(shard, state.epoch, at, state.next, max_bytes=1 << 20)
        values = payloads(chunks)
        found += values[at - chunks[0].first :]
        at = chunks[-1].end
    return found


def fill(store: Store, appends: int, *, shard: int = 0) -> list[bytes]:
    """Append ten events each time; return their payloads."""
    for at in range(appends):
        store.appender.append({shard: [fake_event(b"%d" % (at * 10 + n)) for n in range(10)]}, now=at * 1000)
    return [b"%d" % n for n in range(appends * 10)]
