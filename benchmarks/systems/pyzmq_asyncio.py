"""pyzmq on asyncio: sockets that can be awaited."""

from __future__ import annotations

import asyncio
import itertools
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.system import Roles, System, Task
from benchmarks.systems.pyzmq_sync import UNCOPIED
from iris.bench.workload import MARK_SIZE, Ages, Latencies, finish_stream, send_paced, send_stream

if TYPE_CHECKING:
    import zmq.asyncio


def _listen(task: Task, kind: int) -> zmq.asyncio.Socket:
    import zmq.asyncio

    socket = zmq.asyncio.Context.instance().socket(kind)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    task.ready(f"tcp://127.0.0.1:{port}")
    return socket


def _connect(kind: int, address: str) -> zmq.asyncio.Socket:
    import zmq.asyncio

    socket = zmq.asyncio.Context.instance().socket(kind)
    socket.connect(address)
    return socket


async def _stream_sink(task: Task) -> None:
    import zmq

    socket = _listen(task, zmq.PULL)
    await socket.recv()
    received = 1
    started = perf_counter()
    while len(payload := await socket.recv()) != MARK_SIZE:
        received += 1
    finish_stream(task, received, started, payload)


async def _stream_source(task: Task) -> None:
    import zmq.asyncio

    sockets = [_connect(zmq.PUSH, address) for address in task.addresses]

    copied = task.case.size < UNCOPIED

    async def send_to_all(payload: bytes) -> None:
        for socket in sockets:
            await socket.send(payload, copy=copied)

    await send_stream(task, sockets[0].send if copied and len(sockets) == 1 else send_to_all)
    zmq.asyncio.Context.instance().destroy(linger=-1)


async def _paced_sink(task: Task) -> None:
    import zmq

    socket = _listen(task, zmq.PULL)
    ages = Ages()
    while len(payload := await socket.recv()) != MARK_SIZE:
        ages.note(payload)
    ages.finish(task, payload)


async def _paced_source(task: Task) -> None:
    import zmq.asyncio

    socket = _connect(zmq.PUSH, task.addresses[0])
    await send_paced(task, socket.send, asyncio.sleep)
    zmq.asyncio.Context.instance().destroy(linger=-1)


async def _request_sink(task: Task) -> None:
    import zmq

    socket = _listen(task, zmq.ROUTER)
    while True:
        await socket.send_multipart(await socket.recv_multipart())


async def _request_source(task: Task) -> None:
    import zmq

    socket = _connect(zmq.DEALER, task.addresses[0])
    waiting: dict[bytes, asyncio.Future[bytes]] = {}
    numbers = itertools.count()

    async def receive() -> None:
        while True:
            parts: list[bytes] = await socket.recv_multipart()
            waiting.pop(parts[0]).set_result(parts[1])

    async def ask(payload: bytes) -> bytes:
        number = next(numbers).to_bytes(8, "little")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting[number] = answer
        await socket.send_multipart((number, payload))
        return await answer

    receiver = asyncio.create_task(receive())
    latencies = Latencies(task)
    await asyncio.gather(*(latencies.client(ask) for _ in range(task.case.concurrency)))
    latencies.finish()
    receiver.cancel()


SYSTEM = System(
    name="pyzmq.asyncio",
    package="pyzmq",
    encrypted=False,
    lacks=("encryption", "retries", "balance", "discovery"),
    module="zmq",
    roles={
        "stream": Roles(
            sink=lambda task: asyncio.run(_stream_sink(task)),
            source=lambda task: asyncio.run(_stream_source(task)),
        ),
        "paced": Roles(
            sink=lambda task: asyncio.run(_paced_sink(task)),
            source=lambda task: asyncio.run(_paced_source(task)),
        ),
        "request": Roles(
            sink=lambda task: asyncio.run(_request_sink(task)),
            source=lambda task: asyncio.run(_request_source(task)),
        ),
    },
    quick=True,
)
