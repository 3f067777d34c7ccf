"""Iris through ``iris.sync``: a program without an event loop asks and publishes; what answers and reads is trio's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import trio

import iris.sync
from benchmarks.system import Roles, System, Task
from benchmarks.systems.iris_life import CLUSTER, LOOPBACK
from benchmarks.systems.iris_mesh import TCP, TOPIC, request_sink, stream_sink
from iris.bench.workload import Latencies, send_stream_nowait


def _request_source(task: Task) -> None:
    with iris.sync.open_node(listen=LOOPBACK, seeds=task.addresses, environment=TCP) as node:
        node.wait_for(CLUSTER)
        latencies = Latencies(task)

        clients = task.case.concurrency
        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(latencies.client_nowait, [partial(node.request, CLUSTER)] * clients))
        latencies.finish()


def _stream_source(task: Task) -> None:
    with iris.sync.open_node(listen=LOOPBACK, seeds=task.addresses, environment=TCP) as node:
        send_stream_nowait(task, partial(node.publish, TOPIC))
        threading.Event().wait()  # the sinks end the trial


SYSTEM = System(
    name="iris.sync asking",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles={
        "request": Roles(sink=lambda task: trio.run(request_sink, task), source=_request_source),
        "stream": Roles(sink=lambda task: trio.run(stream_sink, task), source=_stream_source),
    },
    quick=False,
)
