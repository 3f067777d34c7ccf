"""pyzmq without an event loop: the fastest way to use it, and no way to do anything else meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.system import Roles, System, Task
from iris.bench.cases import Kind
from iris.bench.workload import MARK_SIZE, Latencies, finish_stream, send_stream_nowait

if TYPE_CHECKING:
    import zmq

UNCOPIED = 65536
"""Size from which a message is passed without a copy, in bytes: 64 KiB then pass twice as fast, 1 KiB more slowly."""

Prepare = Callable[["zmq.Socket[bytes]", bool], None]
"""Sets what a socket needs before it binds (True) or connects (False)."""


def plain(_socket: zmq.Socket[bytes], _listens: bool) -> None:
    """Leave a socket as it is made: blocking at 1,000 waiting messages, without encryption."""


def listen(task: Task, kind: int, prepare: Prepare) -> zmq.Socket[bytes]:
    """Make the socket of a sink, and say its address."""
    import zmq

    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    prepare(socket, True)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    task.ready(f"tcp://127.0.0.1:{port}")
    return socket


def connect(kind: int, address: str, prepare: Prepare) -> zmq.Socket[bytes]:
    """Make a socket of a source."""
    import zmq

    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    prepare(socket, False)
    socket.connect(address)
    return socket


def roles(prepare: Prepare) -> Mapping[Kind, Roles]:
    """Return the programs, with sockets made ready by ``prepare``."""

    def stream_sink(task: Task) -> None:
        import zmq

        socket = listen(task, zmq.PULL, prepare)
        socket.recv()
        received = 1
        started = perf_counter()
        while len(payload := socket.recv()) != MARK_SIZE:
            received += 1
        finish_stream(task, received, started, payload)

    def stream_source(task: Task) -> None:
        # One PUSH socket per sink: PUB drops what a slow sink cannot take.
        import zmq

        sockets = [connect(zmq.PUSH, address, prepare) for address in task.addresses]
        if task.case.size >= UNCOPIED:
            send_stream_nowait(task, lambda payload: [socket.send(payload, copy=False) for socket in sockets])
        elif len(sockets) == 1:
            send_stream_nowait(task, sockets[0].send)
        else:
            send_stream_nowait(task, lambda payload: [socket.send(payload) for socket in sockets])
        zmq.Context.instance().destroy(linger=-1)

    def request_sink(task: Task) -> None:
        import zmq

        socket = listen(task, zmq.REP, prepare)
        while True:
            socket.send(socket.recv())

    def request_source(task: Task) -> None:
        import zmq

        socket = connect(zmq.REQ, task.addresses[0], prepare)

        def ask(payload: bytes) -> bytes:
            socket.send(payload)
            return socket.recv()

        latencies = Latencies(task)
        latencies.client_nowait(ask)
        latencies.finish()

    return {
        "stream": Roles(sink=stream_sink, source=stream_source),
        "request": Roles(sink=request_sink, source=request_source),
    }


ONE_AT_A_TIME = dict.fromkeys(
    ("request-64", "request-512"), "a REQ socket allows one request at a time; see pyzmq DEALER"
)

SYSTEM = System(
    name="pyzmq",
    package="pyzmq",
    encrypted=False,
    lacks=("encryption", "retries", "balance", "discovery", "event loop"),
    module="zmq",
    roles=roles(plain),
    without=ONE_AT_A_TIME,
    quick=True,
)
