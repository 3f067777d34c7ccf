"""Iris through ``iris.sync``: a program without an event loop asks a service that runs under trio, as services do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import trio

import iris.sync
from benchmarks.system import Roles, System, Task
from benchmarks.systems.iris_life import CLUSTER, LOOPBACK
from benchmarks.systems.iris_mesh import TCP, request_sink
from iris.bench.workload import Latencies


def _request_source(task: Task) -> None:
    with iris.sync.open_node(listen=LOOPBACK, seeds=task.addresses, environment=TCP) as node:
        node.wait_for(CLUSTER)
        latencies = Latencies(task)

        clients = task.case.concurrency
        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(latencies.client_nowait, [partial(node.request, CLUSTER)] * clients))
        latencies.finish()


SYSTEM = System(
    name="iris.sync asking",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles={"request": Roles(sink=lambda task: trio.run(request_sink, task), source=_request_source)},
    quick=False,
)
