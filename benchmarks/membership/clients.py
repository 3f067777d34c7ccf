"""``python -m benchmarks.membership.clients``: what readers cost the members of a realm, as clients or as members.

Real processes on loopback TCP: a ``log`` that is read, two nodes by which readers come (``door``), two that no reader
speaks to (``quiet``).  Readers are many nodes in a few processes; to the members each is one of its own.  Measured are
processor time and memory of each member: without readers, with readers that idle, and with readers that each take
16 KiB a second.  Processor time is the system's count for the process, so what else the machine does hardly matters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import trio

import iris
from iris.security.files import open_local_realm

LOOPBACK: Final = ("tcp://127.0.0.1:0",)
CHUNK: Final = bytes(16 * 1024)
_AT_ONCE: Final = 4
_ROOT: Final = Path(__file__).resolve().parents[2]
_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MEMBERS: Final = ("log", "door", "door", "quiet", "quiet")
_CONFIG: Final = iris.Config(clients_per_cluster_key=100_000)


def _say(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def be_member(home: Path, name: str, seeds: Sequence[str]) -> None:
    """Serve until stdin ends; to each line of it say how many messages were sent so far, over all links."""
    credential = open_local_realm(home=home).credential(name, wall_now=time.time())
    service = iris.Service(name)

    @service.request
    async def read(_request: iris.Request) -> bytes:
        return CHUNK

    nowhere = iris.Environment(directory=None, variables={}, lan=None)
    async with (
        iris.open_node(
            credential=credential, listen=LOOPBACK, seeds=seeds, config=_CONFIG, environment=nowhere
        ) as node,
        node.join(name, service),
    ):
        _say(node.addresses[0])
        while await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            mesh = node._parts.mesh
            ended = [mesh.ended_links] if mesh.ended_links is not None else []
            links = [*(peer.link.statistics() for peer in mesh.peers.values()), *ended]
            _say(sum(link.sent for link in links))


async def ask(node: iris.Node) -> None:
    """Read once; a link that breaks meanwhile is made again, as readers of a bridge do."""
    with trio.fail_after(180):
        while True:
            try:
                await node.wait_for("log", timeout=120)
                await node.request("log", b"", timeout=60, idempotent=True)
            except iris.DeliveryError:
                continue
            return


async def be_readers(home: Path, count: int, seeds: Sequence[str], *, client: bool) -> None:
    """Be ``count`` readers, each with a node of its own; they read from a line ``read`` to a line ``idle``."""
    credential = open_local_realm(home=home).credential("spark", wall_now=time.time())
    nowhere = iris.Environment(directory=None, variables={}, lan=None)
    up, reading, turns = 0, [False], trio.CapacityLimiter(_AT_ONCE)
    end = trio.Event()

    async def read(number: int) -> None:
        nonlocal up
        async with turns:
            opening = iris.open_node(
                credential=credential, seeds=seeds, listen=LOOPBACK, client=client, environment=nowhere
            )
            node = await opening.__aenter__()
        try:
            await ask(node)
            up += 1
            if up == count:
                _say("up")
            await trio.sleep(number / count)
            while not end.is_set():
                if reading[0]:
                    await ask(node)
                await trio.sleep(1.0)
        finally:
            await opening.__aexit__(None, None, None)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(read, number)
        while (line := (await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).strip()) != "end":
            reading[0] = line == "read"
        end.set()
        nursery.cancel_scope.cancel()


@final
class Process:
    """One process of the benchmark."""

    def __init__(self, stack: ExitStack, role: str, home: Path, *options: str) -> None:
        command = [sys.executable, "-m", "benchmarks.membership.clients", role, "--home", str(home), *options]
        self._process = stack.enter_context(
            subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.kill)

    def line(self) -> Any:
        """Return what the next line says that it writes."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise SystemExit("a process has ended")
        return json.loads(text)

    def tell(self, line: str) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> Any:
        """Write it a line, and return what it says to that."""
        self.tell(line)
        return self.line()

    def processor_time(self) -> float:
        """Return how many seconds of processor time it has had."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def memory(self) -> float:
        """Return its resident memory in MiB."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def measure(members: Sequence[Process], seconds: float) -> list[tuple[float, float, float]]:
    """Return of each member the processor time in ms and the messages sent for each second, and the memory in MiB."""

    def counters() -> list[tuple[float, int]]:
        return [(member.processor_time(), member.ask("count")) for member in members]

    before, began = counters(), time.monotonic()
    time.sleep(seconds)
    after, took = counters(), time.monotonic() - began
    return [
        (1000 * (spent - spent_before) / took, (sent - sent_before) / took, member.memory())
        for member, (spent, sent), (spent_before, sent_before) in zip(members, after, before, strict=True)
    ]


@contextmanager
def open_members(home: Path) -> Generator[tuple[list[Process], list[str]]]:
    """Run the members; yield them, and the addresses by which readers come."""
    with ExitStack() as stack:
        members: list[Process] = []
        addresses: list[str] = []
        for name in _MEMBERS:
            seeds = [option for address in addresses[:1] for option in ("--seed", address)]
            members.append(Process(stack, "member", home, "--name", name, *seeds))
            addresses.append(members[-1].line())
        yield members, [address for address, name in zip(addresses, _MEMBERS, strict=True) if name == "door"]


def compare(readers: int, processes: int, seconds: float, *, client: bool, together: bool = False) -> None:
    """Print a table of one kind of readers."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        home = Path(directory)
        open_local_realm(home=home)
        members, doors = stack.enter_context(open_members(home))
        time.sleep(min(10.0, seconds))
        rows = [("no readers", measure(members, seconds))]
        seeds = [option for address in doors for option in ("--seed", address)]
        options = ["--count", str(readers // processes), *seeds, *(() if client else ("--as-members",))]
        reading: list[Process] = []
        began = time.monotonic()
        for _ in range(processes):
            reading.append(Process(stack, "readers", home, *options))
            if not together:  # all of them are unauthenticated peers of one address at first
                reading[-1].line()
        for process in reading if together else ():
            process.line()
        print(f"{readers} readers have read after {time.monotonic() - began:.0f} s", flush=True)
        time.sleep(min(10.0, seconds))
        rows.append((f"{readers} idle", measure(members, seconds)))
        for process in reading:
            process.tell("read")
        time.sleep(min(5.0, seconds))
        rows.append((f"{readers} reading", measure(members, seconds)))
        kind = "clients" if client else "members"
        print(f"\nReaders are {kind}: processor time in ms/s, messages/s and memory in MiB of each member\n")
        print("| | " + " | ".join(_MEMBERS) + " |")
        print("|" + "---|" * (1 + len(_MEMBERS)))
        for label, figures in rows:
            cells = (f"{spent:.1f} ms/s, {sent:.1f}/s, {memory:.1f} MiB" for spent, sent, memory in figures)
            print(f"| {label} | " + " | ".join(cells) + " |")
        sys.stdout.flush()


def main() -> None:
    """Measure what the arguments say, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="?", choices=("member", "readers"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--name", default="log", help=argparse.SUPPRESS)
    parser.add_argument("--seed", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--as-members", action="store_true", help="measure readers that are members, too")
    parser.add_argument("--readers", type=int, default=1000, help="how many of them are clients")
    parser.add_argument("--members", type=int, default=50, help="how many are members, with --as-members")
    parser.add_argument("--processes", type=int, default=10, help="in which they live")
    parser.add_argument("--together", action="store_true", help="start all of these at once, not one after the other")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    asked = parser.parse_args()
    match asked.role:
        case "member":
            trio.run(partial(be_member, asked.home, asked.name, asked.seed))
        case "readers":
            trio.run(partial(be_readers, asked.home, asked.count, asked.seed, client=not asked.as_members))
        case _:
            compare(asked.readers, asked.processes, asked.seconds, client=True, together=asked.together)
            if asked.as_members:
                compare(asked.members, min(asked.processes, asked.members), asked.seconds, client=False)


if __name__ == "__main__":
    main()
