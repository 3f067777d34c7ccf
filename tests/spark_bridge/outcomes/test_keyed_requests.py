"""Requests with an idempotency key while their members, and the bridge, are killed: how often each had its effect.

The effect in the bridge's log, by the outbox, is to be there once for each request.  The effect outside, a line in a
file, has no such promise: with ``rerun`` it is there at least once, without it at most once, and the caller of one that
was lost in the middle gets ``Unknown``.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

import iris
from tests.support.processes import Child, bridge_child, open_realm


@dataclasses.dataclass(kw_only=True)
class KeyedRun:
    """Result of a run."""

    requests: int
    rerun: bool
    members_killed: int
    bridges_killed: int
    answered: int
    wrong: int
    """Replies that were not that of the request, or differed when it was asked once more."""
    unknown: int
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


def run(
    requests: int,
    *,
    rerun: bool,
    pause: float,
    members: int = 3,
    kill_bridge: bool = True,
) -> KeyedRun:
    """Ask, and kill a member or the bridge every ``pause`` seconds."""
    r = random.Random(0)
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
                try:
                    reply = await node.request(
                        "bank",
                        number,
                        timeout=30.0,
                        wait=30.0,
                        options=iris.RequestOptions(idempotency_key=str(number)),
                    )
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
                for _ in range(64):
                    nursery.start_soon(some)

        async def ask() -> Counter[int]:
            async with iris.open_node("desk") as node:
                await node.wait_for("bank", members, timeout=60)
                await node.wait_for("bridge", timeout=60)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill)
                    await pay_all(node, range(requests))
                    nursery.cancel_scope.cancel()
                return await _stored(node, counts["answered"])

        try:
            bridge.start()
            for member in served:
                member.launch()
            for member in served:
                member.wait_ready()
            stored = trio.run(ask)
        finally:
            for child in (*served, bridge):
                child.end()
        begun, ended = _recorded(directory, members)
    return KeyedRun(
        requests=requests,
        rerun=rerun,
        members_killed=deaths["member"],
        bridges_killed=deaths["bridge"],
        answered=counts["answered"],
        wrong=counts["wrong"],
        unknown=counts["unknown"],
        begun=begun,
        ended=ended,
        stored=stored,
    )


def _member(directory: Path, number: int, *, rerun: bool) -> Child:
    record = str(directory / f"record{number}")
    command = [sys.executable, "-m", "tests.support.programs.keyed_member", "--record", record]
    return Child(
        command + (["--rerun"] if rerun else []),
        ready="ready",
        log=directory / f"member{number}.txt",
    )


async def _stored(node: iris.Node, count: int) -> Counter[int]:
    """Read the whole log: until so many events are there, and no more follow."""
    found = Counter[int]()
    async with node.bridge().consume("ledger", group="audit") as events:
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


@pytest.mark.parametrize("rerun", [True, pytest.param(False, marks=pytest.mark.long)])
def test_requests_with_a_key_have_their_effect_once_while_members_are_killed(rerun: bool) -> None:
    found = run(300, rerun=rerun, pause=0.05, members=2, kill_bridge=False)
    assert found.kept, str(found)
    assert found.members_killed


@pytest.mark.long
@pytest.mark.parametrize("rerun", [True, False])
def test_requests_with_a_key_have_their_effect_once_while_members_and_the_bridge_are_killed(rerun: bool) -> None:
    found = run(5_000, rerun=rerun, pause=2.0)
    assert found.kept, str(found)
    assert found.members_killed
    assert found.bridges_killed
