"""Small requests beside calls that take the processor: what the lock of the interpreter (GIL) does to a member.

    python -m benchmarks.processor_work [--rounds 5] [--seconds 6] [--calls 20] [--work 160]

One member and one caller, in processes of their own on loopback.  The caller makes a small request every 10 ms, whose
time counts from when it was due, and meanwhile asks for ``--calls`` calls at a time, of ``--work`` milliseconds of pure
Python each, again and again.  The handlers of these are plain functions in the node's thread (``inline``), in threads or
in processes; ``idle`` is without them.  The modes take turns, and the next round begins with another one.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import click
import trio

import iris

MODES: Final = ("idle", "inline", "thread", "process")
_EVERY: Final = 0.01
_TIMEOUT: Final = 60.0


def burn(loops: int) -> int:
    """Take the processor with pure Python."""
    total = 0
    for number in range(loops):
        total += number & 7
    return total


def burn_in_thread(loops: int) -> int:
    """Do the same; a handler has one place in which it runs."""
    return burn(loops)


def burn_in_process(loops: int) -> int:
    """Do the same; a handler has one place in which it runs."""
    return burn(loops)


async def small(request: iris.Request) -> object:
    """Return what came."""
    return request.payload


def make_service() -> iris.Service:
    """Return the service that is measured."""
    service = iris.Service("worker")
    service.request("small")(small)
    service.request("inline")(burn)
    service.request("thread", thread=True)(burn_in_thread)
    service.request("process", process=True)(burn_in_process)
    return service


class Measured(NamedTuple):
    """Result of one run: seconds of each small request, and calls that were done in a second."""

    times: list[float]
    calls: float

    def percentile(self, share: float) -> float:
        """Return the time below which a share of the small requests was answered."""
        return sorted(self.times)[math.ceil(share * len(self.times)) - 1]


async def serve() -> None:
    """Be the member, until the other end of the input is closed."""
    async with iris.open_node("worker") as node, node.join("worker", make_service()):
        await trio.to_thread.run_sync(sys.stdin.read)


async def measure(mode: str, *, seconds: float, calls: int, loops: int) -> Measured:
    """Measure a mode with a node of its own."""
    times: list[float] = []
    done = 0

    async def ask(node: iris.Node, due: float) -> None:
        await node.request("worker", b"x", operation="small", timeout=_TIMEOUT)
        times.append(trio.current_time() - due)

    async def call(node: iris.Node) -> None:
        nonlocal done
        while True:
            await node.request("worker", loops, operation=mode, timeout=_TIMEOUT)
            done += 1

    async with iris.open_node("caller") as node:
        await node.wait_for("worker", timeout=30)
        async with trio.open_nursery() as busy:
            for _ in range(calls if mode != "idle" else 0):
                busy.start_soon(call, node)
            await trio.sleep(1.0)  # processes have started, links are measured
            done, begun = 0, trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(round(seconds / _EVERY)):
                    due = begun + number * _EVERY
                    await trio.sleep_until(due)
                    nursery.start_soon(ask, node, due)
            rate = done / (trio.current_time() - begun)
            busy.cancel_scope.cancel()
    return Measured(times, rate)


@contextmanager
def member(home: Path) -> Iterator[None]:
    """Have the member in a process of its own."""
    os.environ["IRIS_HOME"] = str(home)
    command = [
        sys.executable,
        "-c",
        "import trio; from benchmarks import processor_work; trio.run(processor_work.serve)",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).resolve().parents[1])
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def loops_for(seconds: float) -> int:
    """Return how many loops take so much processor time here: the shortest of some attempts counts."""
    loops, taken = 200_000, []
    for _ in range(7):
        began = time.process_time()
        burn(loops)
        taken.append(time.process_time() - began)
    return round(loops * seconds / min(taken))


def rounds(modes: Sequence[str], count: int) -> Iterator[str]:
    """Yield the modes in turns, each round from another one on."""
    for number in range(count):
        first = number % len(modes)
        yield from (*modes[first:], *modes[:first])


@click.command()
@click.option("--rounds", "count", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=6.0, show_default=True, help="Length of one run.")
@click.option("--calls", type=click.IntRange(1), default=20, show_default=True, help="Calls at a time.")
@click.option("--work", type=click.FloatRange(1), default=160.0, show_default=True, help="Milliseconds of each call.")
def main(*, count: int, seconds: float, calls: int, work: float) -> None:
    """Measure small requests beside calls that take the processor."""
    loops = loops_for(work / 1000)
    found: dict[str, list[Measured]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="ib-") as name, member(Path(name)):
        for mode in rounds(MODES, count):
            found[mode].append(trio.run(partial(measure, mode, seconds=seconds, calls=calls, loops=loops)))
    print(f"{calls} calls of {work:g} ms, {os.cpu_count()} processors, {platform.python_version()}; medians of {count}")
    print(
        "| where | p50 | p99, least to greatest | longest | p99, of idle | calls a second |\n|---|---|---|---|---|---|"
    )
    idle = [run.percentile(0.99) for run in found["idle"]]
    for mode, runs in found.items():
        p99 = [run.percentile(0.99) for run in runs]
        ratio = statistics.median(mine / base for mine, base in zip(p99, idle, strict=True))
        p50, longest = (statistics.median(run.percentile(share) for run in runs) for share in (0.5, 1.0))
        print(
            f"| {mode} | {_ms(p50)} | {_ms(statistics.median(p99))}, {_ms(min(p99))} to {_ms(max(p99))} | "
            f"{_ms(longest)} | {ratio:.1f}x | {statistics.median(run.calls for run in runs):.1f} |"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:,.0f} ms"


if __name__ == "__main__":
    main()
