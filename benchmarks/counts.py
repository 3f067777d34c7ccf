"""Python bytecodes and calls of C functions that one message takes, at both ends together.

    python -m benchmarks.counts [--json | --table]

Two nodes in one process talk over loopback TCP.  What they execute is counted by the interpreter, so that neither other
programs nor the clock change it: a change that adds a tenth is seen on a busy machine.  Bytecodes say nothing of what C
functions take inside: whoever seals twice, or copies what is large, sees it in ``benchmarks.turns``.  Each count is the
least of many, because timers of the nodes fall into the others, and trio runs tasks in an order that it draws.  Many
requests at a time are not counted: which of them share a frame depends on the clock.

It imports nothing but Iris, so that it counts an earlier checkout as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import FrameType
from typing import Any, Final, final

import trio

import iris
import iris.aio

CLUSTER: Final = "counted"
TOPIC: Final = "counted"
LOOPBACK: Final = ("tcp://127.0.0.1:0",)
TCP: Final = iris.Environment(directory=None, lan=None)

TIMES: Final = 60
"""How often each kind of message is counted."""

BATCH: Final = 64
"""Events that are published before the first is taken."""

WARM: Final = 5
"""Messages before those that are counted."""

PAYLOAD: Final = bytes(128)


@final
class Counter:
    """Counts what this thread executes: not the frame that begins it, but all that it calls or that is resumed.

    From Python 3.12 on code is prepared for that when it runs under a counter for the first time, and counted from the
    second time on.
    """

    def __init__(self) -> None:
        self.bytecodes = 0
        self.calls = 0

    def __enter__(self) -> Counter:
        self._before = sys.gettrace(), sys.getprofile()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        trace, profile = self._before
        sys.settrace(trace)
        sys.setprofile(profile)

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Callable[[FrameType, str, Any], Any]:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._count

    def _count(self, _frame: FrameType, event: str, _argument: object) -> Callable[[FrameType, str, Any], Any]:
        if event == "opcode":
            self.bytecodes += 1
        return self._count

    def _profile(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event == "c_call":
            self.calls += 1


async def count(send: Callable[[], Awaitable[object]], messages: int = 1) -> tuple[float, float]:
    """Return the bytecodes and the calls of C functions for each of the messages that ``send`` sends."""
    for _ in range(WARM):
        await send()
    with Counter():
        await send()
    counted: list[tuple[int, int]] = []
    for _ in range(TIMES):
        with Counter() as counter:
            await send()
        counted.append((counter.bytecodes, counter.calls))
    bytecodes, calls = min(counted)
    return bytecodes / messages, calls / messages


def service() -> iris.Service:
    """Return a service that answers with what it gets."""
    made = iris.Service(CLUSTER)

    @made.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @made.tunnel
    async def talk(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    return made


async def count_front(open_node: Callable[..., AbstractAsyncContextManager[Any]]) -> dict[str, tuple[float, float]]:
    """Count messages between two nodes of one front."""
    found: dict[str, tuple[float, float]] = {}
    async with open_node(CLUSTER, listen=LOOPBACK, environment=TCP) as member, member.join(CLUSTER, service()):
        seed = next(address for address in member.addresses if address.startswith("tcp://"))
        async with open_node(listen=LOOPBACK, seeds=[seed], environment=TCP) as node:
            await node.wait_for(CLUSTER)

            async def ask() -> None:
                await node.request(CLUSTER, PAYLOAD)

            found["request"] = await count(ask)
            async with member.subscribe(TOPIC) as events:

                async def publish() -> None:
                    await node.publish(TOPIC, PAYLOAD)
                    await anext(events)

                async def publish_many() -> None:
                    for _ in range(BATCH):
                        await node.publish(TOPIC, PAYLOAD)
                    for _ in range(BATCH):
                        await anext(events)

                found["event"] = await count(publish)
                found[f"event, {BATCH} at a time"] = await count(publish_many, BATCH)
            async with node.open_tunnel(CLUSTER) as tunnel:

                async def there_and_back() -> None:
                    await tunnel.send(PAYLOAD)
                    await tunnel.receive()

                found["tunnel message and back"] = await count(there_and_back)
    return found


def count_all() -> dict[str, tuple[float, float]]:
    """Return bytecodes and calls of C functions of each kind of message, through each front."""
    with tempfile.TemporaryDirectory(prefix="ib-") as home:
        os.environ["IRIS_HOME"] = home
        by_trio = trio.run(count_front, iris.open_node)
        by_asyncio = asyncio.run(count_front(iris.aio.open_node))
    return by_trio | {f"asyncio: {name}": counted for name, counted in by_asyncio.items()}


def main() -> None:
    """Print the counts."""
    counted = count_all()
    if "--json" in sys.argv:
        print(json.dumps(counted))
        return
    if "--table" in sys.argv:
        print("| message | bytecodes | calls of C functions |\n|---|---|---|")
        for name, (bytecodes, calls) in counted.items():
            print(f"| {name} | {bytecodes:,.0f} | {calls:,.0f} |")
        return
    print(f"Python {sys.version_info.major}.{sys.version_info.minor}: bytecodes, calls of C functions")
    for name, (bytecodes, calls) in counted.items():
        print(f'    "{name}": ({bytecodes:.0f}, {calls:.0f}),')


if __name__ == "__main__":
    main()
