"""More requests than can be served, between processes: as ``overload``, but in real time and over real connections.

Members and callers have processes of their own.  Handlers sleep, and are few and slow, so that a part of one processor
is enough to ask ten times what can be served, 1,200 times a second.  What every process does for a request that it
refuses is real.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from random import Random
from typing import Final

import trio

import iris
from benchmarks.requests.kill import ROOT, own_realm
from benchmarks.requests.overload import FACTORS, Callers, Phase, resident, show

MEMBERS: Final = 2
CONCURRENCY: Final = 6
SECONDS: Final = 0.1
CAPACITY: Final = MEMBERS * CONCURRENCY / SECONDS


async def serve(seed: int) -> None:
    """Be a member until killed."""
    random = Random(seed)
    store, meter = iris.Service("store"), iris.Service("meter")

    @store.request
    async def work(_: iris.Request) -> None:
        await trio.sleep(SECONDS * random.uniform(0.5, 1.5))

    async with iris.open_node() as node:

        @meter.request
        async def look(_: iris.Request) -> int:
            return node.statistics().services["store"].received

        assert work in store.requests.values()
        assert look in meter.requests.values()
        async with (
            node.join("meter", meter),
            node.join("store", store, limits=iris.Limits(concurrency=CONCURRENCY)),
        ):
            await trio.sleep_forever()


@contextlib.contextmanager
def _members() -> Generator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(MEMBERS):
            command = [sys.executable, "-m", "benchmarks.requests.overload_processes", str(index)]
            processes.append(subprocess.Popen(command, cwd=ROOT))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _run(factors: tuple[float, ...], seconds: float, calm: float) -> list[Phase]:
    with own_realm():
        async with iris.open_node() as node:
            with _members() as processes:
                for cluster in ("store", "meter"):
                    await node.wait_for(cluster, members=MEMBERS, timeout=60)

                async def received() -> int:
                    async with node.survey("meter", None, timeout=30) as answers:
                        numbers = [int(answer.payload) async for answer in answers]
                    assert not answers.missing
                    return sum(numbers)

                def used() -> int:
                    return resident() + sum(resident(process.pid) for process in processes)

                return await Callers(node, received, used, Random(7), CAPACITY).loads(factors, seconds, calm)


def run(factors: tuple[float, ...], seconds: float, calm: float = 5.0) -> list[Phase]:
    """Run one load after the other; see ``Callers.loads``."""
    return trio.run(_run, factors, seconds, calm)


def conduct(*, seconds: float) -> bool:
    """Run it and print what it showed; return whether the targets are met."""
    shown = run(FACTORS, seconds)
    print(f"\n{MEMBERS} processes of {CONCURRENCY} handlers of {SECONDS * 1000:.0f} ms; {seconds:.0f} s each\n")
    return show(shown, CAPACITY)


if __name__ == "__main__":
    trio.run(serve, int(sys.argv[1]))
