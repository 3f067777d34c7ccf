"""Requests of one node to 10, 100 and 1,000 members, all on a network in memory and in one process.

Links, handshakes, sealing, balancer and handlers are the real ones.  Gossip is left out: nodes link to all that they
hear of, and 1,000 in one process would have half a million links.  What it costs does not grow with the members
(``python -m benchmarks.membership``).

What is lost with 64 requests at one time is the batch: with 10 members two requests share a frame, with 100 each has
its own, and the reply, too (2.0 frames for a request instead of 0.9, 528 Python calls instead of 331).  One at a time
shows what the members themselves cost (766 calls instead of 688).

The members' work is in the rate, too, and all of them share one core's caches, which no members elsewhere do: a
thousand nodes are cold when their turn comes.  So the processor time of the asker's own tasks is measured besides.  The
three take turns in short slices, so that a machine that slows down slows all of them down.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter, thread_time, time
from typing import Final, final

import trio

import iris
from benchmarks.system import Task
from benchmarks.task_time import TaskTime, marked, unmark
from iris.bench.cases import MEMBERS
from iris.cluster.balancing.balancer import Balancer
from iris.cluster.balancing.subset import Aperture
from iris.cluster.mesh.mesh import Mesh
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.transport.memory import MemoryNetwork
from iris.patterns.books import Bookkeeper
from iris.patterns.multicast.relay import Relays
from iris.patterns.request.requests import Requests
from iris.patterns.service.server import Server
from iris.patterns.service.worker_pool import Role, WorkerPools
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.identity.credential import Credential
from tests.support.admission import open_reading_mesh

CLUSTER: Final = "benchmark"
CONFIG: Final = Config(handshake_timeout=60.0, session_lifetime=3600.0, session_rejected=7200.0)
"""Linking a thousand takes a while on a busy machine; handshakes anew every two minutes are no part of this."""

SLICES: Final = 5
"""Turns that each number of members gets."""

WARM_UP: Final = 0.3
"""Share of a slice's work that comes before what counts."""

SETTLING: Final = 0.5
"""Seconds before the first slice: the asker finds out how many members to ask, in steps of 50 ms."""


@final
class _Members:
    """The members of the one cluster that there is."""

    def __init__(self) -> None:
        self._balancer = Balancer(random.Random(1), aperture=Aperture(thread_time))

    def add(self, node: NodeId) -> None:
        self._balancer.add(node)

    def picker(self, cluster: str) -> Balancer | None:
        return self._balancer if cluster == CLUSTER else None

    def is_silent(self, cluster: str) -> bool:  # noqa: ARG002 -- nobody is
        return False

    def had_members(self, cluster: str) -> bool:
        return cluster == CLUSTER

    def awaits_successor(self, cluster: str) -> bool:  # noqa: ARG002 -- nobody leaves
        return False

    async def wait_news(self) -> None:
        await trio.sleep_forever()

    def clusters(self, at_most: int | None = None) -> Sequence[str]:  # noqa: ARG002 -- there are none
        return ()

    def weight(self, cluster: str, node: NodeId) -> int:  # noqa: ARG002 -- each stands for itself
        return 1

    def member_ids(self, cluster: str) -> Sequence[NodeId]:
        return tuple(self._balancer.nodes) if cluster == CLUSTER else ()


@asynccontextmanager
async def _open_mesh(network: MemoryNetwork, credential: Credential, number: int) -> AsyncIterator[Mesh]:
    transport = network.transport(f"host-{number}")
    listening = await transport.listen([f"mem://{number}"])
    identity = credential.new_identity(os.urandom, time())
    async with open_reading_mesh(
        identity, transport, listening, config=CONFIG, entropy=os.urandom, wall_clock=time
    ) as mesh:
        yield mesh


class AllWell:
    """Members of which none is suspected."""

    def is_suspected(self, node: NodeId) -> bool:
        """Return False."""
        del node
        return False

    def request_link(self, node: NodeId) -> bool:
        """Return False: all are linked."""
        del node
        return False

    def site_of(self, node: NodeId) -> str:
        """Return that it is at none."""
        del node
        return ""


async def _serve(
    network: MemoryNetwork, credential: Credential, number: int, task_status: trio.TaskStatus[Mesh]
) -> None:
    """Be a member.  Each is a task of its own: deadlines are looked up through all scopes that a task is in."""
    unmark()
    service = iris.Service(CLUSTER)

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    async with _open_mesh(network, credential, number) as mesh:
        relays, books = Relays(mesh, AllWell()), Bookkeeper(mesh)
        serving = Server(mesh, relays, books, WorkerPools())
        mesh.observe(books, relays, serving)
        async with serving.serve(CLUSTER, Role(service, iris.Limits(concurrency=64, queue=1024))):
            task_status.started(mesh)
            await trio.sleep_forever()


@asynccontextmanager
async def _open_asker(credential: Credential, members: int) -> AsyncIterator[Requests]:
    """Open a node that is linked to so many members."""
    network = MemoryNetwork(latency=(0.0, 0.0))
    directory = _Members()
    async with _open_mesh(network, credential, 0) as asker, trio.open_nursery() as nursery:
        for number in range(1, members + 1):
            member = await nursery.start(_serve, network, credential, number)
            await asker.connect(member.listening, expected=member.node)
            directory.add(member.node)
        books = Bookkeeper(asker)
        requests = Requests(asker, directory, CONFIG, books.ledger)
        asker.observe(books, requests)
        yield requests
        nursery.cancel_scope.cancel()


async def _ask(
    requests: Requests, concurrency: int, payload: bytes, seconds: float, work: TaskTime
) -> tuple[float, float]:
    """Return the requests answered per second, and per second of the asker's processor time."""
    answered = asked = 0
    worked = work.seconds
    begin = perf_counter() + seconds * WARM_UP
    end = begin + seconds

    async def client() -> None:
        nonlocal answered, asked
        while (before := perf_counter()) < end:
            await requests.request(requests.call(CLUSTER, payload, timeout=5.0))
            asked += 1
            answered += before >= begin

    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.run)
        async with trio.open_nursery() as clients:
            for _ in range(concurrency):
                clients.start_soon(client)
        nursery.cancel_scope.cancel()
    return answered / seconds, asked / (work.seconds - worked)


async def members(task: Task) -> None:
    """Measure each number of members in turn, again and again."""
    _, credential = issue_cluster(create_realm(os.urandom), CLUSTER, entropy=os.urandom, wall_now=time())
    payload = bytes(task.case.size)
    rates: dict[int, list[tuple[float, float]]] = {number: [] for number in MEMBERS}
    work = TaskTime()
    trio.lowlevel.add_instrument(work)
    async with AsyncExitStack() as stack:
        stack.enter_context(marked())
        askers = {number: await stack.enter_async_context(_open_asker(credential, number)) for number in MEMBERS}
        for asker in askers.values():
            await _ask(asker, task.case.concurrency, payload, SETTLING, work)
        for _ in range(SLICES):
            for number, asker in askers.items():
                rates[number].append(await _ask(asker, task.case.concurrency, payload, task.seconds / SLICES, work))
    of_all = {number: statistics.median(rate for rate, _ in found) for number, found in rates.items()}
    of_asker = {number: statistics.median(rate for _, rate in found) for number, found in rates.items()}
    figures = {f"rate-{number}": rate for number, rate in of_all.items()}
    figures["kept"] = of_all[MEMBERS[-1]] / of_all[MEMBERS[0]]
    figures["kept-by-asker"] = of_asker[MEMBERS[-1]] / of_asker[MEMBERS[0]]
    task.finish(**figures)
