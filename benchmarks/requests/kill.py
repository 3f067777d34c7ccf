"""``kill -9`` of three of ten members under load: the outcomes that callers got, and the effects."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, final

import trio

import iris
from benchmarks.requests.history import Death, Effects, Outcome, Verdict, judge
from benchmarks.requests.member import WIDTH

ROOT: Final = Path(__file__).resolve().parents[2]
CALLERS: Final = 16
BURST: Final = 16
"""Idempotent requests that a caller makes at a time.  Most bursts have a key, and so one member and one frame: one in
eight has none, and a frame for almost each request."""

_UNKEYED: Final = 8
_PLAIN_SHARE: Final = 10
"""One request that is not idempotent for so many that are."""

_TIMEOUT: Final = 20.0


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KillRun:
    """Result of a run."""

    verdict: Verdict
    requests: int
    seconds: float
    longest: float
    """Seconds that the slowest idempotent request took."""
    deaths: int
    """Members that SIGKILL has ended while requests went on."""
    answered_since: int
    """Idempotent requests that had their replies after the last of these deaths."""
    repeated: int
    """Requests made once more, at another member, as the caller's node counts them."""
    moved: int
    """Requests among these that the member before may have run."""
    errors: Counter[str]
    """Errors of requests that are not idempotent, by name."""


@contextlib.contextmanager
def _members(directory: Path, count: int) -> Generator[dict[str, subprocess.Popen[bytes]]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for index in range(count):
            name = f"member {index}"
            command = [sys.executable, "-m", "benchmarks.requests.member", str(directory / name)]
            with (directory / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen(command, cwd=ROOT, stderr=log)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def own_realm() -> Generator[Path]:
    """A local realm of the run's own, which no other node of this machine is in."""
    before = {name: os.environ.get(name) for name in ("IRIS_HOME", "XDG_RUNTIME_DIR")}
    with tempfile.TemporaryDirectory(prefix="ik-") as path:
        directory = Path(path)
        os.environ["IRIS_HOME"] = str(directory / "home")
        os.environ["XDG_RUNTIME_DIR"] = path
        try:
            yield directory
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _read(directory: Path, names: list[str], suffix: str = "") -> dict[str, Effects]:
    effects: dict[str, Effects] = {}
    for name in names:
        numbers = array.array("Q")
        file = directory / f"{name}{suffix}"
        if file.exists():
            data = file.read_bytes()
            numbers.frombytes(data[: len(data) // (2 * WIDTH) * 2 * WIDTH])
            numbers.byteswap()
        effects[name] = Effects(numbers[::2], numbers[1::2])
    return effects


@final
class _Load:
    """The callers, and their outcomes.

    Args:
        node: node of the callers.
        requests: number of idempotent requests; a share of others is made as well.
        processes: the members.
        victims: members that are killed, at equal distances during the run.
    """

    def __init__(
        self, node: iris.Node, requests: int, processes: Mapping[str, subprocess.Popen[bytes]], victims: Sequence[str]
    ) -> None:
        self.idempotent = bytearray(requests)
        self.plain = bytearray(requests // _PLAIN_SHARE)
        self.longest = 0.0
        self.errors: Counter[str] = Counter()
        self.deaths: dict[str, Death] = {}
        self.answered_since = 0
        self._node = node
        self._processes = processes
        self._victims = [(requests * (index + 1) // (len(victims) + 1), victim) for index, victim in enumerate(victims)]
        self._bursts = iter(range(0, requests, BURST))
        self._done = 0

    async def run(self) -> None:
        """Make all requests."""
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(self._call)

    async def _call(self) -> None:
        for first in self._bursts:
            key = None if first // BURST % _UNKEYED == 0 else str(first)
            async with trio.open_nursery() as nursery:
                for number in range(first, min(first + BURST, len(self.idempotent))):
                    nursery.start_soon(self._ask, number, key)
                    if number % _PLAIN_SHARE == 0 and number // _PLAIN_SHARE < len(self.plain):
                        nursery.start_soon(self._ask_plain, number // _PLAIN_SHARE, key)
                if self._victims and self._done >= self._victims[0][0]:
                    await self._kill(self._victims.pop(0)[1])

    async def _kill(self, victim: str) -> None:
        process = self._processes[victim]
        killed = time.monotonic_ns()
        process.kill()
        ended = await trio.to_thread.run_sync(process.wait)
        assert ended == -signal.SIGKILL, f"{victim} had ended by itself, with {ended}"
        self.deaths[victim] = Death(killed, time.monotonic_ns())
        self.answered_since = 0

    async def _ask(self, number: int, key: str | None) -> None:
        payload = number.to_bytes(WIDTH, "big")
        began = time.monotonic()
        try:
            reply = await self._node.request(
                "ledger", payload, operation="idempotent", idempotent=True, key=key, timeout=_TIMEOUT
            )
        except iris.IrisError:
            self.idempotent[number] = Outcome.FAILED
        else:
            self.idempotent[number] = Outcome.REPLY if reply == payload else Outcome.FAILED
        self._done += 1
        self.answered_since += self.idempotent[number] == Outcome.REPLY
        self.longest = max(self.longest, time.monotonic() - began)

    async def _ask_plain(self, number: int, key: str | None) -> None:
        payload = number.to_bytes(WIDTH, "big")
        try:
            reply = await self._node.request("ledger", payload, operation="plain", key=key, timeout=_TIMEOUT)
        except (iris.NotSent, iris.Overloaded, iris.NoSuchCluster) as error:
            self.plain[number] = Outcome.NOT_RUN
            self.errors[type(error).__name__] += 1
        except (iris.Unknown, iris.RequestTimeout) as error:
            self.plain[number] = Outcome.UNKNOWN
            self.errors[type(error).__name__] += 1
        else:
            self.plain[number] = Outcome.REPLY if reply == payload else Outcome.FAILED


async def _run(requests: int, members: int, kills: int, seed: int) -> KillRun:
    with own_realm() as directory:
        async with iris.open_node() as node:
            with _members(directory, members) as processes:
                victims = Random(seed).sample(sorted(processes), kills)
                await node.wait_for("ledger", members=members, timeout=150)
                load = _Load(node, requests, processes, victims)
                began = time.monotonic()
                await load.run()
                seconds = time.monotonic() - began
            statistics = node.statistics()
            names = sorted(processes)
            verdict = judge(
                load.idempotent,
                load.plain,
                _read(directory, names),
                _read(directory, names, ".plain"),
                load.deaths,
                statistics.moved,
            )
            asked = statistics.requests
            ended = asked.answered + asked.expired + asked.refused + sum(asked.lost.values())
            assert asked.sent == ended == requests + requests // _PLAIN_SHARE, asked
    return KillRun(
        verdict=verdict,
        requests=requests,
        seconds=seconds,
        longest=load.longest,
        deaths=len(load.deaths),
        answered_since=load.answered_since,
        repeated=statistics.repeated,
        moved=statistics.moved,
        errors=load.errors,
    )


def run(requests: int, *, members: int = 10, kills: int = 3, seed: int = 1) -> KillRun:
    """Make so many idempotent requests, and a tenth as many others, while members are killed one after the other."""
    return trio.run(_run, requests, members, kills, seed)


def conduct(requests: int) -> bool:
    """Run it and print what it showed; return whether it kept to the model."""
    shown = run(requests)
    verdict = shown.verdict
    print(
        f"\n{requests} idempotent requests, {requests // _PLAIN_SHARE} others, 3 of 10 members killed with SIGKILL, ",
        end="",
    )
    print(f"{shown.answered_since} replies after that\n")
    print("| idempotent: lost | run twice by one member | again after its death | again while it lived | ", end="")
    print("repeated, of them moved | others: reply, unknown, not run |")
    print("|---|---|---|---|---|---|")
    others = ", ".join(str(verdict.outcomes.get(name, 0)) for name in ("REPLY", "UNKNOWN", "NOT_RUN"))
    print(f"| {verdict.lost} | {verdict.doubled} | {verdict.after_death} | {verdict.beside} ", end="")
    print(f"| {shown.repeated}, {shown.moved} | {others} |")
    rate = requests * (1 + 1 / _PLAIN_SHARE) / shown.seconds
    print(f"\n{shown.seconds:.1f} s, {rate:.0f} requests/s, slowest {shown.longest:.2f} s; errors {dict(shown.errors)}")
    for violation in verdict.violations:
        print(f"VIOLATED {violation}")
    return not verdict.violations
