"""``python -m benchmarks.membership.processes``: real processes on this machine, each a node of one local realm.

How long until all see all, if they are opened together; what that costs each; what an idle node costs; how long a first
request takes; and how soon all know when one is killed.  Python and Iris are loaded before, which is measured by
itself.  Times are of the system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import trio

from iris.api import Request, Service, open_node  # not by ``import iris``, which loads them when they are used
from iris.kernel.tasks.wakeup import Wakeup

_CLUSTER: Final = "swarm"
_PATIENCE: Final = 600.0
_SETTLED: Final = "settled"
"""Text noted once a node has sent each change as often as it is sent."""

_NO_CHANGES: Final = ("loaded", "up", "complete", "spent", "linked", "handshakes", "asked", "routed out")

_TOGETHER: Final = 4
"""Processes that load Python and Iris at a time: the machine may have other work."""

_TICK: Final = os.sysconf("SC_CLK_TCK")
_ROOT: Final = Path(__file__).resolve().parents[2]


async def serve(log: Path, members: int) -> None:
    """Be one of the nodes: write down who is seen, who gets no more work, and who is lost."""
    with log.open("a", buffering=1) as file:

        def note(what: str, node: str) -> None:
            file.write(json.dumps([time.monotonic(), what, node]) + "\n")

        note("loaded", f"{time.process_time():.3f}")
        await trio.to_thread.run_sync(sys.stdin.readline)
        service = Service(_CLUSTER)

        @service.request
        async def echo(request: Request) -> object:
            return request.payload

        async with (
            open_node(_CLUSTER) as node,
            node.join(_CLUSTER, service),
            node.watch(_CLUSTER) as changes,
            trio.open_nursery() as nursery,
        ):
            note("up", node.id)
            node._parts.membership.on_suspected(lambda other: note("routed out", other))

            async def count() -> None:
                await node.wait_for(_CLUSTER, members=members, timeout=_PATIENCE)
                note("complete", node.id)
                note("spent", f"{time.process_time():.3f}")
                await trio.to_thread.run_sync(sys.stdin.readline)
                counted = node.statistics()
                note("linked", str(len(counted.links)))
                note("handshakes", str(counted.handshakes))
                began = time.monotonic()
                await node.request(_CLUSTER, b"")
                note("asked", f"{time.monotonic() - began:.6f}")

            news = Wakeup()

            async def tell_when_settled() -> None:
                while True:
                    await news.wait()
                    while not node._parts.membership.settled:  # noqa: ASYNC110 -- the machine tells nobody when it is
                        await trio.sleep(node._parts.config.gossip_interval)
                    note(_SETTLED, node.id)

            nursery.start_soon(count)
            nursery.start_soon(tell_when_settled)
            async for change in changes:
                note(change.kind, change.member.node)
                news.wake()


@final
class Swarm:
    """The processes, and what they have written down."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.size = size

    def start(self) -> None:
        """Start every process, some at a time; each waits to be told to open its node."""
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPYCACHEPREFIX": str(self._directory / "bytecode"),
            "IRIS_HOME": str(self._directory / "home"),
            "XDG_RUNTIME_DIR": str(self._directory),
        }
        for number in range(self.size):
            while sum(not self.has(other, "loaded") for other in list(self.processes)[-_TOGETHER:]) >= _TOGETHER:
                time.sleep(0.05)
                self._check_living()
            command = [sys.executable, "-m", "benchmarks.membership.processes", "--size", str(self.size)]
            self.processes[number] = subprocess.Popen(
                [*command, "--log", str(self._log(number))],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                bufsize=0,
            )
        self.wait("loaded", lambda number: self.has(number, "loaded"))

    def go_on(self, number: int) -> None:
        """Let a process take its next step: open its node, then ask."""
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write(b"\n")

    def _check_living(self) -> None:
        ended = [number for number, process in self.processes.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"{len(ended)} processes have ended")

    def _log(self, number: int) -> Path:
        return self._directory / f"{number}.log"

    def notes(self, number: int) -> list[tuple[float, str, str]]:
        """Return what one process has written down."""
        try:
            lines = self._log(number).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]

    def has(self, number: int, what: str) -> bool:
        """Return whether a process has written this down."""
        return any(kind == what for _, kind, _ in self.notes(number))

    def noted(self, number: int, what: str) -> tuple[float, str]:
        """Return when a process first noted something, and what it said of it."""
        return next((at, said) for at, kind, said in self.notes(number) if kind == what)

    def numbers(self, what: str) -> list[float]:
        """Return what each process first noted as a number, sorted."""
        return sorted(float(self.noted(number, what)[1]) for number in self.processes)

    def wait(self, what: str, condition: Callable[[int], bool], among: Iterable[int] | None = None) -> None:
        """Wait until a condition holds for every living process, or for some of them."""
        waiting = set(self.processes if among is None else among)
        until = time.monotonic() + _PATIENCE
        while waiting:
            waiting = {number for number in waiting if not condition(number)}
            self._check_living()
            if time.monotonic() > until:
                raise SystemExit(f"{what}: {len(waiting)} processes did not get there")
            time.sleep(0.2)

    def wait_settled(self) -> None:
        """Wait until no node has a change left to send."""

        def settled(number: int) -> bool:
            kinds = [what for _, what, _ in self.notes(number) if what not in _NO_CHANGES]
            return bool(kinds) and kinds[-1] == _SETTLED

        self.wait(_SETTLED, settled)

    def first(self, number: int, what: str, node: str, since: float) -> float:
        """Return after how many seconds a process noted something first; infinite if it did not."""
        times = [at - since for at, kind, about in self.notes(number) if (kind, about) == (what, node) and at >= since]
        return min(times, default=float("inf"))

    def kill(self, number: int) -> tuple[list[float], list[float]]:
        """Kill a process; return after how many seconds each other one gave it no more work, and saw it dead."""
        node = next(about for _, what, about in self.notes(number) if what == "up")
        process = self.processes.pop(number)
        since = time.monotonic()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.wait("dead everywhere", lambda other: self.first(other, "lost", node, since) < float("inf"))
        routed = sorted(self.first(other, "routed out", node, since) for other in self.processes)
        dead = sorted(self.first(other, "lost", node, since) for other in self.processes)
        return routed, dead

    def descriptors(self) -> list[int]:
        """Return how many files each process has open, sorted."""
        return sorted(len(list(Path(f"/proc/{process.pid}/fd").iterdir())) for process in self.processes.values())

    def costs(self, seconds: float) -> tuple[list[float], list[float]]:
        """Return the share of a core that each process takes over so many seconds, and its memory in MiB."""
        before = {number: _cpu(process.pid) for number, process in self.processes.items()}
        began = time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        shares = [(_cpu(process.pid) - before[number]) / passed for number, process in self.processes.items()]
        return sorted(shares), sorted(_memory(process.pid) for process in self.processes.values())


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError("the system does not tell the memory of processes")


@contextmanager
def open_swarm(size: int) -> Generator[Swarm]:
    """Have so many processes for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="ib-", dir="/tmp") as directory:
        swarm = Swarm(Path(directory), size)
        try:
            swarm.start()
            yield swarm
        finally:
            for process in swarm.processes.values():
                process.kill()
            for process in swarm.processes.values():
                process.wait()


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def _spread(values: Sequence[float], unit: str = "") -> str:
    return f"{statistics.mean(values):.3g} {unit}".rstrip() + f" mean, {max(values):.3g} {unit}".rstrip() + " worst"


def measure(size: int, kills: int, idle: float) -> None:
    """Run it and print what was measured."""
    with open_swarm(size) as swarm:
        loading = swarm.numbers("loaded")
        empty = sorted(_memory(process.pid) for process in swarm.processes.values())
        print(f"loading Python and Iris: {_spread(loading, 's')} of processor time, {_spread(empty, 'MiB')}")
        began = time.monotonic()
        for number in swarm.processes:
            swarm.go_on(number)
        swarm.wait("all see all", lambda number: swarm.has(number, "spent"))
        complete = max(swarm.noted(number, "complete")[0] for number in swarm.processes)
        before = {number: float(swarm.noted(number, "loaded")[1]) for number in swarm.processes}
        spent = sorted(float(swarm.noted(number, "spent")[1]) - before[number] for number in swarm.processes)
        print(
            f"{size} processes: all see all after {complete - began:.2f} s; processor time {sum(spent):.1f} s, "
            f"{_spread(spent, 's')}; load of the machine {os.getloadavg()[0]:.1f}"
        )
        swarm.wait_settled()
        shares, memory = swarm.costs(idle)
        print(f"idle for {idle:g} s, load of the machine {os.getloadavg()[0]:.1f}:")
        print(f"  core: {statistics.mean(shares):.2%} mean, {max(shares):.2%} worst")
        print(f"  memory: {_spread(memory, 'MiB')}")
        for number in swarm.processes:
            swarm.go_on(number)
            swarm.wait("asked", lambda number: swarm.has(number, "asked"), among=[number])
        asked = [1e3 * seconds for seconds in swarm.numbers("asked")]
        for what in ("linked", "handshakes"):
            print(f"  {what}: {_spread(swarm.numbers(what))}")
        print(f"  descriptors: {_spread(swarm.descriptors())}")
        print(f"  first request: {_at(asked, 0.5):.1f} ms p50, {asked[-1]:.1f} ms worst")
        routed: list[float] = []
        dead: list[float] = []
        for number in random.Random(1).sample(sorted(swarm.processes), min(kills, size - 2)):
            for all_times, times in zip((routed, dead), swarm.kill(number), strict=True):
                all_times.extend(times)
            swarm.wait_settled()
        if routed:
            for what, times in (("routed out", sorted(routed)), ("dead", sorted(dead))):
                cells = f"{_at(times, 0.5):.3f} p50, {_at(times, 0.99):.3f} p99, {times[-1]:.3f} s worst"
                print(f"kill -9, {kills} times, {what}: {cells} of {len(times)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.membership.processes", description=__doc__)
    parser.add_argument("--size", type=int, default=100, help="processes")
    parser.add_argument("--kills", type=int, default=5, help="how many are killed, one after the other")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds for which the idle nodes are watched")
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.log is not None:
        trio.run(serve, chosen.log, chosen.size)
    else:
        measure(chosen.size, chosen.kills, chosen.idle)


if __name__ == "__main__":
    main()
