"""Workloads: Iris's part in each measurement, with the clock, end mark, source loops and percentiles that all share.

A stream ends with a message of another size than the rest, which carries the number of messages sent.  The clock is
``time.perf_counter_ns``, which on Linux is one clock for all processes of a machine, so ages need no synchronizing.

``iris bench`` measures a user's network with these workloads, and ``make bench`` this machine, beside other systems.
The nodes are up already.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Protocol, final

import trio

import iris
from iris.bench.cases import Case
from iris.kernel.names import NodeId

if TYPE_CHECKING:
    import iris.aio  # which imports asyncio

WARM_UP = 0.1
"""Seconds that a source works before its figures count."""

BURST = 64
"""Messages that a source sends between two looks at the clock."""

TIMER = 1_500_000
"""Nanoseconds by which a timer may be late: event loops count whole milliseconds, and the machine wakes them."""

_COUNT = struct.Struct("<Q")
MARK_SIZE = _COUNT.size


class Task(Protocol):
    """Task of one end of a measurement, and where it reports its figures."""

    @property
    def case(self) -> Case:
        """The work."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds for which the source works."""
        ...

    def finish(self, **figures: float) -> None:
        """Report the figures of this end."""
        ...


def end_mark(sent: int) -> bytes:
    """Return the message that ends a stream of ``sent`` messages."""
    return _COUNT.pack(sent)


def stamp_at(moment: int, size: int) -> bytes:
    """Return a payload of ``size`` bytes that carries the ``perf_counter_ns`` time ``moment``."""
    return _COUNT.pack(moment).ljust(size, b".")


def finish_stream(task: Task, received: int, started: float, mark: bytes) -> None:
    """Report a sink's share of a stream.  ``started`` is the time of its first message, which is not in the rate."""
    elapsed = perf_counter() - started
    (sent,) = _COUNT.unpack(mark)
    rate = max(0, received - 1) / elapsed
    task.finish(rate=rate, throughput=rate * task.case.size / 2**20, lost=sent - received)


class Ages:
    """Ages of messages when they are delivered."""

    def __init__(self) -> None:
        self._ages: list[int] = []

    def note(self, payload: bytes | memoryview) -> None:
        """Note the age of one message that was made by ``stamp_at``."""
        now = perf_counter_ns()
        self._ages.append(now - _COUNT.unpack_from(payload)[0])

    def finish(self, task: Task, mark: bytes) -> None:
        """Report the percentiles, without the first tenth, which warms up."""
        (sent,) = _COUNT.unpack(mark)
        counted = self._ages[len(self._ages) // 10 :]
        figures = {name: value / 1000 for name, value in percentiles(counted).items()}
        task.finish(lost=sent - len(self._ages), **figures)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 to p99.999 of ``values``: the nearest rank, so that each is a value that occurred."""
    ordered = sorted(values)
    last = len(ordered) - 1
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "p99.999": 0.99999}
    return {name: float(ordered[min(last, math.ceil(rank * len(ordered)) - 1)]) for name, rank in ranks.items()}


async def send_stream(task: Task, send: Callable[[bytes], Awaitable[object]]) -> float:
    """Send payloads as fast as ``send`` accepts them for the time of the task, then the end mark.

    Returns the messages that were accepted in a second.
    """
    payload = bytes(task.case.size)
    sent = 0
    begin = perf_counter()
    end = begin + task.seconds
    while perf_counter() < end:
        for _ in range(BURST):
            await send(payload)
        sent += BURST
    rate = sent / (perf_counter() - begin)
    await send(end_mark(sent))
    return rate


def send_stream_nowait(task: Task, send: Callable[[bytes], object]) -> None:
    """Send as ``send_stream`` does, by a ``send`` that blocks."""
    payload = bytes(task.case.size)
    sent = 0
    end = perf_counter() + task.seconds
    while perf_counter() < end:
        for _ in range(BURST):
            send(payload)
        sent += BURST
    send(end_mark(sent))


async def send_paced(
    task: Task, send: Callable[[bytes], Awaitable[object]], sleep: Callable[[float], Awaitable[object]]
) -> None:
    """Send payloads at the pace of the case, then the end mark.

    Each carries the time at which it was due, not the time at which it was sent: a system that holds up its source
    makes the messages older, as its users would see it.  Only the lateness of the timer is not counted, and no more
    than a timer has by itself: one that is later had to wait for what the system did in the same thread.
    """
    schedule = Schedule(task)
    for number in range(schedule.count):
        await send(stamp_at(await schedule.wait(number, sleep), task.case.size))
    await send(end_mark(schedule.count))


class Schedule:
    """Times at which the messages of a case with a pace are due, whatever becomes of those before them.

    Attributes:
        count: messages in all.
    """

    def __init__(self, task: Task) -> None:
        self.count = max(200, int(task.case.pace * task.seconds))
        self._interval = 1e9 / task.case.pace
        self._begin = self._woken = perf_counter_ns() + 1_000_000

    async def wait(self, number: int, sleep: Callable[[float], Awaitable[object]]) -> int:
        """Wait until a message is due, and return from when its age counts: see ``send_paced``."""
        due = self._begin + int(number * self._interval)
        ahead = due - perf_counter_ns()
        if ahead > 0:
            await sleep(ahead / 1e9)
            self._woken = min(perf_counter_ns(), due + TIMER)
        return max(due, self._woken)


class Latencies:
    """Round trips of one source, asked by any number of clients at the same time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seconds: list[float] = []
        self._begin = perf_counter() + WARM_UP
        self._end = self._begin + task.seconds

    async def client(self, ask: Callable[[bytes], Awaitable[object]]) -> None:
        """Ask again and again until the time is over and there is at least one answer to report."""
        payload = bytes(self._task.case.size)
        seconds = self._seconds
        before = perf_counter()
        while before < self._end or not seconds:
            await ask(payload)
            after = perf_counter()
            if before >= self._begin:
                seconds.append(after - before)
            before = after

    def client_nowait(self, ask: Callable[[bytes], object]) -> None:
        """Ask as ``client`` does, by an ``ask`` that blocks."""
        payload = bytes(self._task.case.size)
        before = perf_counter()
        while before < self._end or not self._seconds:
            ask(payload)
            after = perf_counter()
            if before >= self._begin:
                self._seconds.append(after - before)
            before = after

    def finish(self) -> None:
        """Report the rate and the percentiles."""
        figures = {name: value * 1e6 for name, value in percentiles(self._seconds).items()}
        self._task.finish(rate=len(self._seconds) / self._task.seconds, **figures)


async def count_events(node: iris.Node | iris.aio.Node, topic: str, task: Task, ready: Callable[[], None]) -> None:
    """Count events until the end mark; ``ready`` is called when none will be missed."""
    async with node.subscribe(topic, overflow="wait") as events:
        ready()
        received = 0
        started = 0.0
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                finish_stream(task, received, started, event.payload)
                return
            if not received:
                started = perf_counter()
            received += 1


async def publish_events(node: iris.Node | iris.aio.Node, topic: str, task: Task) -> float:
    """Publish as fast as it goes; return the rate."""
    return await send_stream(task, lambda payload: node.publish(topic, payload))


async def age_events(node: iris.Node, topic: str, task: Task, ready: Callable[[], None]) -> None:
    """Note how old events are, until the end mark."""
    ages = Ages()
    async with node.subscribe(topic) as events:
        ready()
        async for event in events:
            if len(event.payload) == MARK_SIZE:
                ages.finish(task, event.payload)
                return
            ages.note(event.payload)


async def publish_paced(node: iris.Node, topic: str, task: Task) -> None:
    """Publish at the pace of the case."""
    await send_paced(task, lambda payload: node.publish(topic, payload), trio.sleep)


async def echo(request: iris.Request) -> object:
    """Answer with the payload."""
    return request.payload


async def ask(node: iris.Node, cluster: str, task: Task, *, prefer: str | None = None) -> None:
    """Ask with as many outstanding requests as the case says."""
    latencies = Latencies(task)
    options = None if prefer is None else iris.RequestOptions(prefer=NodeId(prefer))

    async def request(payload: bytes) -> object:
        return await node.request(cluster, payload, options=options)

    async with trio.open_nursery() as nursery:
        for _ in range(task.case.concurrency):
            nursery.start_soon(latencies.client, request)
    latencies.finish()


async def ask_by_schedule(node: iris.Node, cluster: str, task: Task, *, prefer: NodeId) -> None:
    """Ask whenever a request is due, however many have no reply yet; those that fail are lost.

    So the latencies are corrected for coordinated omission: a standstill counts for each request that falls into it.
    """
    payload = bytes(task.case.size)
    options = iris.RequestOptions(prefer=prefer)
    schedule = Schedule(task)
    latencies: list[int] = []
    lost = 0

    async def request(since: int) -> None:
        nonlocal lost
        try:
            await node.request(cluster, payload, options=options)
        except iris.DeliveryError:
            lost += 1
        else:
            latencies.append(perf_counter_ns() - since)

    async with trio.open_nursery() as nursery:
        for number in range(schedule.count):
            nursery.start_soon(request, await schedule.wait(number, trio.sleep))
    if not latencies:
        raise iris.MemberLost(f"none of {lost} requests to cluster {cluster!r} was answered")
    task.finish(lost=lost, **{name: value / 1000 for name, value in percentiles(latencies).items()})


async def receive_bulk(tunnel: iris.Tunnel, task: Task) -> None:
    """Take pieces until the end mark."""
    await tunnel.receive()
    received = 1
    started = perf_counter()
    async for payload in tunnel:
        if len(payload) == MARK_SIZE:
            finish_stream(task, received, started, payload)
            return
        received += 1


@final
class BroadcastCount:
    """Counts broadcasts until the end mark."""

    def __init__(self, task: Task) -> None:
        self.ended = trio.Event()
        self._task = task
        self._received = 0
        self._started = 0.0

    def note(self, payload: bytes) -> None:
        """Take one broadcast."""
        if len(payload) == MARK_SIZE:
            finish_stream(self._task, self._received, self._started, payload)
            self.ended.set()
        elif not self._received:
            self._started = perf_counter()
        self._received += 1


async def broadcast(node: iris.Node, cluster: str, task: Task) -> float:
    """Broadcast as fast as it goes; return the rate."""
    return await send_stream(task, lambda payload: node.broadcast(cluster, payload))


async def shake_hands(node: iris.Node, addresses: Sequence[str], task: Task) -> None:
    """Connect as nodes do when a connection broke: TCP, a full handshake, the first word under the new session."""
    latencies = Latencies(task)
    mesh = node._parts.mesh

    async def connect(_: bytes) -> None:
        peer = await mesh.connect(addresses)
        await mesh.barrier(peer.node)  # its answer shows that the other end has finished, too

    async with trio.open_nursery() as nursery:
        for _ in range(task.case.concurrency):
            nursery.start_soon(latencies.client, connect)
    latencies.finish()


UNLIMITED = iris.Config(handshake_rate=1e6, handshake_burst=1_000_000, half_open_per_address=1024)
"""Limits of a node that all come to from one address: it may otherwise begin 50 handshakes a second."""
