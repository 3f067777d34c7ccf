"""Server end of ``iris bench``: a service that counts what the client end sends, and reports the figures.

=============  =========================================  ==================================================
operation      request                                    reply
=============  =========================================  ==================================================
(none)         any payload                                the payload
``begin``      ``{case, seconds, run}``                   this node's id, when it receives what the run sends
``figures``    the run                                    its figures, when its end mark has come
``clock``      nothing                                    nanoseconds of its clock, and which clock that is
=============  =========================================  ==================================================

Events of a run come on the topic ``CLUSTER.RUN``, broadcasts of a node count for the run that it began last.  A tunnel
begins with the name of its case, and the figures come back through it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, final

import trio

import iris
from iris.bench.cases import CASES, Case
from iris.bench.workload import UNLIMITED, BroadcastCount, age_events, count_events, echo, receive_bulk
from iris.kernel.names import NodeId, is_name

CLUSTER: Final = "bench"
CONCURRENCY: Final = max(case.concurrency for case in CASES)
LOOPBACK: Final = ("tcp://127.0.0.1:0",)

_MAX_RUNS: Final = 64
_MAX_SECONDS: Final = 3600.0
_BEYOND: Final = 60.0
"""Seconds after which a run is forgotten whose source has gone, beyond ten times the time that it was to take."""


@final
class BenchRun:
    """One end's share of a measurement, with what it found."""

    def __init__(self, case: Case, seconds: float) -> None:
        self.case: Final = case
        self.seconds: Final = seconds
        self.figures: dict[str, float] = {}
        self.done: Final = trio.Event()

    def finish(self, **figures: float) -> None:
        """Note what was measured."""
        self.figures = figures
        self.done.set()


def case_named(name: object) -> Case:
    """Return the case called ``name``; raise RemoteError if only another version has it."""
    for case in CASES:
        if case.name == name:
            return case
    raise iris.RemoteError("bad_request", f"there is no case {name!r} here: both ends need the same version of Iris")


@final
class Bench:
    """The service, on one node.

    Args:
        node: it subscribes for the runs.
        nursery: the nursery that its runs take place in.
        cluster: the cluster that the service is joined to.
    """

    def __init__(self, node: iris.Node, nursery: trio.Nursery, cluster: str) -> None:
        self.service: Final = iris.Service(cluster)
        self._node = node
        self._nursery = nursery
        self._cluster = cluster
        self._runs: dict[str, BenchRun] = {}
        self._broadcasts: dict[NodeId, BroadcastCount] = {}
        self.service.request(echo)
        self.service.request("begin")(self._begin)
        self.service.request("figures")(self._figures)
        self.service.request("clock")(self._clock)
        self.service.broadcast(self._count_broadcast)
        self.service.tunnel(self._receive_bulk)

    async def _begin(self, request: iris.Request) -> object:
        name, run = _begin_untrusted(request.payload)
        if len(self._runs) >= _MAX_RUNS:
            raise iris.RemoteError("busy", f"{_MAX_RUNS} measurements are in progress already")
        if name in self._runs:
            raise iris.RemoteError("bad_request", "there is such a run already")
        self._runs[name] = run
        await self._nursery.start(self._participate, name, run, request.sender.node)
        return self._node.id

    async def _participate(
        self, name: str, run: BenchRun, source: NodeId, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Receive what a run sends, and keep what was found until it was asked for."""
        topic = f"{self._cluster}.{name}"
        try:
            with trio.move_on_after(10 * run.seconds + _BEYOND):
                match run.case.kind:
                    case "stream":
                        await count_events(self._node, topic, run, task_status.started)
                    case "paced":
                        await age_events(self._node, topic, run, task_status.started)
                    case _:
                        self._broadcasts[source] = BroadcastCount(run)
                        task_status.started()
                        await run.done.wait()
                await trio.sleep_forever()
        finally:
            self._runs.pop(name, None)
            self._broadcasts.pop(source, None)

    async def _figures(self, request: iris.Request) -> object:
        run = self._runs.get(request.payload) if isinstance(request.payload, str) else None
        if run is None:
            raise iris.RemoteError("bad_request", "there is no such run")
        await run.done.wait()
        return run.figures

    async def _clock(self, _request: iris.Request) -> object:
        return [perf_counter_ns(), clock_name()]

    async def _count_broadcast(self, message: iris.Message) -> None:
        count = self._broadcasts.get(message.sender.node)
        if count is not None and isinstance(message.payload, bytes):
            count.note(message.payload)

    async def _receive_bulk(self, tunnel: iris.Tunnel) -> None:
        run = BenchRun(case_named(await tunnel.receive()), 0.0)
        await receive_bulk(tunnel, run)
        await tunnel.send(run.figures)


def _begin_untrusted(payload: Any) -> tuple[str, BenchRun]:
    """Read what a run is; raise RemoteError if it is malformed."""
    match payload:
        case {"case": str(case), "seconds": int() | float() as seconds, "run": str(run)}:
            if 0 < seconds <= _MAX_SECONDS and is_name(run) and "." not in run:
                return run, BenchRun(case_named(case), float(seconds))
        case _:
            pass
    raise iris.RemoteError("bad_request", "a run is a case, at most an hour of seconds, and a name without dots")


def clock_name() -> str:
    """Return what this machine's clock is called: processes with the same one need no comparison of clocks."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else ""


async def serve_bench(node: iris.Node, cluster: str, ready: trio.Event | None = None) -> None:
    """Be a member of ``cluster`` that others measure, until it is cancelled."""
    async with trio.open_nursery() as nursery:
        bench = Bench(node, nursery, cluster)
        async with node.join(cluster, bench.service, limits=iris.Limits(concurrency=CONCURRENCY)):
            if ready is not None:
                ready.set()
            await trio.sleep_forever()


async def _serve_alone() -> None:
    """Be a member on this machine; say where; end with the standard input."""

    async def end(scope: trio.CancelScope) -> None:
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        scope.cancel()

    async def announce(node: iris.Node, ready: trio.Event) -> None:
        await ready.wait()
        sys.stdout.write(next(address for address in node.addresses if address.startswith("tcp://")) + "\n")
        sys.stdout.flush()

    async with (
        iris.open_node(CLUSTER, listen=LOOPBACK, config=UNLIMITED, environment=iris.Environment(variables={})) as node,
        trio.open_nursery() as nursery,
    ):
        ready = trio.Event()
        nursery.start_soon(end, nursery.cancel_scope)
        nursery.start_soon(announce, node, ready)
        await serve_bench(node, CLUSTER, ready)


if __name__ == "__main__":
    trio.run(_serve_alone)
    os._exit(0)  # a thread may still be reading the standard input
