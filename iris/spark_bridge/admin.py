"""Administration of a bridge: its contents, its readers' cursors, single events, and verification of the log.

The functions behind ``iris bridge status``, ``tail``, ``replay``, ``verify``, ``trim``, ``drop`` and ``transfer``.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final, Literal, final

import pyarrow as pa

from iris.kernel.errors import ConfigError, NotAllowed, RemoteError, RemoteProtocolError
from iris.kernel.names import check_name
from iris.kernel.shapes import is_list, is_map
from iris.kernel.wire import decode_payload_untrusted, join_payload
from iris.patterns.bridge_protocol import Ask, RemoteShard
from iris.patterns.pubsub.interest import primary_cluster
from iris.spark_bridge.client import (
    BridgeClient,
    BridgeWatch,
    Offsets,
    Position,
    Range,
    check_order,
    place,
    ranges_between,
    wanted_batches,
)
from iris.spark_bridge.events.damage import Damage
from iris.spark_bridge.events.gaps import Gap
from iris.spark_bridge.events.schema import HEADER_ENCODING, PACKED, key_text
from iris.spark_bridge.log import TopicFilter, open_store
from iris.spark_bridge.protocol import (
    CopyStatus,
    Drop,
    Extent,
    ForgetCopy,
    ListCopies,
    ListCursors,
    ListTiers,
    ReadCounters,
    Transfer,
    Trim,
)
from iris.spark_bridge.tier import Storage, TierReader, TierStatus

_POLL: Final = 1.0


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Progress of a group of readers."""

    group: str
    owner: str
    """Cluster to which it belongs; empty if it has none."""
    offsets: Mapping[str, int]
    lag: int
    """Events that the group has still to read."""
    timestamp: int
    """Time of the group's last sign of life, in microseconds since 1970."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStatus:
    """Snapshot of a bridge."""

    shards: Sequence[RemoteShard]
    groups: Sequence[GroupStatus]
    counters: Mapping[str, Mapping[str, int]]
    """``BridgeStatistics`` by the address of each member."""
    copies: Mapping[str, Sequence[CopyStatus]]
    """Copies of each member's log, by the member's address."""
    tiers: Sequence[TierStatus]
    """Status of each shard's tier; shards without a tier are left out."""
    gaps: Sequence[tuple[str, Gap]]
    """Shard id and gap of each run of missing events, only on topics that this node may subscribe to."""
    damage: Sequence[tuple[str, Damage]]
    """Shard id and range of all events known to be damaged."""


async def read_status(client: BridgeClient) -> BridgeStatus:
    """Return the status of a bridge's shards, and the progress of its groups.

    Raises:
        BridgeUnreachable: it is not there.
    """
    shards = await client.shards()
    offsets: dict[str, dict[str, int]] = {}
    answered: dict[str, int] = {}
    owners: dict[str, str] = {}
    counters: dict[str, Mapping[str, int]] = {}
    copies: dict[str, Sequence[CopyStatus]] = {}
    tiers: list[TierStatus] = []
    for address in dict.fromkeys(shard.address for shard in shards):
        counters[address] = await client.ask(address, ReadCounters())
        copies[address] = await client.ask(address, ListCopies())
        tiers += await client.ask(address, ListTiers())
        for cursor in await client.ask(address, ListCursors()):
            offsets.setdefault(cursor.group, {}).update(cursor.offsets)
            owners[cursor.group] = cursor.owner or owners.get(cursor.group, "")
            answered[cursor.group] = max(answered.get(cursor.group, 0), cursor.timestamp)
    groups = [
        GroupStatus(
            group=group,
            owner=owners[group],
            offsets=found,
            lag=sum(max(0, shard.next - max(found.get(shard.id, 0), shard.earliest)) for shard in shards),
            timestamp=answered[group],
        )
        for group, found in sorted(offsets.items())
    ]
    gaps: list[tuple[str, Gap]] = []
    damage: list[tuple[str, Damage]] = []
    for shard in shards:
        if shard.gap >= shard.earliest:
            with suppress(NotAllowed):  # numbers are for every reader, topics are not
                async with aclosing(client.gaps(shard.address, shard.id, shard.earliest, shard.next + 1)) as found:
                    gaps += [(shard.id, gap) async for gap in found]
            _, places = await client.damage(shard.address, shard.id, shard.earliest, shard.next)
            damage += [(shard.id, place) for place in places]
    return BridgeStatus(
        shards=shards, groups=groups, counters=counters, copies=copies, tiers=tiers, gaps=gaps, damage=damage
    )


async def read_events(
    client: BridgeClient,
    *,
    topics: Sequence[str] = (),
    start: Position = "earliest",
    since: int | None = None,
    last: int | None = None,
    end: Position | None = "latest",
) -> AsyncGenerator[dict[str, Any]]:
    """Yield events as JSON can write them, shard by shard in the order of the log.

    Args:
        client: asks the bridge.
        topics: patterns; none for all.
        start: position at which to begin.
        since: begin with the first event that is not older, in milliseconds since 1970; in the place of ``start``.
        last: begin so many events before the end of each shard; in the place of ``start``.
        end: position at which to end; None goes on with what arrives.

    Raises:
        ConfigError: a position is outside of the log.
        DataLost, LogDamaged, BridgeUnreachable: see ``BridgeClient.read``.
    """
    watch = BridgeWatch(None)
    await watch.look(client)
    extents = watch.extents
    if since is not None:
        at = await client.offsets_at(watch.addresses, since * 1000)
    elif last is not None:
        at = {shard: max(extent.earliest, extent.next - last) for shard, extent in extents.items()}
    else:
        at = place(start, extents, option="start")
    wanted = TopicFilter(topics)
    upto = _ends(extents) if end is None else place(end, extents, option="end", end=True)
    if end not in (None, "latest"):
        check_order(at, upto, options="where to start and end")
    while True:
        for found in ranges_between(Offsets(next=at), Offsets(next=upto)):
            async with aclosing(_read_range(client, watch, wanted, found)) as events:
                async for event in events:
                    yield event
        if end is not None:
            return
        await watch.wait(client, upto, _POLL)
        # A shard that has come meanwhile begins at its earliest event, and what was trimmed meanwhile is gone.
        at = {
            shard: min(max(upto.get(shard, 0), extent.earliest), extent.next) for shard, extent in watch.extents.items()
        }
        upto = _ends(watch.extents)


def _ends(extents: Mapping[str, Extent]) -> dict[str, int]:
    return {shard: extent.next for shard, extent in extents.items()}


async def _read_range(
    client: BridgeClient, watch: BridgeWatch, wanted: TopicFilter, found: Range
) -> AsyncGenerator[dict[str, Any]]:
    address = watch.address(found.shard)
    if address is None:
        raise ConfigError(f"shard {found.shard} is not there any more")
    async with aclosing(client.read(address, found.shard, found.start, found.end, wanted)) as parts:
        async for chunks in parts:
            for batch in wanted_batches(chunks, wanted, start=found.start, end=found.end):
                for event in as_objects(batch, found.shard):
                    yield event


def as_objects(batch: pa.RecordBatch, shard: str) -> Iterator[dict[str, Any]]:
    """Yield events of a shard as objects for JSON.

    Bytes that are UTF-8 stand as text, others in base64 under ``value_base64``; a payload that was not bytes stands as
    the value that it was, with null for numbers that JSON has not.  One that its publisher packed wrongly stands in
    base64: it is no reason not to show the others.
    """
    for row in batch.to_pylist():
        headers = {pair["key"]: (pair["value"] or b"").decode("utf-8", "replace") for pair in row["headers"] or ()}
        event: dict[str, object] = {
            "shard": shard,
            "offset": row["offset"],
            "timestamp": row["timestamp"].isoformat(),
            "topic": row["topic"],
            "key": key_text(row["key"]),
            "headers": headers,
        }
        yield event | value_of(row["value"], packed=headers.get(HEADER_ENCODING) == PACKED)


def value_of(value: bytes | None, *, packed: bool) -> dict[str, object]:
    """Return the part of an event's object that holds its payload."""
    if value is None:
        return {"value": None}
    if packed:
        with suppress(RemoteProtocolError, RecursionError):
            return {"value": _plain(decode_payload_untrusted(join_payload(value, packed=True)))}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def _plain(value: object) -> object:
    """Return a value with text in the place of the bytes in it, which JSON cannot write."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if is_map(value):
        return {key: _plain(item) for key, item in value.items()}
    if is_list(value):
        return [_plain(item) for item in value]
    return value


async def trim(client: BridgeClient, shard: int, before: int) -> int:
    """Remove the events of a shard below an offset; return how many.  Only for nodes of the bridge's own cluster.

    Raises:
        NotAllowed: this node speaks for another cluster.
        ConfigError: there is no such shard, or it ends before that offset.
    """
    for found in await client.shards():
        if found.number == shard:
            if before > found.next:
                raise ConfigError(
                    f"shard {shard} ends at offset {found.next}, and {before} is beyond: give at most {found.next}, "
                    "which removes all that it holds now"
                )
            return await client.ask(found.address, Trim(shard=found.id, before=before))
    raise ConfigError(f"the bridge has no shard {shard}")


async def drop_group(client: BridgeClient, group: str) -> None:
    """Forget a group of readers, so that nothing is kept for it any more.  Only for nodes of the bridge's own cluster.

    A query of this group that still runs makes it known again with its next batch.

    Raises:
        NotAllowed: this node speaks for another cluster.
        ConfigError: no member knows it.
    """
    if not await _ask_all(client, Drop(group=group)):
        raise ConfigError(f"the bridge has no group {group!r}: its status names those that it has")


async def drop_query(client: BridgeClient, query: str) -> None:
    """Forget a query of Spark's that does not come back, what it has staged, and which batch of it was the last.

    Should it come back, it is a new one: a batch that it repeats is stored once more.  Only for nodes of the bridge's
    own cluster.

    Raises:
        NotAllowed: this node speaks for another cluster.
        ConfigError: no member knows it.
    """
    if not await _ask_all(client, Drop(query=query)):
        raise ConfigError(f"the bridge has no query {query!r}")


async def drop_shard(client: BridgeClient, number: int) -> None:
    """Forget a shard whose log is gone for good: nothing waits for its member any more.

    Only for nodes of the bridge's own cluster.

    Raises:
        NotAllowed: this node speaks for another cluster.
        ConfigError: no member knows it, or one has it.
    """
    found = await client.present()
    for shard in found.shards:
        if shard.number == number:
            raise ConfigError(f"shard {number} is at {shard.address!r}, and is not forgotten as long as it is there")
    addresses = dict.fromkeys(shard.address for shard in found.shards)
    if not any([await client.ask(address, Drop(shard=number)) for address in addresses]):
        raise ConfigError(f"the bridge knows of no shard {number}")


async def drop_copy(client: BridgeClient, shard: int, name: str) -> None:
    """Forget a copy of the log that has a shard: nothing waits for it any more, and it must not be promoted.

    Also possible while the primary waits for it.  Only for nodes of the bridge's own cluster.

    Raises:
        NotAllowed: this node speaks for another cluster.
        ConfigError: the primary does not know it, or it is there.
        BridgeUnreachable: the primary is not there.
    """
    try:
        known = await client.ask(primary_cluster(client.bridge, shard), ForgetCopy(name=name))
    except RemoteError as error:
        raise ConfigError(error.message) from None
    if not known:
        raise ConfigError(f"the log of shard {shard} of bridge {client.bridge!r} has no copy {name!r}")


async def transfer(client: BridgeClient, kind: Literal["group", "query"], name: str, to: str) -> None:
    """Let a group or query belong to another cluster, whose nodes go on with it.  Only for the bridge's own cluster.

    Raises:
        NotAllowed: this node speaks for another cluster.
        ConfigError: no member knows it, or the new owner has no name of a cluster.
    """
    realm, _, cluster = to.rpartition("/")
    if realm:
        check_name(realm, "realm")
    check_name(cluster, "cluster")
    moved = Transfer(group=name, to=to) if kind == "group" else Transfer(query=name, to=to)
    if not await _ask_all(client, moved):
        raise ConfigError(f"the bridge has no {kind} {name!r}")


async def _ask_all(client: BridgeClient, request: Ask[bool]) -> bool:
    """Ask every member; return True if one of them knew the name."""
    addresses = dict.fromkeys(shard.address for shard in await client.shards())
    return any([await client.ask(address, request) for address in addresses])


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A stretch of the log that was read: sound, or with what is wrong."""

    shard: int
    offset: int
    damage: str | None


def verify_log(directory: Path, *, tier: str | None = None, bridge: str = "bridge") -> Iterator[Finding]:
    """Verify a log in full, while no bridge is running on it, and yield findings, stretch by stretch.

    Nothing is changed.

    Args:
        directory: directory of the log.
        tier: URL or directory of its tier. None: what only the tier has is passed over.
        bridge: name of the bridge, as which it has written there.

    Raises:
        ConfigError: there is no log, or the tier is no place.
        TierUnreachable: the tier does not answer.
        StoreBusy: a bridge is running on it.
        LogDamaged: so much is wrong that it cannot be read at all; or, at the end, damage that is in no event.
    """
    store = open_store(directory, shards=(), entropy=os.urandom, look_only=True)
    try:
        if tier is not None:
            store.tiering.attach(TierReader(Storage(tier), bridge))
        for shard, offset, damage in store.reader.verify():
            yield Finding(shard=shard, offset=offset, damage=damage)
    finally:
        store.close()
