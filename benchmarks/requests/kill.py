"""``kill -9`` of three of ten members under load: who was told what, and what was done."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Final, final

import trio

import iris
from benchmarks.requests.history import Outcome, Verdict, judge
from benchmarks.requests.member import WIDTH

ROOT: Final = Path(__file__).resolve().parents[2]
CALLERS: Final = 64
_PLAIN_SHARE: Final = 10
"""One request that is not idempotent for so many that are."""

_TIMEOUT: Final = 20.0


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KillRun:
    """What a run showed."""

    verdict: Verdict
    requests: int
    seconds: float
    longest: float
    """Seconds that the slowest idempotent request took."""
    repeats_seen: int
    errors: Counter[str]
    """Of requests that are not idempotent, by name."""


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


def _read(directory: Path, names: list[str], suffix: str = "") -> dict[str, array.array[int]]:
    effects: dict[str, array.array[int]] = {}
    for name in names:
        numbers = array.array("Q")
        file = directory / f"{name}{suffix}"
        if file.exists():
            data = file.read_bytes()
            numbers.frombytes(data[: len(data) // WIDTH * WIDTH])
            numbers.byteswap()
        effects[name] = numbers
    return effects


async def _load(
    node: iris.Node, requests: int, processes: dict[str, subprocess.Popen[bytes]], victims: list[str]
) -> tuple[bytearray, bytearray, float, Counter[str]]:
    idempotent, plain = bytearray(requests), bytearray(requests // _PLAIN_SHARE)
    numbers = iter(range(requests))
    longest = 0.0
    done = 0
    errors: Counter[str] = Counter()
    steps = [requests * (index + 1) // (len(victims) + 1) for index in range(len(victims))]

    async def ask_plain(number: int) -> None:
        payload = number.to_bytes(WIDTH, "big")
        try:
            reply = await node.request("ledger", payload, operation="plain", timeout=_TIMEOUT)
        except (iris.NotSent, iris.Overloaded, iris.NoSuchCluster) as error:
            plain[number] = Outcome.NOT_RUN
            errors[type(error).__name__] += 1
        except (iris.Unknown, iris.RequestTimeout) as error:
            plain[number] = Outcome.UNKNOWN
            errors[type(error).__name__] += 1
        else:
            plain[number] = Outcome.REPLY if reply == payload else Outcome.FAILED

    async def call() -> None:
        nonlocal longest, done
        for number in numbers:
            payload = number.to_bytes(WIDTH, "big")
            began = time.monotonic()
            try:
                reply = await node.request("ledger", payload, operation="idempotent", idempotent=True, timeout=_TIMEOUT)
            except iris.IrisError:
                idempotent[number] = Outcome.FAILED
            else:
                idempotent[number] = Outcome.REPLY if reply == payload else Outcome.FAILED
            longest = max(longest, time.monotonic() - began)
            done += 1
            if steps and done >= steps[0]:
                del steps[0]
                processes[victims[len(steps)]].kill()
            if number % _PLAIN_SHARE == 0 and number // _PLAIN_SHARE < len(plain):
                await ask_plain(number // _PLAIN_SHARE)

    async with trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(call)
    return idempotent, plain, longest, errors


async def _run(requests: int, members: int, kills: int, seed: int) -> KillRun:
    with own_realm() as directory:
        async with iris.open_node() as node:
            with _members(directory, members) as processes:
                victims = Random(seed).sample(sorted(processes), kills)
                await node.wait_for("ledger", members=members, timeout=150)
                began = time.monotonic()
                idempotent, plain, longest, errors = await _load(node, requests, processes, victims)
                seconds = time.monotonic() - began
            names = sorted(processes)
            verdict = judge(idempotent, plain, _read(directory, names), _read(directory, names, ".plain"), set(victims))
            statistics = node.statistics().requests
            ended = statistics.delivered + statistics.expired + statistics.refused + sum(statistics.lost.values())
            assert statistics.sent == ended == requests + requests // _PLAIN_SHARE, statistics
    return KillRun(
        verdict=verdict,
        requests=requests,
        seconds=seconds,
        longest=longest,
        repeats_seen=verdict.repeated,
        errors=errors,
    )


def run(requests: int, *, members: int = 10, kills: int = 3, seed: int = 1) -> KillRun:
    """Make so many idempotent requests, and a tenth as many others, while members are killed one after the other."""
    return trio.run(_run, requests, members, kills, seed)


def conduct(requests: int) -> bool:
    """Run it and print what it showed; tell whether it kept to the model."""
    shown = run(requests)
    verdict = shown.verdict
    print(f"\n{requests} idempotent requests, {requests // _PLAIN_SHARE} others, 3 of 10 members killed with SIGKILL\n")
    print("| idempotent: lost | run twice by one member | run again after a loss | others: reply, unknown, not run |")
    print("|---|---|---|---|")
    others = ", ".join(str(verdict.outcomes.get(name, 0)) for name in ("REPLY", "UNKNOWN", "NOT_RUN"))
    print(f"| {verdict.lost} | {verdict.doubled} | {verdict.repeated} (+{verdict.moved} of living) | {others} |")
    rate = requests * (1 + 1 / _PLAIN_SHARE) / shown.seconds
    print(f"\n{shown.seconds:.1f} s, {rate:.0f} requests/s, slowest {shown.longest:.2f} s; errors {dict(shown.errors)}")
    for violation in verdict.violations:
        print(f"VIOLATED {violation}")
    return not verdict.violations
