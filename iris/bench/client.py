"""Client end of ``iris bench``: runs one case with the members of a cluster that serves it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Final

import iris
from iris.bench.cases import CASES, OPEN, P9999, P99999, SENT, THROUGHPUT, Case, Figure
from iris.bench.service import BenchRun, clock_name
from iris.bench.workload import (
    ask,
    ask_by_schedule,
    broadcast,
    publish_events,
    publish_paced,
    send_stream,
    shake_hands,
)
from iris.kernel.names import NodeId

_MORE: Final[Mapping[str, tuple[Figure, ...]]] = {
    "stream": (SENT,),
    "broadcast": (SENT,),
    "tunnel": (dataclasses.replace(SENT, unit=THROUGHPUT.unit),),
    "paced": (P9999, P99999),
    "request": (),
}
"""Figures that are read from a case here, but not for a comparison with other systems."""

NETWORK: Final = (
    *(dataclasses.replace(case, figures=(*case.figures, *_MORE[case.kind])) for case in CASES if case.kind in _MORE),
    OPEN,
)
"""Cases that can be measured between any two nodes."""

ALONE: Final = (*NETWORK, *(case for case in CASES if case.kind == "handshake"))
"""Cases that can be measured where both ends are this program's own."""

_PATIENCE: Final = 30.0
"""Seconds for an answer, beyond ten times the time of the work: a slow network has to take what was sent."""

_ROUND_TRIPS: Final = 50
"""Readings of the other clock; the fastest one counts."""


def among(case: Case, members: int) -> Case:
    """Return ``case`` with so many receivers, if it is one of many; its title says how many."""
    if case.sinks < 2 or case.sinks == members:
        return case
    return dataclasses.replace(case, sinks=members, title=case.title.replace(f"to {case.sinks}", f"to {members}"))


async def measure(
    node: iris.Node, cluster: str, members: Sequence[iris.Member], case: Case, seconds: float
) -> dict[str, float]:
    """Return the figures of one round of ``case``; those of several receivers are added up.

    Args:
        node: the sending end.
        cluster: the cluster that serves ``iris.Service`` of ``Bench``.
        members: the receivers: all if the case is one of many receivers, else the first.
        case: the case to measure.
        seconds: length of the measurement.

    Raises:
        iris.IrisError: the other end failed, or did not answer in time.
    """
    run = BenchRun(case, seconds)
    receivers = [member.node for member in (members if case.sinks > 1 else members[:1])]
    match case.kind:
        case "request":
            await ask(node, cluster, run, prefer=receivers[0])
        case "open":
            await ask_by_schedule(node, cluster, run, prefer=receivers[0])
        case "handshake":
            await shake_hands(node, [url for url in members[0].addresses if url.startswith("tcp://")], run)
        case "tunnel":
            return await _measure_tunnel(node, cluster, run)
        case "paced":
            before = await _clock_ahead(node, cluster, receivers[0])
            figures = await _measure_received(node, cluster, run, receivers)
            after = await _clock_ahead(node, cluster, receivers[0])
            return _corrected(figures, before, after)
        case _:
            return await _measure_received(node, cluster, run, receivers)
    return run.figures


async def _measure_received(
    node: iris.Node, cluster: str, run: BenchRun, receivers: Sequence[NodeId]
) -> dict[str, float]:
    """Send to all ``receivers``, and have them say what they got."""
    name = uuid.uuid4().hex
    order = {"case": run.case.name, "seconds": run.seconds, "run": name}
    for receiver in receivers:
        answered = await node.request(
            cluster, order, operation="begin", timeout=_PATIENCE, options=iris.RequestOptions(prefer=receiver)
        )
        if answered != receiver:
            raise iris.MemberLost(f"node {receiver} of cluster {cluster!r} is gone or busy")
    topic = f"{cluster}.{name}"
    sent: dict[str, float] = {}
    match run.case.kind:
        case "stream":
            sent = {"sent": await publish_events(node, topic, run)}
        case "paced":
            await publish_paced(node, topic, run)
        case _:
            sent = {"sent": await broadcast(node, cluster, run)}
    found = [await _figures_of(node, cluster, receiver, name, run.seconds) for receiver in receivers]
    return sent | {figure: sum(one[figure] for one in found) for figure in found[0]}


async def _figures_of(node: iris.Node, cluster: str, receiver: NodeId, run: str, seconds: float) -> Mapping[str, float]:
    timeout = 10 * seconds + _PATIENCE
    figures: Mapping[str, float] = await node.request(
        cluster, run, operation="figures", timeout=timeout, options=iris.RequestOptions(prefer=receiver)
    )
    return figures


async def _measure_tunnel(node: iris.Node, cluster: str, run: BenchRun) -> dict[str, float]:
    async with node.open_tunnel(cluster, timeout=_PATIENCE) as tunnel:
        await tunnel.send(run.case.name)
        sent = await send_stream(run, tunnel.send)
        figures: dict[str, float] = await tunnel.receive()
    return {**figures, "sent": sent * run.case.size / 2**20}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Microseconds by which another clock is ahead of this one, and the error of that."""

    by: float
    error: float


async def _clock_ahead(node: iris.Node, cluster: str, member: NodeId) -> Ahead:
    """Compare clocks: the fastest round trip is the best estimate, and half of it is the error bound."""
    readings: list[tuple[int, float]] = []
    other = ""
    for _ in range(_ROUND_TRIPS):
        sent = perf_counter_ns()
        there, other = await node.request(
            cluster, operation="clock", timeout=_PATIENCE, options=iris.RequestOptions(prefer=member)
        )
        back = perf_counter_ns()
        readings.append((back - sent, there - (sent + back) / 2))
    return estimate(readings, same=bool(other) and other == clock_name())


def estimate(readings: Sequence[tuple[int, float]], *, same: bool) -> Ahead:
    """Return how far a clock is ahead, by round trips and the difference seen in each, in nanoseconds.

    Clocks that are the ``same`` are not apart, unless the readings show it (a container may shift its own).
    """
    trip, ahead = min(readings)
    if same and abs(ahead) <= trip / 2:
        return Ahead(by=0.0, error=0.0)
    return Ahead(by=ahead / 1000, error=trip / 2000)


def _corrected(figures: Mapping[str, float], before: Ahead, after: Ahead) -> dict[str, float]:
    """Return ages as one clock would have shown them; ``clock_error`` says by how much they may be wrong."""
    by = (before.by + after.by) / 2
    error = max(before.error, after.error) + abs(before.by - after.by) / 2
    ages = {name: value - by for name, value in figures.items() if name.startswith("p")}
    return {**figures, **ages, "clock_error": error}
