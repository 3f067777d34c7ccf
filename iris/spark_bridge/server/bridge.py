"""Bridge: a member of a cluster that stores events durably and serves them to readers."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import ConfigError
from iris.kernel.names import Entropy, check_name
from iris.kernel.numerals import as_whole, shown
from iris.kernel.tasks import open_background, protected_context, run_in_thread
from iris.node.node import Node
from iris.patterns.pubsub.interest import Share, check_pattern, check_share
from iris.spark_bridge.copies import LogState, PrimaryCopies, Settings, read_state
from iris.spark_bridge.election import Election
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log import Retention, Store, open_store
from iris.spark_bridge.outcomes import OutcomeKeeper
from iris.spark_bridge.protocol import RequestHandlers
from iris.spark_bridge.queues import Queues, read_date
from iris.spark_bridge.server.clock_check import MemberClock
from iris.spark_bridge.server.collector import gathering_service
from iris.spark_bridge.server.dispatch import Dispatch
from iris.spark_bridge.server.group_commit import GroupLimits
from iris.spark_bridge.server.leases import Leases
from iris.spark_bridge.server.member import BridgeMember, LogLimits
from iris.spark_bridge.server.operations import Operations
from iris.spark_bridge.server.permissions import Permissions
from iris.spark_bridge.server.shard_claim import ShardClaim
from iris.spark_bridge.server.sharding import Sharding
from iris.spark_bridge.server.sink_commits import BatchCommitter
from iris.spark_bridge.server.subscribers import remember_subscribers
from iris.spark_bridge.staging import Staging, Usage
from iris.spark_bridge.tier import Tier, TierUploads

BRIDGE_CONFIG: Final = Config(batch_bytes=256 * KIB, tunnel_chunk=256 * KIB, tunnel_window=2 * MIB)
"""For a bridge's node.  Readers get large frames: 6.9 us of processor time for an event of 1 KB, bridge and reader
together, where pieces of 128 KiB take 7.8 (medians of five rounds in turns); larger windows bring nothing more."""

MAX_SHARD = 2**31 - 1
"""Shards are numbered like Spark's ``partition`` column, a 32-bit int."""


@protected_context
async def open_bridge(
    node: Node,
    *,
    topics: Sequence[str],
    directory: Path | str,
    clusters: Sequence[str] = (),
    name: str = "bridge",
    shards: Sequence[int] = (0,),
    of: int | None = None,
    member: str | None = None,
    readers: Collection[str] | None = None,
    group: GroupLimits | None = None,
    retention: Retention | None = None,
    min_copies: int = 0,
    tier: Tier | None = None,
    election: Election | None = None,
    waiting: Callable[[str], None] = lambda _: None,
    wall_clock: Callable[[], float] | None = None,
    entropy: Entropy | None = None,
) -> AsyncIterator[BridgeMember]:
    """Be a member of a bridge: store the events of topics durably and serve them to readers, until the block ends.

    An event that asks for it is confirmed when it is on the disk; its repeats are stored once.  Entering
    the block returns when every reachable publisher knows of it.  Leaving it writes and confirms what has arrived; then
    confirmed events wait for this member to come back, until it is forgotten (``Node.forget_subscriber``).

    Args:
        node: has the right to be a member of ``name``; best opened with ``BRIDGE_CONFIG``.
        topics: patterns of topics; an event that matches several is stored once.
        directory: directory of the log, for this member alone; made if it is not there.
        clusters: clusters whose broadcasts and tunnels are stored, see ``iris.spark_bridge.server.collector``.  The
            node becomes a member of each and must have the right to; requests and tunnels to a cluster go to any of
            its members, so use one that only bridges serve, unless it is for broadcasts.
        name: the bridge's cluster, which readers name.
        shards: numbers of the shards of this member's log.  Events with the same key go to the same shard.
        of: number of shards of all members together, the same for each, if they divide the events of the same topics:
            an event is stored by the member that has its shard, and not at all while that one is away.  The number is
            set when a log is made, and stays.  None: this member stores all that it subscribes to.
        member: distinguishes members of one bridge, which then have different shards; readers reach this member as the
            cluster ``<name>.<member>``, which the node must be allowed to join.  With ``of`` it is the member's first
            shard unless it is given; a single member needs none.
        readers: clusters whose nodes may read, and then everything; None: every node that may use the cluster ``name``,
            and what it may subscribe to.
        group: limits of a group of events that is written together.
        retention: limits of age and size beyond which events are removed; none by default.
        min_copies: copies of the log (``iris.spark_bridge.copies.open_copy``) that have to have an event on their disks
            before it is confirmed and before readers get it.  A log that has copies is opened, read and written only
            when so many of them have met this member.
        tier: tier to which sealed segments go; retention then removes only what is there, from this disk alone, and
            from those of copies.  Only what enough copies have goes there.
        election: has a copy take over when this member is gone, and not before; needs ``min_copies``.  None: a person
            promotes one.
        waiting: called with a reason when entering the block has to wait for copies.
        wall_clock: seconds since 1970; None: ``time.time``.
        entropy: makes the epochs of new shards; None: ``os.urandom``.

    Raises:
        ConfigError: a topic, a name, a shard or the directory cannot be used; or another member of the bridge has the
            same shard or name, or counts shards otherwise, which may also come to light later and end the block; or too
            many durable subscribers are known.
        NotAllowed: the node's certificate does not permit to subscribe to a topic.
        BridgeUnreachable: the members that are there do not say what they hold.
        ConfigError: the log is a copy, or a copy of it was promoted, which may also come to light later.
        StoreBusy: another process has the directory open.
        StoreFull: there is no room to begin with.
        LogDamaged: the directory holds something else, or parts of the log are missing.

    Cancelling the block is leaving it.  A member that is killed loses nothing that it has confirmed.
    """
    check_name(name, "cluster")
    if not topics and not clusters:
        raise ConfigError("a bridge stores the events of topics: give at least one topic pattern, or a cluster")
    for topic in topics:
        check_pattern(topic)
    for cluster in clusters:
        check_name(cluster, "cluster")
    whole = [as_whole(number) for number in shards]
    numbers = [number for number in whole if number is not None and 0 <= number <= MAX_SHARD]
    if not shards or len(set(numbers)) != len(shards):
        raise ConfigError(f"shards are {shown(shards)}: use different whole numbers from 0 to {MAX_SHARD}")
    shards = numbers
    if of is not None:
        share = check_share(Share(of, tuple(shards)))
        member = str(min(shards)) if member is None else member
    else:
        share = None
    address = name if member is None else check_name(f"{name}.{member}", "cluster")
    # Looked up now: in a simulation these are the simulation's.
    wall_clock = wall_clock or time.time  # noqa: TID251 -- events are stored with the date
    entropy = entropy or os.urandom
    least = as_whole(min_copies)
    if least is None or least < 0:
        raise ConfigError(f"min_copies is {shown(min_copies)}: use a whole number, 0 or more")
    min_copies = least
    if election is not None and not min_copies:
        raise ConfigError(
            "without min_copies a primary confirms what no copy has, and an election would lose that: give min_copies"
        )
    state = await run_in_thread(read_state, Path(directory)) or LogState()
    if state.role == "copy":
        raise ConfigError(
            f"the log in {directory} is a copy: give --follow {name}/{min(shards)}, or promote it by 'iris bridge "
            f"promote {name}/{min(shards)}' while it follows"
        )
    place = ShardClaim(node=node, bridge=name, address=address, shards=shards, of=of or 0, term=state.term)
    retention = retention or Retention()
    settings = Settings(
        topics=tuple(topics),
        clusters=tuple(clusters),
        readers=None if readers is None else tuple(readers),
        shards=tuple(shards),
        of=of,
        member=member,
        min_copies=min_copies,
        max_age=retention.max_age,
        max_bytes=retention.max_bytes,
        keep_unread=retention.keep_unread,
        group_idle=retention.group_idle,
        tier=None if tier is None else tier.absolute(),
    )
    config = node._parts.mesh.config
    usage = Usage(most=config.bridge_staged_bytes, most_of_owner=config.bridge_staged_bytes_per_owner)
    staging = Staging(Path(directory) / "staged", usage)
    async with AsyncExitStack() as stack:
        if election is not None:
            # Before anything that takes time: a log that was promoted just now has the lease, or would lose it.
            holding = await stack.enter_async_context(open_background())
            holding.start_soon(election.keep)
        others = await place.check()
        store = await run_in_thread(partial(open_store, Path(directory), shards=shards, of=of, entropy=entropy))
        await stack.enter_async_context(_closing(store))
        await run_in_thread(_look, store, staging)
        if tier is None and store.tiering.has_objects:
            # Without it retention would remove events, and the next bridge with it would see that as a trim by hand.
            raise ConfigError(f"the log in {directory} has a tier: give the --tier that it was written to")
        copies = PrimaryCopies(store, state, settings, bridge=name)
        for cluster, service in copies.services().items() if copies.has_any() else ():
            await stack.enter_async_context(node.join(cluster, service))
        stack.callback(copies.close)
        nursery = await stack.enter_async_context(open_background())
        nursery.start_soon(copies.watch)
        met = trio.Event()
        if copies.is_waiting():
            waiting(copies.describe())
            # A member that was promoted meanwhile is met here, too, if no copy reports it.
            nursery.start_soon(_watch_claim, place, met)
        await copies.wait_ready()
        met.set()
        clock = MemberClock(wall_clock, await run_in_thread(_newest, store, staging))
        uploads = None
        if tier is not None:
            uploads = await run_in_thread(TierUploads, store, tier, copies, clock, entropy)
        limits = LogLimits(group=group or GroupLimits(), retention=retention)
        bridge = BridgeMember(store, copies, of, limits, clock, uploads)
        with suppress(StoreFull):  # the others are met again; a full disk can only be helped by a bridge that runs
            await bridge.note_shards({**others, **dict.fromkeys(shards, address)})
        # A batch of Spark's is committed by one member, in one step.
        intake = BatchCommitter(store, staging, Sharding(shards), bridge, node, name)
        permissions = Permissions(bridge=name, readers=readers, node=node)
        queues = Queues(bridge, nursery, permissions)
        leases = Leases(bridge, address=address)
        outcomes = OutcomeKeeper(bridge, permissions, address=address, entropy=entropy)
        # The signed record before the subscriptions: publishers know for whom to wait from the first event on.
        if topics:
            await stack.enter_async_context(
                remember_subscribers(
                    store,
                    node._parts.patterns.pubsub.durable,
                    name=address,
                    topics=topics,
                    group=None if share is None else name,
                    share=() if share is None else (share.of, *share.shards),
                )
            )
        subscriptions = [
            (
                topic,
                await stack.enter_async_context(
                    node._parts.patterns.pubsub.subscribe(
                        topic,
                        durable=True,
                        claimed=address,
                        overflow="wait",
                        group=None if share is None else name,
                        share=share,
                    )
                ),
            )
            for topic in dict.fromkeys(topics)
        ]

        handlers: RequestHandlers = {**leases.requests(), **outcomes.requests()}
        operations = Operations(bridge, intake, queues, handlers, permissions, config)
        dispatch = Dispatch(operations, permissions, config)
        nursery = await stack.enter_async_context(open_background())
        nursery.start_soon(bridge.run, subscriptions)
        nursery.start_soon(intake.discard_abandoned)
        nursery.start_soon(outcomes.run)
        for cluster in dict.fromkeys((address, name)):
            await stack.enter_async_context(node.join(cluster, dispatch.service(cluster)))
        nursery.start_soon(place.keep, bridge.note_shards)
        for cluster in dict.fromkeys(clusters):
            await stack.enter_async_context(node.join(cluster, gathering_service(cluster, bridge, entropy)))
        reports = {
            "bridge": bridge.report,
            "queues": queues.report,
            "leases": leases.report,
            "outcomes": outcomes.report,
        }
        node._reports |= reports
        try:
            yield bridge
        finally:
            for part in reports:
                del node._reports[part]
            queues.close()
            operations.close()


@asynccontextmanager
async def _closing(store: Store) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await run_in_thread(store.close, else_here=True)


async def _watch_claim(place: ShardClaim, met: trio.Event) -> None:
    """Look for members that have come while this one has no claim yet: see ``ShardClaim.keep``."""

    async def note(_found: Mapping[int, str]) -> None:
        return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.keep, note)
        await met.wait()
        nursery.cancel_scope.cancel()


def _look(store: Store, staging: Staging) -> None:
    staging.look(store.owners.of_kind("query").get)


def _newest(store: Store, staging: Staging) -> float | None:
    """Return when the newest event was stored, an outcome of a job written, or the last rows staged."""
    times = [state.timestamp / 1e6 for state in store.shards() if state.timestamp]
    with store.read_transaction() as view:
        times += [date / 1e6 for date in [read_date(view)] if date]
    staged = staging.newest()
    return max(times if staged is None else [*times, staged], default=None)
