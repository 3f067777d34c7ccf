"""Bridge: what a node does with one bridge, by the name of its cluster.

Nothing is opened and nobody is asked until a block is entered; so a handle costs nothing, and is never closed.
"""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Final, Literal, Protocol, final

from iris.kernel.names import check_name
from iris.kernel.tasks import checkpointed
from iris.node.arguments import check_between, check_flags, check_timeout
from iris.node.run_guard import RunGuard
from iris.patterns import state
from iris.patterns.bridge_protocol import MAX_KEEP, MAX_TTL, MIN_KEEP, MIN_TTL, Bridges
from iris.patterns.pubsub import queues
from iris.patterns.service import KeyClaims


class BridgeNode(queues.BridgeUser, Protocol):
    """A node, as far as it is needed to use a bridge."""

    @property
    def name(self) -> str:
        """Cluster that the node speaks for."""
        ...

    @property
    def request(self) -> state.AskMember:
        """See ``iris.Node.request``."""
        ...


@final
class Bridge:
    """Work queues, log, leases and sagas of one bridge.  Made by ``Node.bridge``; good for as long as the node is.

    The bridge is a process of its own, ``iris bridge --topic 'orders.>' --topic jobs --data DIR`` on the command line.
    It stores the events of the topics that are named there, and so needs the name of each queue among them; leases and
    sagas need a bridge, of whatever topics.

    Its methods return blocks, and raise ``trio.ClosedResourceError`` after the node's block.

    Args:
        name: cluster of the bridge.
        node: node that uses it.
        bridges: asks the bridge, with repeats.
        random: source of jitter.
        guard: guard of what the node does after it was closed.
    """

    __slots__ = ("_bridges", "_guard", "_members", "_node", "_random", "name")

    def __init__(self, name: str, node: BridgeNode, bridges: Bridges, random: Random, guard: RunGuard) -> None:
        self.name: Final = name
        """Cluster of the bridge."""
        self._node: Final = node
        self._bridges: Final = bridges
        self._random: Final = random
        self._guard: Final = guard
        self._members: queues.BridgeMembers | None = None
        """Members, which are looked for once for all queues and consumers of this node; made when it has one."""

    def __repr__(self) -> str:
        return f"<Bridge {self.name!r}>"

    def queue(
        self,
        name: str,
        *,
        lease: float = 30.0,
        attempts: int = 5,
        dead: str | None = None,
        backoff: float = 1.0,
    ) -> AbstractAsyncContextManager[queues.WorkQueue]:
        """Open a queue of jobs on the bridge's log: put jobs, or receive them.

        Example::

            async with bridge.queue("jobs") as jobs:
                await jobs.put({"order": 7})
                async for job in jobs.receive(limit=16):
                    async with job:
                        print(job.payload)

        At least once: a job is handed out until a worker has done it, it has failed ``attempts`` times, or it expires.

        Args:
            name: the name of the queue: a topic that the bridge stores, of which every event is a job.
            lease: seconds from when a job is begun until another worker may get it, 0.1 to 7 days; ``Job.extend`` lets
                it begin anew.
            attempts: after so many that failed, 1 to 1,000, a job becomes a dead letter.
            dead: topic of the dead letters; None: ``NAME.dead``, a queue as any other.  A letter is the job with the
                headers ``dead-queue``, ``dead-attempts``, ``dead-error`` and ``dead-place``.
            backoff: seconds before the second attempt, twice as many before the third, and so on, at most an hour.

        Raises:
            ConfigError: an argument is malformed.

        Leaving the block gives back the jobs that were not begun, and waits up to 5 s for the bridge to confirm what
        was reported.  What is not confirmed then may be done twice.  Cancelling it is leaving it.
        """
        self._guard.check()
        return queues.open_work_queue(
            name,
            self._known_members(),
            lease=lease,
            attempts=attempts,
            dead=dead,
            backoff=backoff,
        )

    def consume(
        self,
        *topics: str,
        group: str | None = None,
        start: queues.Start = "earliest",
        until: Literal["now"] | None = None,
        replay: bool = False,
    ) -> AbstractAsyncContextManager[queues.Consumer]:
        """Read the bridge's log in batches: from where a group was, or without one to have a look.

        Example::

            async with bridge.consume("orders.>", group="billing") as orders:
                async for batch in orders:
                    async with batch:
                        for event in batch:
                            print(event.topic, event.payload)

        and what the log holds now, from an hour ago on::

            hour = datetime.now(UTC) - timedelta(hours=1)
            async with bridge.consume("orders.>", start=hour, until="now") as orders:
                found = [event async for batch in orders for event in batch]

        At least once: what was not committed comes again when the group goes on.  In the order of each shard.

        Args:
            topics: patterns.
            group: the consumers that read together; the cluster that has used a group first owns it.  At each member of
                the bridge one consumer of a group reads at a time; others wait, and go on when it is gone.  A group
                that nobody uses for 30 days is forgotten, if the bridge was not started otherwise.  None: the bridge
                keeps no place and writes nothing, ``commit`` does nothing, and any number may read side by side.
            start: where a new group, or a look, begins: ``earliest``, ``latest``, a ``datetime``, or an offset in every
                shard.
            until: ``"now"`` ends the iteration after what each member's log held when it was reached; members that are
                away are waited for.  None: the iteration goes on with what arrives.
            replay: begin at ``start`` although the group is known.

        Raises:
            ConfigError: an argument is malformed.

        The iteration raises NotAllowed or RemoteError if the bridge refuses.  It waits for a bridge that is away.
        Leaving the block, or cancelling it, leaves uncommitted batches to the next consumer of the group.
        """
        self._guard.check()
        check_flags(replay=replay)
        return queues.open_consumer(topics, self._known_members(), group=group, start=start, until=until, replay=replay)

    def _known_members(self) -> queues.BridgeMembers:
        if self._members is None:
            self._members = queues.BridgeMembers(self.name, self._node)
        return self._members

    @checkpointed
    async def drop_group(self, group: str) -> None:
        """Forget a group of readers: its place is gone, its name is free, and the bridge keeps no events for it.

        Only for nodes that speak for the bridge's own cluster, as ``iris bridge drop --group`` does.  Groups that
        nobody uses for 30 days are forgotten anyway, if the bridge was not started otherwise.

        Args:
            group: the name of the group, as ``iris bridge status`` shows it; that of a queue is ``queue/NAME``.

        Raises:
            NotAllowed: this node speaks for another cluster.
            ConfigError: no member of the bridge knows the group.
            RemoteError: a consumer of the group is there (``bad_request``), or the bridge has no room to write.
            NoSuchCluster, RequestTimeout: a member of the bridge is away.  Others may have forgotten the group: call it
                again.

        Cancelling leaves it open which members have forgotten the group.
        """
        self._guard.check()
        await queues.drop_group(group, queues.BridgeMembers(self.name, self._node), self._bridges)

    def lease(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        timeout: float = math.inf,
        cluster: str | None = None,
    ) -> AbstractAsyncContextManager[state.Lease]:
        """Be the only node that does something, until the block ends.

        Example::

            async with bridge.lease("scheduler", ttl=10) as lease:
                await database.run(job, token=lease.token)

        Entering the block waits until no other node has the lease.  A bridge grants it, and has it on disk before it
        says so; without one there are no leases.  The lease is renewed every third of ``ttl``.  If that fails for so
        long, or another node has it, the block is cancelled.  A node that is frozen may notice too late: so give
        ``lease.token`` to what only the holder may change, and have that refuse smaller ones than it has seen.

        Args:
            name: the name of the lease, within the cluster.
            ttl: seconds, 1 to 3,600, after which another node may have it when this one is gone or cut off.
            timeout: seconds to wait for it.
            cluster: whose lease it is: each cluster has its own, and this node is a member of it.  None: the one it
                speaks for.  The leader of a cluster is who has ``lease("leader", cluster=CLUSTER)``.

        Raises:
            NoSuchCluster: no bridge can be reached.
            RequestTimeout: the lease was not free in time.
            NotAllowed: this node is no member of the cluster.
            RemoteError: the bridge has no room, or cannot write; the message says which.
            LeaseLost: raised when the block is left; it was cancelled, or ended after the lease.
            ConfigError: the name or ``ttl`` is malformed.

        Leaving the block gives the lease back.  Cancelling the waiting leaves nothing behind.
        """
        self._guard.check()
        check_name(name, "lease")
        return state.open_lease(
            self._bridges,
            self.name,
            self._node.name if cluster is None else check_name(cluster, "cluster"),
            name,
            check_between(ttl, "ttl", MIN_TTL, MAX_TTL),
            check_timeout(timeout),
            self._random,
        )

    def saga(
        self, name: str, *, timeout: float = 60.0, keep: float = 7 * 24 * 3600.0
    ) -> AbstractAsyncContextManager[state.Saga]:
        """Do several steps at other clusters, and undo those that were done if a later one fails.

        Example::

            async with bridge.saga("order-7") as saga:
                await saga.request("stock", order, operation="reserve", undo="release")
                await saga.request("payments", order, operation="charge", undo="refund")

        If the block ends without an error, so does the saga.  If it raises, a bridge notes that, the compensations are
        called in the reverse order, each until it has an outcome, and the error becomes ``SagaUndone``.  If this node
        dies, nothing is undone: the saga has to be run again, best by the worker that gets its job from a queue.  Then
        steps and compensations that have an outcome are not called again, and the others follow.

        Args:
            name: the name of the saga, within the cluster that this node speaks for: the same when it is run
                again.  Each is run by one node at a time; another one waits.
            timeout: seconds for the steps.  When they are over the block is cancelled, and nothing is undone.
            keep: seconds for which the end of the saga is remembered, 1 s to 366 days.

        Raises:
            SagaUndone: the block raised, now or when it was run before.  Then it is not entered again.
            RequestTimeout: the steps have taken too long, or another node runs the saga.
            LeaseLost: this node was taken for lost, and another one runs the saga.
            NoSuchCluster: there is no bridge.
            RemoteError: the bridge refuses.
            ConfigError: an argument is malformed.

        Cancelling the block is as if this node had died.  Cancelled while it compensates, the rest is left to the next
        one that runs the saga.
        """
        self._guard.check()
        seconds, kept = check_timeout(timeout), check_between(keep, "keep", MIN_KEEP, MAX_KEEP)
        claims = KeyClaims(self.name, self._bridges)
        holder = self._bridges.entropy(16)
        return state.open_saga(
            self._node.request, claims, self._node.name, check_name(name, "saga"), seconds, kept, holder
        )
