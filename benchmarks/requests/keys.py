"""Requests with an idempotency key while their members, and the bridge, are killed: how often each had its effect.

The effect in the bridge's log, by the outbox, is to be there once for each request.  The effect outside, a line in a
file, has no such promise: with ``rerun`` it is there at least once, without it at most once, and the caller of one that
was lost in the middle gets ``Unknown``.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import trio

import iris
from benchmarks.bridge.children import Child, bridge_child, open_realm

_ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(kw_only=True)
class KeyedRun:
    """Result of a run."""

    requests: int
    rerun: bool
    seconds: float
    members_killed: int
    bridges_killed: int
    answered: int
    wrong: int
    """Replies that were not that of the request, or differed when it was asked once more."""
    unknown: int
    asked: int
    """Calls of ``node.request``."""
    begun: Counter[int]
    """Number of times that the handler began, by request."""
    ended: Counter[int]
    stored: Counter[int]
    """Events of the log, by request."""

    @property
    def kept(self) -> bool:
        """True if the promise was kept."""
        replied = self.answered + self.unknown == self.requests and not self.wrong
        once = all(count == 1 for count in self.stored.values()) and len(self.stored) == self.answered
        if self.rerun:
            return replied and once and not self.unknown and len(self.ended) == self.requests
        return replied and once and all(count == 1 for count in self.begun.values())

    def __str__(self) -> str:
        twice = sum(count - 1 for count in self.begun.values())
        return (
            f"{self.requests:,} requests in {self.seconds:.0f} s ({'rerun' if self.rerun else 'no rerun'}), killed: "
            f"{self.members_killed} members, {self.bridges_killed} bridges; {self.asked:,} asked, {self.answered:,} "
            f"answered, {self.unknown} unknown, {self.wrong} wrong; handlers begun {sum(self.begun.values()):,} times, "
            f"{twice} of them again; effects in the log: {sum(self.stored.values()):,} of {len(self.stored):,} requests"
        )


def run(
    requests: int,
    *,
    rerun: bool,
    pause: float = 2.0,
    members: int = 3,
    at_a_time: int = 64,
    seed: int = 0,
    kill_bridge: bool = True,
) -> KeyedRun:
    """Ask, and kill a member or the bridge every ``pause`` seconds."""
    r = random.Random(seed)
    deaths = {"member": 0, "bridge": 0}
    counts = Counter[str]()

    with open_realm() as directory:
        bridge = bridge_child(directory)
        served = [_member(directory, number, rerun=rerun) for number in range(members)]

        async def kill() -> None:
            while True:
                await trio.sleep(pause)
                if kill_bridge and r.randrange(members + 1) == members:
                    deaths["bridge"] += 1
                    bridge.end()
                    await trio.to_thread.run_sync(bridge.start)
                else:
                    deaths["member"] += 1
                    victim = r.choice(served)
                    victim.end()
                    await trio.to_thread.run_sync(victim.start)

        async def pay(node: iris.Node, number: int) -> None:
            while True:
                counts["asked"] += 1
                try:
                    reply = await node.request("bank", number, idempotency_key=str(number), timeout=30.0, wait=30.0)
                except iris.Unknown:
                    counts["unknown"] += 1
                    return
                except iris.RemoteError as error:
                    if error.code not in ("no_bridge", "no_shard_0"):
                        raise
                except iris.DeliveryError:
                    continue
                else:
                    counts["answered"] += 1
                    counts["wrong"] += reply != number * 2
                    return

        async def pay_all(node: iris.Node, numbers: Iterable[int]) -> None:
            left = iter(numbers)

            async def some() -> None:
                for number in left:
                    await pay(node, number)

            async with trio.open_nursery() as nursery:
                for _ in range(at_a_time):
                    nursery.start_soon(some)

        async def ask() -> tuple[float, Counter[int]]:
            async with iris.open_node("desk") as node:
                await node.wait_for("bank", members, timeout=60)
                await node.wait_for("bridge", timeout=60)
                began = time.perf_counter()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill)
                    await pay_all(node, range(requests))
                    nursery.cancel_scope.cancel()
                seconds = time.perf_counter() - began
                return seconds, await _stored(node, counts["answered"])

        try:
            bridge.start()
            for member in served:
                member.launch()
            for member in served:
                member.wait_ready()
            seconds, stored = trio.run(ask)
        finally:
            for child in (*served, bridge):
                child.end()
        begun, ended = _recorded(directory, members)
    return KeyedRun(
        requests=requests,
        rerun=rerun,
        seconds=seconds,
        members_killed=deaths["member"],
        bridges_killed=deaths["bridge"],
        answered=counts["answered"],
        wrong=counts["wrong"],
        unknown=counts["unknown"],
        asked=counts["asked"],
        begun=begun,
        ended=ended,
        stored=stored,
    )


def _member(directory: Path, number: int, *, rerun: bool) -> Child:
    record = str(directory / f"record{number}")
    command = [sys.executable, "-m", "benchmarks.requests.keyed_member", "--record", record]
    return Child(
        command + (["--rerun"] if rerun else []),
        ready="ready",
        log=directory / f"member{number}.txt",
        environment={"PYTHONPATH": str(_ROOT)},
    )


async def _stored(node: iris.Node, count: int) -> Counter[int]:
    """Read the whole log: until so many events are there, and no more follow."""
    found = Counter[int]()
    async with node.consume("ledger", group="audit") as events:
        with trio.move_on_after(60):
            while found.total() < count:
                found.update(event.payload for event in await anext(events))
        with trio.move_on_after(1):
            while True:
                found.update(event.payload for event in await anext(events))
    return found


def _recorded(directory: Path, members: int) -> tuple[Counter[int], Counter[int]]:
    begun, ended = Counter[int](), Counter[int]()
    for number in range(members):
        path = directory / f"record{number}"
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, request = line.split()
            (begun if kind == "B" else ended)[int(request)] += 1
    return begun, ended


def conduct(requests: int, *, seed: int = 0) -> bool:
    """Do both runs; return whether the promise was kept."""
    kept = True
    for rerun in (True, False):
        came = run(requests, rerun=rerun, seed=seed)
        kept = kept and came.kept
        print(f"{came}: {'kept' if came.kept else 'NOT KEPT'} (load {os.getloadavg()[0]:.1f})", flush=True)
    return kept
