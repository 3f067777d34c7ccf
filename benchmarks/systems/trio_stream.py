"""Trio's own streams with a length before each message: TCP, and by ``trio_tls`` the same over TLS."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter

import trio

from benchmarks.system import Roles, System, Task
from iris.bench.cases import Kind
from iris.bench.workload import MARK_SIZE, Ages, Latencies, finish_stream, send_paced, send_stream

LENGTH = struct.Struct("<I")
CHUNK = 65536

Stream = trio.abc.Stream
Connect = Callable[[str], Awaitable[Stream]]
Wrap = Callable[[Stream], Stream]


class Messages:
    """The messages of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, payload: bytes) -> None:
        """Send one message."""
        await self._stream.send_all(LENGTH.pack(len(payload)) + payload)

    async def receive(self) -> bytes:
        """Receive one message."""
        await self._fill(LENGTH.size)
        end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
        await self._fill(end)
        payload = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        return payload

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            received = await self._stream.receive_some(CHUNK)
            if not received:
                raise EOFError
            self._buffer += received


def roles(wrap_accepted: Wrap, wrap_connected: Wrap) -> Mapping[Kind, Roles]:
    """Return the programs, over streams wrapped by the two functions."""

    async def serve(task: Task, talk: Callable[[Messages], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:

            async def accept(stream: trio.SocketStream) -> None:
                await talk(Messages(wrap_accepted(stream)))
                nursery.cancel_scope.cancel()

            listeners: list[trio.SocketListener] = await nursery.start(trio.serve_tcp, accept, 0)
            task.ready(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")

    async def connect(address: str) -> Messages:
        host, port = address.split(":")
        return Messages(wrap_connected(await trio.open_tcp_stream(host, int(port))))

    async def stream_sink(task: Task) -> None:
        async def talk(messages: Messages) -> None:
            await messages.receive()
            received = 1
            started = perf_counter()
            while len(payload := await messages.receive()) != MARK_SIZE:
                received += 1
            finish_stream(task, received, started, payload)

        await serve(task, talk)

    async def stream_source(task: Task) -> None:
        channels = [await connect(address) for address in task.addresses]

        async def send_to_all(payload: bytes) -> None:
            for channel in channels:
                await channel.send(payload)

        await send_stream(task, channels[0].send if len(channels) == 1 else send_to_all)

    async def paced_sink(task: Task) -> None:
        async def talk(messages: Messages) -> None:
            ages = Ages()
            while len(payload := await messages.receive()) != MARK_SIZE:
                ages.note(payload)
            ages.finish(task, payload)

        await serve(task, talk)

    async def paced_source(task: Task) -> None:
        await send_paced(task, (await connect(task.addresses[0])).send, trio.sleep)

    async def request_sink(task: Task) -> None:
        async def talk(messages: Messages) -> None:
            while True:
                await messages.send(await messages.receive())

        await serve(task, talk)

    async def request_source(task: Task) -> None:
        messages = await connect(task.addresses[0])
        latencies = Latencies(task)

        async def ask(payload: bytes) -> bytes:
            await messages.send(payload)
            return await messages.receive()

        await latencies.client(ask)
        latencies.finish()

    def program(work: Callable[[Task], Awaitable[None]]) -> Callable[[Task], None]:
        return lambda task: trio.run(work, task)

    stream = Roles(sink=program(stream_sink), source=program(stream_source))
    return {
        "stream": stream,
        "tunnel": stream,
        "paced": Roles(sink=program(paced_sink), source=program(paced_source)),
        "request": Roles(sink=program(request_sink), source=program(request_source)),
    }


ONE_AT_A_TIME = dict.fromkeys(("request-64", "request-512"), "a plain stream has no request ids")


def _as_it_is(stream: Stream) -> Stream:
    return stream


SYSTEM = System(
    name="trio TCP",
    package="trio",
    encrypted=False,
    lacks=("encryption", "retries", "balance", "discovery"),
    module="trio",
    roles=roles(_as_it_is, _as_it_is),
    without=ONE_AT_A_TIME,
)
