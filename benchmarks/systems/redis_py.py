"""redis-py through redis-server: publish/subscribe, with the publisher pipelining as its documentation advises."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from time import perf_counter

from benchmarks.broker import Broker, free_port, running
from benchmarks.system import Roles, System, Task
from iris.bench.workload import BURST, MARK_SIZE, end_mark, finish_stream

CHANNEL = "benchmark"


@contextlib.contextmanager
def _broker(directory: Path) -> Generator[Broker]:
    port = free_port()
    # No disk, and no limit on what waits for a slow subscriber: it would be disconnected, and this measures speed.
    settings = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": directory}
    command = ["redis-server", "--client-output-buffer-limit", "pubsub 0 0 0"]
    command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with running(command, port, directory / "redis.log") as pid:
        yield Broker(address=f"redis://127.0.0.1:{port}", pid=pid)


def _stream_sink(task: Task) -> None:
    import redis

    client = redis.Redis.from_url(task.broker)
    subscription = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    subscription.subscribe(CHANNEL)
    subscription.get_message(timeout=5)
    task.ready()
    events = subscription.listen()
    next(events)
    received = 1
    started = perf_counter()
    while len(payload := next(events)["data"]) != MARK_SIZE:
        received += 1
    finish_stream(task, received, started, payload)


def _stream_source(task: Task) -> None:
    import redis

    client = redis.Redis.from_url(task.broker)
    payload = bytes(task.case.size)
    sent = 0
    end = perf_counter() + task.seconds
    while perf_counter() < end:
        with client.pipeline(transaction=False) as pipeline:
            for _ in range(BURST):
                pipeline.publish(CHANNEL, payload)
            pipeline.execute()
        sent += BURST
    client.publish(CHANNEL, end_mark(sent))


SYSTEM = System(
    name="redis-py",
    package="redis",
    encrypted=False,
    lacks=("encryption", "event loop"),
    module="redis",
    program="redis-server",
    broker=_broker,
    roles={"stream": Roles(sink=_stream_sink, source=_stream_source)},
)
