"""zenoh, two peers without a router: a core in Rust that calls Python back on its own threads."""

from __future__ import annotations

import json
import threading
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import trio

from benchmarks.broker import free_port
from benchmarks.system import Roles, System, Task
from iris.bench.workload import MARK_SIZE, Ages, Latencies, finish_stream, send_paced, send_stream_nowait

if TYPE_CHECKING:
    import zenoh

KEY = "benchmark"


def _open(*, listen: str = "", connect: tuple[str, ...] = ()) -> zenoh.Session:
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", "false")  # everybody goes through loopback TCP
    config.insert_json5("listen/endpoints", json.dumps([listen] if listen else []))
    config.insert_json5("connect/endpoints", json.dumps(connect))
    return zenoh.open(config)


def _stream_sink(task: Task) -> None:
    address = f"tcp/127.0.0.1:{free_port()}"
    received = 0
    started = 0.0
    ended = threading.Event()

    def receive(sample: zenoh.Sample) -> None:
        nonlocal received, started
        payload = sample.payload.to_bytes()
        if len(payload) == MARK_SIZE:
            finish_stream(task, received, started, payload)
            ended.set()
        elif not received:
            started = perf_counter()
        received += 1

    with _open(listen=address) as session:
        session.declare_subscriber(KEY, receive)
        task.ready(address)
        ended.wait()


def _stream_source(task: Task) -> None:
    import zenoh

    with _open(connect=task.addresses) as session:
        publisher = session.declare_publisher(KEY, congestion_control=zenoh.CongestionControl.BLOCK)
        _wait_for_match(publisher)
        send_stream_nowait(task, publisher.put)


def _wait_for_match(declared: zenoh.Publisher | zenoh.Querier) -> None:
    while not declared.matching_status.matching:  # type: ignore[attr-defined]  # zenoh's stub takes it for a bool
        sleep(0.01)
    sleep(0.2)  # of several subscribers the status shows the first only


def _paced_sink(task: Task) -> None:
    address = f"tcp/127.0.0.1:{free_port()}"
    ages = Ages()
    ended = threading.Event()

    def receive(sample: zenoh.Sample) -> None:
        payload = sample.payload.to_bytes()
        if len(payload) == MARK_SIZE:
            ages.finish(task, payload)
            ended.set()
        else:
            ages.note(payload)

    with _open(listen=address) as session:
        session.declare_subscriber(KEY, receive)
        task.ready(address)
        ended.wait()


def _paced_source(task: Task) -> None:
    with _open(connect=task.addresses) as session:
        publisher = session.declare_publisher(KEY)
        _wait_for_match(publisher)

        async def send(payload: bytes) -> None:
            publisher.put(payload)

        trio.run(send_paced, task, send, trio.sleep)


def _request_sink(task: Task) -> None:
    address = f"tcp/127.0.0.1:{free_port()}"

    def answer(query: zenoh.Query) -> None:
        with query:
            assert query.payload is not None
            query.reply(KEY, query.payload)

    with _open(listen=address) as session:
        session.declare_queryable(KEY, answer)
        task.ready(address)
        threading.Event().wait()


def _request_source(task: Task) -> None:
    with _open(connect=task.addresses) as session:
        querier = session.declare_querier(KEY)
        _wait_for_match(querier)
        latencies = Latencies(task)

        def ask(payload: bytes) -> bytes:
            for reply in querier.get(payload=payload):
                assert reply.ok is not None
                return reply.ok.payload.to_bytes()
            raise AssertionError("no reply")

        clients = [threading.Thread(target=latencies.client_nowait, args=(ask,)) for _ in range(task.case.concurrency)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        latencies.finish()


SYSTEM = System(
    name="zenoh",
    package="eclipse-zenoh",
    encrypted=False,
    lacks=("encryption", "retries", "balance"),
    module="zenoh",
    roles={
        "stream": Roles(sink=_stream_sink, source=_stream_source),
        "paced": Roles(sink=_paced_sink, source=_paced_source),
        "request": Roles(sink=_request_sink, source=_request_source),
    },
)
