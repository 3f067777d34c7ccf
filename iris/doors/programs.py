"""Clusters that programs without a node serve through a door.

The door's node is the member, once for each cluster, and hands what comes to its programs.  Each program as a node of
its own was rejected: a node has a session and a link with every caller, and is probed by all others, so that a thousand
idle programs would be a thousand nodes, in one process, to everybody.  The node's worker pool does for all programs
what it does for handlers: its queue, shedding, deadlines and counters; it runs as many handlers as the programs take at
a time, and callers know how many programs there are (``Weight``), so that each gets as much as another member does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Generic, Protocol, TypeVar, final

import trio

import iris.aio
from iris.doors.problems import Problem
from iris.kernel.errors import IrisError, RemoteError
from iris.patterns.messages import Message, Request
from iris.patterns.request import DRAINING, MEMBER_LEFT
from iris.patterns.service import Limits, Outcomes, Unserved, stand_in

K = TypeVar("K")

_UNANSWERED: Final = 3
"""Requests in a row that a program has left unanswered until their deadline, after which it gets one at a time."""

_MOST_OF_IT: Final = 0.9
"""Part of its time after which a request that is cancelled was left unanswered, and not given up for another reason."""


class Program(Protocol):
    """A program that serves a cluster.  Its methods are called in the door's event loop, many at a time.

    Attributes:
        capacity: requests that it takes at a time.
    """

    capacity: int

    async def ask(self, request: Request) -> object:
        """Have it serve a request, and return its reply.  Cancelled, it is told that nobody waits any more.

        Raises:
            Unserved: it is gone, or has no room.
            RemoteError: it has answered with an error.
        """
        ...

    async def broadcast(self, message: Message, /) -> bool:
        """Give it a broadcast; return False if it has none of the room for that.  It may wait for some."""
        ...

    async def talk(self, tunnel: iris.aio.Tunnel, /) -> None:
        """Connect it with who has opened a tunnel, until one of them ends it."""
        ...

    def drain(self) -> None:
        """Tell it that no new work comes."""
        ...

    def end(self) -> None:
        """End it: the node is a member no more."""
        ...


@final
class Asked:
    """A request that a program has.

    Attributes:
        reply: its reply, once it is there.
        size: bytes of the reply.
    """

    __slots__ = ("reply", "size")

    def __init__(self) -> None:
        self.reply: Final[asyncio.Future[object]] = asyncio.get_running_loop().create_future()
        self.size = 0


class AskedProgram(Generic[K]):
    """Base of a ``Program`` whose protocol has requests, and neither tunnels nor a word for draining.

    Args:
        protocol: its name, for errors.
    """

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._asked: dict[K, Asked] = {}
        """Requests that the program has, by what its answers name them."""

    async def talk(self, _: iris.aio.Tunnel, /) -> None:
        """See ``Program``: refused."""
        raise RemoteError("no_such_operation", f"a program of {self._protocol} has no tunnels")

    def drain(self) -> None:
        """See ``Program``: the connection ends when the node has left."""

    def lose(self) -> None:
        """Answer for what it was at, as it is gone."""
        for asked in self._asked.values():
            if not asked.reply.done():
                asked.reply.set_exception(Unserved(MEMBER_LEFT))


@final
class _Place:
    """A program at a cluster, and what it is at."""

    __slots__ = ("program", "running", "tunnels", "unanswered")

    def __init__(self, program: Program) -> None:
        self.program: Final = program
        self.running = self.tunnels = self.unanswered = 0

    @property
    def capacity(self) -> int:
        return 1 if self.unanswered >= _UNANSWERED else self.program.capacity

    def load(self) -> float:
        """Return the part of it that is taken; 1 and more: full."""
        return self.running / self.capacity


@final
class ServedCluster:
    """A cluster that a door's node serves for programs.  Made by ``ServedClusters``.

    Attributes:
        holders: programs that are there, come or go.
        joined: set when the node is a member, or is none because of ``error``.
        ended: set when it is a member no more.
        empty: set when the last holder has gone.
        missed: broadcasts that a program did not get, as it had no room.
        outcomes: rules by which outcomes of requests with an idempotency key are kept; None: such ones are refused.
    """

    def __init__(self, node: iris.aio.Node, cluster: str, outcomes: Outcomes | None) -> None:
        self.holders = 0
        self.joined: Final = asyncio.Event()
        self.empty: Final = asyncio.Event()
        self.ended: Final = asyncio.Event()
        self.error: Exception | None = None
        self.missed = 0
        self.outcomes: Final = outcomes
        self._node = node
        self._cluster = cluster
        self._places: list[_Place] = []
        self._running = 0
        """Requests that programs are at, with those that get no new work."""
        self._membership: iris.aio.ClusterMembership | None = None
        self._left = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def programs(self) -> int:
        """Number of programs that get work."""
        return len(self._places)

    @property
    def is_leaving(self) -> bool:
        """True once nothing new is taken."""
        return self._left.is_set()

    def leave(self) -> None:
        """Take nothing new, and let the programs know; what is in progress is finished."""
        for place in self._places:
            place.program.drain()
        self._left.set()
        self._wake()

    async def run(self) -> None:
        """Be a member until ``leave``, and until what is in progress then is over."""
        try:
            service = stand_in(self._cluster, self._request, self._broadcast, self._tunnel)
            service.outcomes = self.outcomes
            async with self._node.join(self._cluster, service, limits=Limits(concurrency=1)) as self._membership:
                self._resize()
                self.joined.set()
                await self._left.wait()
        except (IrisError, trio.ClosedResourceError) as error:  # not allowed, no name, or the node is closed
            self.error = error
        finally:
            self._membership = None
            self.leave()
            self.joined.set()
            self.ended.set()
            for place in self._places:
                place.program.end()

    @contextmanager
    def having(self, program: Program) -> Generator[None]:
        """Give a program its part of the work for the length of the block, or until ``drop``."""
        self._places = [*self._places, _Place(program)]
        self._resize()
        try:
            yield
        finally:
            self.drop(program)

    def drop(self, program: Program) -> None:
        """Give a program no new work."""
        self._places = [place for place in self._places if place.program is not program]
        self._resize()

    def _resize(self) -> None:
        if self._membership is not None:
            most = max(1, sum(place.capacity for place in self._places))
            # What programs that drain are at takes no place: a request finds another program, or is refused at once.
            drained = self._running - sum(place.running for place in self._places)
            self._membership._inner._serving.resize(most + drained, max(1, len(self._places)))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _request(self, request: Request) -> object:
        if request._part is not None and len(self._places) > 1:
            return await self._ask_each(request, request._part)
        while True:
            place = await self._room()
            try:
                return await self._ask(place, request)
            except Unserved as unserved:
                if unserved.code != DRAINING or self._left.is_set():
                    raise
                self.drop(place.program)  # it is gone and has not begun: another one may

    async def _ask_each(self, request: Request, part: Callable[[int, object], None]) -> object:
        """Ask every program that is there, as soon as it has room; return what the last one answers."""
        places = self._places
        left = len(places)
        last: object = None

        async def ask(place: _Place) -> None:
            nonlocal left, last
            try:
                while place.load() >= 1 and place in self._places:
                    await self._changed.wait()
                if place not in self._places:
                    raise Unserved(DRAINING)
                answer = await self._ask(place, request)
            except (RemoteError, Unserved) as error:
                answer = error
            left -= 1
            if left:
                part(len(places), answer)
            else:
                last = answer

        async with asyncio.TaskGroup() as tasks:
            for place in places:
                tasks.create_task(ask(place))
        if isinstance(last, Exception):
            raise last
        return last

    async def _ask(self, place: _Place, request: Request) -> object:
        before, began = place.capacity, trio.current_time()
        place.running += 1
        self._running += 1
        try:
            reply = await place.program.ask(request)
        except asyncio.CancelledError:
            # Its caller, whose clock says so first, cancels it when the time is over.
            if trio.current_time() - began > _MOST_OF_IT * (request.deadline - began):
                place.unanswered += 1
            raise
        except RemoteError:
            place.unanswered = 0
            raise
        else:
            place.unanswered = 0
            return reply
        finally:
            place.running -= 1
            self._running -= 1
            if place.capacity == before and place in self._places:
                self._wake()
            else:
                self._resize()

    async def _room(self) -> _Place:
        """Wait for a program that has room, and return it: of two, the one that has more of it."""
        while True:
            places = self._places
            if not places:  # the last one drains, or is gone: callers are to ask other members
                raise Unserved(DRAINING)
            found = min(random.sample(places, min(2, len(places))), key=_Place.load)
            if found.load() >= 1:
                found = min(places, key=_Place.load)
            if found.load() < 1:
                return found
            await self._changed.wait()

    async def _broadcast(self, message: Message) -> None:
        told = await asyncio.gather(*(place.program.broadcast(message) for place in self._places))
        self.missed += told.count(False)
        if not any(told):
            raise RuntimeError("no program had room for it")

    async def _tunnel(self, tunnel: iris.aio.Tunnel) -> None:
        place = min(self._places, key=lambda place: place.tunnels, default=None)
        if place is None:
            raise Unserved(DRAINING)
        place.tunnels += 1
        try:
            await place.program.talk(tunnel)
        finally:
            place.tunnels -= 1


@final
class ServedClusters:
    """The clusters that a door's node serves for programs.

    Attributes:
        member: the node, as callers see it.
        patience: seconds that a member may make broadcasts wait.
        bridge: cluster of the bridge that keeps the outcomes of requests with an idempotency key.
    """

    def __init__(self, node: iris.aio.Node, bridge: str = "bridge") -> None:
        self.bridge: Final = bridge
        self.member: Final = str(node.id)
        self.patience: Final = node._inner._config.broadcast_patience
        self._node = node
        self._clusters: dict[str, ServedCluster] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._missed = 0

    @property
    def programs(self) -> int:
        """Number of programs that serve, those that drain left out."""
        return sum(served.programs for served in self._clusters.values())

    @property
    def missed(self) -> int:
        """Number of broadcasts that a program did not get, as it had no room."""
        return self._missed + sum(served.missed for served in self._clusters.values())

    @asynccontextmanager
    async def joined(self, cluster: str, outcomes: Outcomes | None = None) -> AsyncGenerator[ServedCluster]:
        """Have the node be a member of a cluster for the length of the block.

        Raises:
            Problem: it may not, or keeps other outcomes there, for a program that came before.
        """
        if cluster == self.bridge or cluster.startswith(f"{self.bridge}."):  # callers of a bridge trust it
            raise Problem(403, "not_allowed", f"{cluster!r:.300} is the bridge of this door, which no program serves")
        while (served := self._clusters.get(cluster)) is not None and served.is_leaving:
            await served.ended.wait()
        if served is None:
            served = self._clusters[cluster] = ServedCluster(self._node, cluster, outcomes)
            task = asyncio.create_task(self._run(cluster, served))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif served.outcomes != outcomes:
            raise Problem(400, "malformed", f"all programs that serve {cluster!r:.300} here say the same keep")
        served.holders += 1
        try:
            await served.joined.wait()
            if served.error is not None:
                raise Problem(403, "not_allowed", f"the door may not serve {cluster!r:.300}: {served.error}")
            if served.is_leaving:
                raise Problem(401, "ended", "the token has ended, or the door closes")
            yield served
        finally:
            served.holders -= 1
            if not served.holders:
                served.leave()
                served.empty.set()

    async def _run(self, cluster: str, served: ServedCluster) -> None:
        try:
            await served.run()
        finally:
            del self._clusters[cluster]
            self._missed += served.missed

    async def close(self) -> None:
        """Leave all clusters, once what is in progress is over, for the node's ``drain_timeout`` at most."""
        leaving = list(self._clusters.values())
        for served in leaving:
            served.leave()
        for served in leaving:
            await served.ended.wait()
            await served.empty.wait()
