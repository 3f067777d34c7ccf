"""Load on a realm whose members are rolled: ``python -m tests.support.programs.rolled NAME DONE REPORT``.

Asks the cluster ``ledger``, publishes confirmed events, puts jobs into a queue of the bridge and does them; whose they
are, each worker notes in the file DONE.  At SIGTERM it puts nothing more, waits until its own jobs are done, and writes
to the file REPORT what became of all.  It uses nothing that 0.9.0 does not have.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

import iris

WIDTH = 8
PATIENCE = 120.0
"""Seconds that an operation may take, and at the end all jobs: as many as a bridge that is restarted may be away."""

_PAUSE = 0.05
_CALLERS = 4


class _Load:
    def __init__(self, node: iris.Node, jobs: iris.WorkQueue, name: str, done: Path) -> None:
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.stopping = False
        self._node = node
        self._jobs = jobs
        self._name = name
        self._file = done

    async def keep(self, kind: str, operation: Callable[[int], Awaitable[object]]) -> None:
        number = 0
        while not self.stopping:
            try:
                await operation(number)
            except iris.IrisError as error:
                self.failed[f"{kind}: {type(error).__name__}: {error}"] += 1
            else:
                self.done[kind] += 1
            number += 1
            await trio.sleep(_PAUSE)

    async def ask(self, number: int) -> None:
        payload = number.to_bytes(WIDTH, "big")
        options = iris.RequestOptions(idempotent=True)
        reply = await self._node.request("ledger", payload, timeout=PATIENCE, options=options)
        assert reply == payload

    async def publish(self, number: int) -> None:
        await self._node.publish_confirmed("orders.created", f"{self._name} {number}", timeout=PATIENCE)

    async def put(self, number: int) -> None:
        await self._jobs.put(f"{self._name} {number}", timeout=PATIENCE)

    async def work(self) -> None:
        with self._file.open("a", buffering=1) as file:
            async for job in self._jobs.receive(limit=4):
                async with job:
                    file.write(f"{job.payload}\n")

    async def wait_done(self) -> int:
        """Return how many of the own jobs nobody has done."""
        wanted = {f"{self._name} {number}" for number in range(self.done["job"])}
        with trio.move_on_after(PATIENCE):
            while not wanted <= set(self._file.read_text().splitlines()):  # noqa: ASYNC110 -- others write it
                await trio.sleep(_PAUSE)
        return len(wanted - set(self._file.read_text().splitlines()))


async def _run(name: str, done: Path) -> dict[str, object]:
    """Return what became of all."""
    async with iris.open_node("load") as node, node.bridge().queue("jobs", attempts=100) as jobs:
        await node.wait_for("ledger", 2, timeout=PATIENCE)
        await node.wait_for("bridge", timeout=PATIENCE)
        load = _Load(node, jobs, name, done)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with trio.open_nursery() as working:
                working.start_soon(load.work)
                async with trio.open_nursery() as asking:
                    for _ in range(_CALLERS):
                        asking.start_soon(load.keep, "request", load.ask)
                    asking.start_soon(load.keep, "event", load.publish)
                    asking.start_soon(load.keep, "job", load.put)
                    print(f"{name} is under way, with {Path(iris.__file__).parent}", file=sys.stderr, flush=True)
                    async for _ in signals:
                        load.stopping = True
                        break
                left = await load.wait_done()
                working.cancel_scope.cancel()
    return {"done": load.done, "failed": load.failed, "left": left}


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(trio.run(_run, sys.argv[1], Path(sys.argv[2]))))
