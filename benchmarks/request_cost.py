"""Function calls and bytecodes of one request among others, at both ends: figures that do not depend on the machine.

    python -m benchmarks.request_cost [--concurrency 64] [--rounds 8]

Two nodes of this process talk by TCP, and count their own steps.  Their clock is slow, so that what counting takes
changes nothing that is decided by time.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, Final, final

import click
import trio

import iris
from benchmarks.systems.iris_life import CLUSTER, LOOPBACK, tcp_address
from benchmarks.systems.iris_mesh import TCP
from iris.bench.workload import echo

_SLOW: Final = 0.002


@final
class SlowClock(trio.abc.Clock):
    """A clock on which little time passes."""

    def start_clock(self) -> None:
        """Do nothing."""

    def current_time(self) -> float:
        """Return the time."""
        return time.perf_counter() * _SLOW

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long to sleep; waking too early does no harm."""
        return deadline - self.current_time()


@asynccontextmanager
async def asking(concurrency: int) -> AsyncIterator[Callable[[int], Any]]:
    """Bring up two nodes; yield what has so many tasks make some requests each."""
    service = iris.Service(CLUSTER)
    service.request(echo)
    async with (
        iris.open_node(CLUSTER, listen=LOOPBACK, environment=TCP) as member,
        member.join(CLUSTER, service),
        iris.open_node(listen=LOOPBACK, seeds=[tcp_address(member)], environment=TCP) as node,
    ):
        await node.wait_for(CLUSTER)

        async def ask(times: int) -> None:
            for _ in range(times):
                await node.request(CLUSTER, bytes(128))

        async def ask_all(times: int) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(concurrency):
                    nursery.start_soon(ask, times)

        await ask_all(4)
        gc.collect()
        yield ask_all


async def count_calls(concurrency: int, rounds: int) -> Counter[str]:
    """Count calls, of functions in Python and in C."""
    counts: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, _given: object) -> None:
        counts[event] += 1

    async with asking(concurrency) as ask_all:
        sys.setprofile(note)
        try:
            await ask_all(rounds)
        finally:
            sys.setprofile(None)
    return counts


async def count_bytecodes(concurrency: int, rounds: int) -> Counter[CodeType]:
    """Count bytecodes, by function."""
    counts: Counter[CodeType] = Counter()

    def follow(frame: FrameType) -> None:
        frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = note, True, False

    def note(frame: FrameType, event: str, _given: object) -> Any:
        if event == "opcode":
            counts[frame.f_code] += 1
        elif event == "call":
            follow(frame)
        return note

    async with asking(concurrency) as ask_all:
        sys.settrace(note)
        for one in gc.get_objects():  # tasks that have begun
            frame = one.cr_frame if type(one) is CoroutineType else one.gi_frame if type(one) is GeneratorType else None
            if frame is not None:
                follow(frame)
        try:
            await ask_all(rounds)
        finally:
            sys.settrace(None)
    return Counter({code: count for code, count in counts.items() if code.co_filename != __file__})


@click.command()
@click.option("--concurrency", type=click.IntRange(1), default=64, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True, help="Requests of each task.")
@click.option("--top", type=click.IntRange(0), default=0, help="Functions that are shown.")
def main(*, concurrency: int, rounds: int, top: int) -> None:
    """Print what one request takes."""
    run = partial(trio.run, clock=SlowClock())
    requests = concurrency * rounds
    calls: Counter[str] = run(count_calls, concurrency, rounds)
    codes: Counter[CodeType] = run(count_bytecodes, concurrency, rounds)
    print("| of one request | how many |\n|---|---|")
    print(f"| calls of Python functions, and steps of coroutines | {calls['call'] / requests:.0f} |")
    print(f"| calls of functions in C | {calls['c_call'] / requests:.0f} |")
    print(f"| bytecodes | {codes.total() / requests:,.0f} |")
    for code, count in codes.most_common(top):
        print(f"{count / requests:8.1f} {code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")


if __name__ == "__main__":
    main()
