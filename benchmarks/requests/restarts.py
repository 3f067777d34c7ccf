"""A rolling restart: members run by ``iris run`` are ended by SIGTERM and started again, in turn and under load.

Each of them leaves in order, so nothing fails: neither requests that may be repeated nor those that may not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, final

import trio

import iris
from benchmarks.requests.kill import ROOT, own_realm

WIDTH: Final = 8
"""Size of a number in bytes, as in ``benchmarks.requests.restarted``, which is for processes of its own."""

CALLERS: Final = 16
_TIMEOUT: Final = 30.0
_PATIENCE: Final = 60.0
"""Seconds in which a process has to be up, or to have ended."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartRun:
    """Result of a run."""

    restarts: int
    plain: int
    """Requests that were made, of those that are not idempotent; half of all are."""
    idempotent: int
    failed: Counter[str]
    """Requests that had no reply, by kind and error."""
    twice: int
    """Plain requests that ran more than once."""
    unseen: int
    """Requests with a reply that no member has run."""
    statuses: Counter[int]
    """Exit statuses of the members that were stopped."""
    repeated: int
    """Requests made once more, at another member, as the caller's node counts them."""
    seconds: float
    longest: float
    """Seconds that the slowest request took."""

    @property
    def kept(self) -> bool:
        """True if nothing failed."""
        return not self.failed and not self.twice and not self.unseen and set(self.statuses) <= {0}


@final
class _Members:
    """Members, each a process that can be ended and started again."""

    def __init__(self, directory: Path, count: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._file = directory / "ledger"
        self._log = directory / "log"
        self._environment = {**os.environ, "IRIS_LEDGER": str(self._file), "PYTHONUNBUFFERED": "1"}
        self._processes = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "iris", "run", "benchmarks.requests.restarted:ledger"]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self._environment, stderr=log)

    async def restart(self, number: int) -> None:
        """End a member by SIGTERM, wait for its end, and start another one in its place."""
        process = self._processes[number]
        process.send_signal(signal.SIGTERM)
        status = await trio.to_thread.run_sync(process.wait, _PATIENCE)
        self.statuses[status] += 1
        self._processes[number] = self._start()

    def numbers(self) -> Counter[int]:
        """Return how often each request ran."""
        data = self._file.read_bytes()
        return Counter(int.from_bytes(data[at : at + WIDTH], "big") for at in range(0, len(data), WIDTH))

    def said(self) -> str:
        """Return what they wrote on standard error, but for what they always do."""
        lines = self._log.read_text().splitlines()
        return "\n".join(line for line in lines if " serves ledger at " not in line and " at work: " not in line)

    def end(self) -> None:
        """Kill all that are left."""
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _members(directory: Path, count: int) -> Generator[_Members]:
    members = _Members(directory, count)
    try:
        yield members
    finally:
        members.end()


@final
class _Load:
    """Callers that send requests until they are stopped."""

    def __init__(self, node: iris.Node) -> None:
        self.failed: Counter[str] = Counter()
        self.made: Counter[bool] = Counter()
        self.replied: list[int] = []
        self.plain: list[int] = []
        self.longest = 0.0
        self.over = False
        self._node = node
        self._number = 0

    async def run(self) -> None:
        """Ask."""
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(self._call)

    async def _call(self) -> None:
        while not self.over:
            number = self._number
            self._number += 1
            idempotent = number % 2 == 1
            self.made[idempotent] += 1
            payload = number.to_bytes(WIDTH, "big")
            began = time.monotonic()
            try:
                reply = await self._node.request("ledger", payload, idempotent=idempotent, timeout=_TIMEOUT)
            except iris.IrisError as error:
                kind = "idempotent" if idempotent else "plain"
                self.failed[f"{kind}: {type(error).__name__}: {error}"] += 1
            else:
                assert reply == payload
                self.replied.append(number)
            if not idempotent:
                self.plain.append(number)
            self.longest = max(self.longest, time.monotonic() - began)


async def _run(members: int, restarts: int, tell: Callable[[str], None]) -> RestartRun:
    with own_realm() as directory:
        async with iris.open_node() as node:
            with _members(directory, members) as processes:
                await node.wait_for("ledger", members=members, timeout=_PATIENCE)
                load = _Load(node)
                began = time.monotonic()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(load.run)
                    for turn in range(restarts):
                        for number in range(members):
                            await processes.restart(number)
                            await node.wait_for("ledger", members=members, timeout=_PATIENCE)
                        tell(
                            f"{turn + 1} of {restarts}: {sum(load.made.values())} requests, failed {dict(load.failed)}"
                        )
                    load.over = True
                ran = processes.numbers()
                if processes.said():
                    tell(processes.said())
            repeated = node.statistics().repeated
    return RestartRun(
        restarts=members * restarts,
        plain=load.made[False],
        idempotent=load.made[True],
        failed=load.failed,
        twice=sum(ran[number] > 1 for number in load.plain),
        unseen=sum(not ran[number] for number in load.replied),
        statuses=processes.statuses,
        repeated=repeated,
        seconds=time.monotonic() - began,
        longest=load.longest,
    )


def run(*, members: int = 4, restarts: int = 10, tell: Callable[[str], None] = lambda _: None) -> RestartRun:
    """Restart each of so many members so often, one after the other, while requests are made."""
    return trio.run(_run, members, restarts, tell)


def conduct(*, members: int, restarts: int) -> bool:
    """Run it and print what it showed; return whether nothing failed."""
    shown = run(members=members, restarts=restarts, tell=lambda text: print(text, flush=True))
    print(f"\n{shown.restarts} restarts by SIGTERM of {members} members in turn, {shown.seconds:.0f} s\n")
    print("| requests: plain, idempotent | failed | ran twice | repeated elsewhere | slowest | exit statuses |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {shown.plain}, {shown.idempotent} | {sum(shown.failed.values())} | {shown.twice} | {shown.repeated} "
        f"| {shown.longest:.2f} s | {dict(shown.statuses)} |"
    )
    for text, count in shown.failed.most_common(10):
        print(f"FAILED {count} times: {text}")
    if shown.unseen:
        print(f"FAILED {shown.unseen} requests have a reply and did not run")
    return shown.kept
