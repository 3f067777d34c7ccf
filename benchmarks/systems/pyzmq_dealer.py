"""pyzmq DEALER and ROUTER, blocking: any number of requests on one socket at a time, where speed counts.

One loop sends and receives, and knows each request by a number before its payload.  It is no service: nobody else can
ask in this thread, a request has no deadline, and one whose answer does not come is waited for for ever.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from time import perf_counter

from benchmarks.system import Roles, System, Task
from benchmarks.systems.pyzmq_sync import Prepare, connect, listen, plain
from iris.bench.cases import Kind
from iris.bench.workload import WARM_UP, percentiles

NUMBER = struct.Struct("<Q")


def roles(prepare: Prepare) -> Mapping[Kind, Roles]:
    """Return the programs, with sockets made ready by ``prepare``."""

    def sink(task: Task) -> None:
        import zmq

        socket = listen(task, zmq.ROUTER, prepare)
        while True:
            socket.send_multipart(socket.recv_multipart())

    def source(task: Task) -> None:
        import zmq

        socket = connect(zmq.DEALER, task.addresses[0], prepare)
        payload = bytes(task.case.size)
        numbers = itertools.count()
        asked: dict[int, float] = {}
        seconds: list[float] = []
        now = perf_counter()
        begin = now + WARM_UP
        end = begin + task.seconds

        def ask(moment: float) -> None:
            number = next(numbers)
            asked[number] = moment
            socket.send(NUMBER.pack(number) + payload)

        for _ in range(task.case.concurrency):
            ask(now)
        while asked:
            (number,) = NUMBER.unpack_from(socket.recv())
            now = perf_counter()
            before = asked.pop(number)
            if before >= begin:
                seconds.append(now - before)
            if now < end or not seconds:
                ask(now)
        figures = {name: value * 1e6 for name, value in percentiles(seconds).items()}
        task.finish(rate=len(seconds) / task.seconds, **figures)

    return {"request": Roles(sink=sink, source=source)}


SYSTEM = System(
    name="pyzmq DEALER",
    package="pyzmq",
    encrypted=False,
    lacks=("encryption", "retries", "balance", "discovery", "event loop"),
    module="zmq",
    roles=roles(plain),
    quick=True,
)
