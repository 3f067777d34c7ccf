"""grpc.aio without generated code: payloads are bytes on both sides, which is the fastest it can be."""

from __future__ import annotations

import asyncio

from benchmarks.system import Roles, System, Task
from iris.bench.workload import Latencies

METHOD = "/benchmark/Echo"


async def _request_sink(task: Task) -> None:
    import grpc.aio

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("benchmark", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    task.ready(f"127.0.0.1:{port}")
    await server.wait_for_termination()


async def _request_source(task: Task) -> None:
    import grpc.aio

    async with grpc.aio.insecure_channel(task.addresses[0]) as channel:
        echo = channel.unary_unary(METHOD)
        await channel.channel_ready()
        latencies = Latencies(task)
        await asyncio.gather(*(latencies.client(echo) for _ in range(task.case.concurrency)))
        latencies.finish()


SYSTEM = System(
    name="grpc.aio",
    package="grpcio",
    encrypted=False,
    lacks=("encryption", "retries", "balance", "discovery"),
    module="grpc",
    roles={
        "request": Roles(
            sink=lambda task: asyncio.run(_request_sink(task)),
            source=lambda task: asyncio.run(_request_source(task)),
        ),
    },
)
