"""Small requests beside calls that take the processor: what the lock of the interpreter (GIL) does to a member.

    python -m benchmarks.processor_work [--rounds 10] [--calls 20] [--work 160]

One member and one caller, in processes of their own on loopback.  The caller makes ``--calls`` calls at once, of
``--work`` milliseconds of pure Python each, and until they are done a small request every 10 ms, whose time counts from
when it was due.  The handlers of the calls are plain functions in the node's thread (``inline``), in threads or in
processes; ``idle`` is as long a time without calls.  The modes take turns, and each round begins with another one.
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
from iris.patterns.service.process_pool import processors

MODES: Final = ("idle", "inline", "thread", "process")
_EVERY: Final = 0.01
_TIMEOUT: Final = 60.0
_ALONE: Final = 50
_AGAIN: Final = iris.RequestOptions(idempotent=True)
"""A member that answers nobody is taken for dead: what it has not answered is asked again when it is back."""


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
    """Result of one run.

    Attributes:
        times: seconds of each small request; infinite for one that failed.
        taken: seconds until all calls were done.
        alone: seconds of the quickest of some calls that do nothing, one after the other, before that.
    """

    times: list[float]
    taken: float
    alone: float

    def percentile(self, share: float) -> float:
        """Return the time below which a share of the small requests was answered."""
        return sorted(self.times)[math.ceil(share * len(self.times)) - 1]


async def serve() -> None:
    """Be the member, until the other end of the input is closed."""
    async with iris.open_node("worker") as node, node.join("worker", make_service()):
        await trio.to_thread.run_sync(sys.stdin.read)


async def measure(mode: str, *, calls: int, loops: int, seconds: float) -> Measured:
    """Measure a mode with a node of its own."""
    times: list[float] = []

    async def ask(node: iris.Node, due: float) -> None:
        try:
            await node.request("worker", b"x", operation="small", timeout=_TIMEOUT, options=_AGAIN)
        except iris.DeliveryError:
            times.append(math.inf)
        else:
            times.append(trio.current_time() - due)

    async def ask_on(node: iris.Node, nursery: trio.Nursery) -> None:
        due = trio.current_time()
        while True:
            nursery.start_soon(ask, node, due)
            due += _EVERY
            await trio.sleep_until(due)

    async def call(node: iris.Node, work: int) -> None:
        operation = "inline" if mode == "idle" else mode
        await node.request("worker", work, operation=operation, timeout=_TIMEOUT, options=_AGAIN)

    async def burst(node: iris.Node, count: int) -> None:
        if mode == "idle":
            await trio.sleep(seconds)
            return
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(call, node, loops)

    async with iris.open_node("caller") as node:
        await node.wait_for("worker", timeout=30)
        await burst(node, processors())  # processes have started, links are measured
        alone: list[float] = []
        for _ in range(_ALONE):
            begun = trio.current_time()
            await call(node, 0)
            alone.append(trio.current_time() - begun)
        begun = trio.current_time()
        async with trio.open_nursery() as asking, trio.open_nursery() as nursery:
            nursery.start_soon(ask_on, node, asking)
            await burst(node, calls)
            nursery.cancel_scope.cancel()
        return Measured(times, trio.current_time() - begun, min(alone))


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
    loops = 200_000
    taken: list[float] = []
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
@click.option("--rounds", "count", type=click.IntRange(1), default=10, show_default=True)
@click.option("--calls", type=click.IntRange(1), default=20, show_default=True, help="Calls at a time.")
@click.option("--work", type=click.FloatRange(1), default=160.0, show_default=True, help="Milliseconds of each call.")
def main(*, count: int, calls: int, work: float) -> None:
    """Measure small requests beside calls that take the processor."""
    loops, seconds = loops_for(work / 1000), calls * work / 1000
    found: dict[str, list[Measured]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="ib-") as name, member(Path(name)):
        for mode in rounds(MODES, count):
            found[mode].append(trio.run(partial(measure, mode, calls=calls, loops=loops, seconds=seconds)))
    print(
        f"{calls} calls of {work:g} ms, {processors()} processors, Python {platform.python_version()}, {count} rounds"
    )
    print(
        "| where | p50 | p99 | p99 of the rounds | longest | p99, of idle | calls done after | a lone call |\n"
        + "|---" * 8
        + "|"
    )
    idle = [run.percentile(0.99) for run in found["idle"]]
    for mode, runs in found.items():
        taken, alone = (statistics.median(values) for values in zip(*(run[1:] for run in runs), strict=True))
        every = Measured([one for run in runs for one in run.times], taken, alone)
        p99 = [run.percentile(0.99) for run in runs]
        ratio = statistics.median(mine / base for mine, base in zip(p99, idle, strict=True))
        p50, high, longest = (_ms(every.percentile(share)) for share in (0.5, 0.99, 1.0))
        spread = f"{_ms(min(p99))} to {_ms(max(p99))}"
        cells = (mode, p50, high, spread, longest, f"{ratio:.1f}x", f"{every.taken:.1f} s", _ms(every.alone))
        print(f"| {' | '.join(cells)} |")


def _ms(seconds: float) -> str:
    if seconds == math.inf:
        return "never"
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:,.0f} ms"


if __name__ == "__main__":
    main()
