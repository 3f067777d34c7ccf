"""Iris asked through ``iris.aio``, by a program of asyncio; the service that answers runs under trio."""

from __future__ import annotations

import asyncio

import trio

from benchmarks.system import Roles, System
from benchmarks.systems.iris_aio import request_source
from benchmarks.systems.iris_mesh import request_sink

SYSTEM = System(
    name="iris.aio asking",
    package="iris-mesh",
    encrypted=True,
    module="iris",
    roles={
        "request": Roles(
            sink=lambda task: trio.run(request_sink, task),
            source=lambda task: asyncio.run(request_source(task)),
        ),
    },
    quick=False,
)
