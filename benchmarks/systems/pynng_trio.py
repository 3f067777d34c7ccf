"""pynng on trio, the obvious way: one operation of nng for each message.  It is what Iris is built on."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import trio

from benchmarks.broker import free_port
from benchmarks.system import Roles, System, Task
from iris.bench.workload import MARK_SIZE, Ages, Latencies, finish_stream, send_paced, send_stream

if TYPE_CHECKING:
    import pynng

BUFFERED = 128
"""Messages nng may hold on either side."""


def _listen(task: Task) -> pynng.Pull0:
    import pynng

    socket = pynng.Pull0(recv_buffer_size=BUFFERED, recv_max_size=1 << 20)
    address = f"tcp://127.0.0.1:{free_port()}"
    socket.listen(address)
    task.ready(address)
    return socket


def _connect(address: str) -> pynng.Push0:
    import pynng

    socket = pynng.Push0(send_buffer_size=BUFFERED)
    socket.dial(address, block=True)
    return socket


async def _stream_sink(task: Task) -> None:
    with _listen(task) as socket:
        await socket.arecv()
        received = 1
        started = perf_counter()
        while len(payload := await socket.arecv()) != MARK_SIZE:
            received += 1
        finish_stream(task, received, started, payload)


async def _stream_source(task: Task) -> None:
    sockets = [_connect(address) for address in task.addresses]

    async def send_to_all(payload: bytes) -> None:
        for socket in sockets:
            await socket.asend(payload)

    await send_stream(task, sockets[0].asend if len(sockets) == 1 else send_to_all)
    await trio.sleep_forever()  # closing a socket would drop what it still holds


async def _paced_sink(task: Task) -> None:
    with _listen(task) as socket:
        ages = Ages()
        while len(payload := await socket.arecv()) != MARK_SIZE:
            ages.note(payload)
        ages.finish(task, payload)


async def _paced_source(task: Task) -> None:
    socket = _connect(task.addresses[0])
    await send_paced(task, socket.asend, trio.sleep)
    await trio.sleep_forever()


async def _request_sink(task: Task) -> None:
    import pynng

    with pynng.Rep0(recv_max_size=1 << 20) as socket:
        address = f"tcp://127.0.0.1:{free_port()}"
        socket.listen(address)

        async def answer() -> None:
            with socket.new_context() as context:
                while True:
                    await context.asend(await context.arecv())

        async with trio.open_nursery() as nursery:
            for _ in range(task.case.concurrency):
                nursery.start_soon(answer)
            task.ready(address)


async def _request_source(task: Task) -> None:
    import pynng

    latencies = Latencies(task)
    with pynng.Req0(dial=task.addresses[0], block_on_dial=True, recv_max_size=1 << 20) as socket:

        async def client() -> None:
            with socket.new_context() as context:

                async def ask(payload: bytes) -> bytes:
                    await context.asend(payload)
                    return await context.arecv()

                await latencies.client(ask)

        async with trio.open_nursery() as nursery:
            for _ in range(task.case.concurrency):
                nursery.start_soon(client)
    latencies.finish()


SYSTEM = System(
    name="pynng on trio",
    package="pynng",
    encrypted=False,
    lacks=("encryption", "balance", "discovery"),
    module="pynng",
    roles={
        "stream": Roles(
            sink=lambda task: trio.run(_stream_sink, task),
            source=lambda task: trio.run(_stream_source, task),
        ),
        "tunnel": Roles(
            sink=lambda task: trio.run(_stream_sink, task),
            source=lambda task: trio.run(_stream_source, task),
        ),
        "paced": Roles(
            sink=lambda task: trio.run(_paced_sink, task),
            source=lambda task: trio.run(_paced_source, task),
        ),
        "request": Roles(
            sink=lambda task: trio.run(_request_sink, task),
            source=lambda task: trio.run(_request_source, task),
        ),
    },
)
