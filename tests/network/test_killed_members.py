"""``kill -9`` of three of six or ten members under load, in processes of their own: the history keeps to the model."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, final

import pytest
import trio

import iris
from tests.support.processes import Child, open_realm
from tests.support.programs.ledger_member import WIDTH
from tests.support.request_model import Death, Effects, Outcome, Verdict, judge

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
    deaths: int
    """Members that SIGKILL has ended while requests went on."""
    answered_since: int
    """Idempotent requests that had their replies after the last of these deaths."""
    repeated: int
    """Requests made once more, at another member, as the caller's node counts them."""
    moved: int
    """Requests among these that the member before may have run."""


@contextlib.contextmanager
def _members(directory: Path, count: int) -> Generator[dict[str, Child]]:
    processes: dict[str, Child] = {}
    try:
        for index in range(count):
            name = f"member {index}"
            command = [sys.executable, "-m", "tests.support.programs.ledger_member", str(directory / name)]
            processes[name] = Child(command, ready="", log=directory / f"{name}.log")
            processes[name].launch()
        yield processes
    finally:
        for process in processes.values():
            process.end()


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

    def __init__(self, node: iris.Node, requests: int, processes: Mapping[str, Child], victims: Sequence[str]) -> None:
        self.idempotent = bytearray(requests)
        self.plain = bytearray(requests // _PLAIN_SHARE)
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
        ended = await trio.to_thread.run_sync(process.end)
        assert ended == -signal.SIGKILL, f"{victim} had ended by itself, with {ended}"
        self.deaths[victim] = Death(killed, time.monotonic_ns())
        self.answered_since = 0

    async def _ask(self, number: int, key: str | None) -> None:
        payload = number.to_bytes(WIDTH, "big")
        try:
            reply = await self._node.request(
                "ledger",
                payload,
                operation="idempotent",
                key=key,
                timeout=_TIMEOUT,
                options=iris.RequestOptions(idempotent=True),
            )
        except iris.IrisError:
            self.idempotent[number] = Outcome.FAILED
        else:
            self.idempotent[number] = Outcome.REPLY if reply == payload else Outcome.FAILED
        self._done += 1
        self.answered_since += self.idempotent[number] == Outcome.REPLY

    async def _ask_plain(self, number: int, key: str | None) -> None:
        payload = number.to_bytes(WIDTH, "big")
        try:
            reply = await self._node.request("ledger", payload, operation="plain", key=key, timeout=_TIMEOUT)
        except (iris.NotSent, iris.Overloaded, iris.NoSuchCluster):
            self.plain[number] = Outcome.NOT_RUN
        except (iris.Unknown, iris.RequestTimeout):
            self.plain[number] = Outcome.UNKNOWN
        else:
            self.plain[number] = Outcome.REPLY if reply == payload else Outcome.FAILED


async def _run(requests: int, members: int) -> KillRun:
    with open_realm() as directory:
        async with iris.open_node() as node:
            with _members(directory, members) as processes:
                victims = Random(1).sample(sorted(processes), 3)
                await node.wait_for("ledger", members=members, timeout=150)
                load = _Load(node, requests, processes, victims)
                await load.run()
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
        deaths=len(load.deaths),
        answered_since=load.answered_since,
        repeated=statistics.repeated,
        moved=statistics.moved,
    )


def run(requests: int, members: int) -> KillRun:
    """Make so many idempotent requests, and a tenth as many others, while members are killed one after the other."""
    return trio.run(_run, requests, members)


@pytest.mark.parametrize(("requests", "members"), [(10_000, 6), pytest.param(100_000, 10, marks=pytest.mark.long)])
def test_no_request_is_lost_or_doubled_when_three_members_are_killed(requests: int, members: int) -> None:
    shown = run(requests, members)
    verdict = shown.verdict
    assert verdict.violations == ()
    assert verdict.lost == verdict.doubled == 0
    assert sum(verdict.outcomes.values()) == requests // 10
    assert verdict.outcomes["REPLY"] > 0.95 * requests / 10
    # It was a test at all: members died, their requests went to others, and the load went on.
    assert shown.deaths == 3
    assert shown.answered_since > requests / 5
    assert shown.repeated >= shown.moved > 0
