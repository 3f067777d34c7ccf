"""Jobs that Go programs do through a door, one of which is killed now and then: ``python -m benchmarks.door_jobs``.

Each job has a number; a worker writes it down, and then says that the job is done.  So one that is killed in between
has it done twice.  Lost is a job that nobody has written down.  Everything runs in processes of its own, in a local
realm that is forgotten afterwards; a node puts the jobs, each on the bridge's disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import iris.aio
from iris.doors import grant

CLIENT: Final = Path(__file__).resolve().parents[1] / "clients" / "go"
WORKERS: Final = 4
LIMIT: Final = 16
_PUTTING: Final = 256
"""Jobs that are put at a time."""


class Place:
    """A realm with a bridge, a door, and workers behind it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        secret = grant(home / "tokens", "go", take=("jobs",))
        self.environment = {**os.environ, "IRIS_HOME": str(home), "XDG_RUNTIME_DIR": str(home), "TOKEN": secret}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = {}
        """How far the output of each process was read."""
        subprocess.run(["go", "build", "-o", str(home / "worker"), "./internal/worker"], cwd=CLIENT, check=True)
        python = (sys.executable, "-m", "iris")
        self._begin("bridge", *python, "bridge", "--topic", "jobs", "--data", str(home / "log"))
        self._line("bridge", "serves bridge")
        self._begin("door", *python, "door", "--http", "127.0.0.1:0", "--tokens", str(home / "tokens"))
        self.url = self._line("door", "http://")
        for number in range(WORKERS):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a worker, and wait until it is there."""
        name = f"worker{number}"
        self._begin(name, str(self.home / "worker"), self.url, "jobs", str(self.home / f"{name}.txt"), str(LIMIT))
        self._line(name, "ready")

    def kill(self, number: int) -> None:
        """Kill a worker."""
        process = self.processes[f"worker{number}"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.start(number)

    def written(self) -> Counter[int]:
        """Return how often each job was done."""
        records = [self.home / f"worker{number}.txt" for number in range(WORKERS)]
        return Counter(int(line) for path in records for line in path.read_text().splitlines())

    def _begin(self, name: str, *command: str) -> None:
        output = (self.home / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
        output.close()

    def _line(self, name: str, begin: str) -> str:
        """Wait until a process has said something; return it."""
        path, since = self.home / f"{name}.out", self._read.get(name, 0)
        while True:
            text = path.read_text()
            found = text.find(begin, since)
            if found >= 0 and "\n" in text[found:]:
                self._read[name] = found + len(begin)
                return text[found:].splitlines()[0].strip()
            if self.processes[name].poll() is not None:
                raise AssertionError(f"{name} has ended: {text[-2000:]}")
            time.sleep(0.01)


@contextmanager
def opened() -> Generator[Place]:
    """Open a place in a realm of its own, for this process as well."""
    with tempfile.TemporaryDirectory(prefix="ij", dir="/tmp") as home:
        os.environ.update(IRIS_HOME=home, XDG_RUNTIME_DIR=home)
        place = Place(Path(home))
        try:
            yield place
        finally:
            for process in place.processes.values():
                process.kill()
                process.wait()


async def run(place: Place, jobs: int, every: float) -> str:
    """Put jobs and have them done; return the figures."""
    killed = 0

    async def kill() -> None:
        nonlocal killed
        while True:
            await asyncio.sleep(every)
            await asyncio.to_thread(place.kill, random.randrange(WORKERS))
            killed += 1

    async with iris.aio.open_node("desk") as node, node.bridge().queue("jobs") as queue:
        await node.wait_for("bridge", timeout=60)
        began, left = time.monotonic(), iter(range(jobs))

        async def put() -> None:
            for number in left:
                await queue.put(b"%d" % number, timeout=600)

        killing = asyncio.create_task(kill())
        await asyncio.gather(*(put() for _ in range(_PUTTING)))
        while True:
            status = await node.request("bridge", {"group": "queue/jobs"}, operation="queue", timeout=60)
            if status["done"] + status["dead"] >= jobs:
                break
            await asyncio.sleep(0.5)
        seconds = time.monotonic() - began
        killing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killing
    done = place.written()
    lost = jobs - len(done)
    twice = done.total() - len(done)
    return (
        f"{jobs} jobs, {WORKERS} workers, {killed} killed: {lost} lost, {status['dead']} dead letters, {twice} done "
        f"twice (at most {LIMIT * killed} were in hand), {seconds:.0f} s, {jobs / seconds:.0f} a second"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    given = parser.parse_args()
    with opened() as place:
        print(asyncio.run(run(place, given.jobs, given.every)), flush=True)


if __name__ == "__main__":
    main()
