"""Moves: drivers and members die in turns, a member gets another name: each event is out once.

Two members divide the events on ``in``; a query writes each of them on ``out``, exactly once.  Drivers and members are
killed in turns.  After two thirds of the kills a member comes back under another name.  Then everything runs dry, and
the logs are read.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, final

import trio

import iris
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from tests.support.processes import Child, bridge_child, open_realm

_DRY: Final = 900.0
_LOOK: Final = 1.0
_OF: Final = 2


@final
@dataclasses.dataclass(kw_only=True)
class Moved:
    """Result of a run."""

    events: int
    drivers: int = 0
    """Killed."""
    members: int = 0
    """Killed."""
    ended: int = 0
    """Drivers that ended by themselves, as when a member was away under its name, and were started again."""
    moves: list[str] = dataclasses.field(default_factory=list[str])
    lost: int = 0
    doubled: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.events} events; {self.drivers} drivers and {self.members} members killed, {self.ended} drivers "
            f"ended by themselves; {', '.join(self.moves)}: {self.lost} lost, {self.doubled} doubled; "
            f"{self.seconds:.0f} s"
        )


@final
class _Bridge:
    """The members, by shard."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.members: dict[int, Child] = {}
        self.renamed = 0

    def member(self, shard: int, *options: str) -> Child:
        """Return a member that is not started yet."""
        own = ("--shard", str(shard), "--of", str(_OF), *options)
        child = bridge_child(self._directory, *own, data=f"log{shard}")
        self.members[shard] = child
        return child

    def start(self) -> None:
        for shard in range(_OF):
            self.member(shard).launch()
        for child in self.members.values():
            child.wait_ready()

    def end(self) -> None:
        """End all of them."""
        for child in self.members.values():
            child.end()

    def kill(self, shard: int) -> None:
        """Kill a member and start it again."""
        self.members[shard].end()
        self.members[shard].launch()

    def rename(self, shard: int) -> None:
        """Kill a member, and start it again under a name that is sorted elsewhere."""
        self.members[shard].end()
        self.member(shard, "--member", f"z{shard}").launch()
        self.members[shard].wait_ready()


async def _publish(numbers: range) -> None:
    async with iris.open_node("publisher") as node:
        await node.wait_for("bridge", _OF, timeout=60)
        async with node.confirming(timeout=120) as events:
            for number in numbers:
                await events.publish("in", b"%d" % number, key=f"k{number % 97}")


async def _count_out() -> collections.Counter[int]:
    async with iris.open_node("bridge") as node:
        await node.wait_for("bridge", timeout=60)
        client = BridgeClient(node, "bridge", patience=60)
        return collections.Counter([int(event["value"]) async for event in read_events(client, topics=("out",))])


def run_moves(
    events: int, kills: int, *, seed: int = 0, rows: int = 1000, say: Callable[[str], None] = lambda _: None
) -> Moved:
    """Kill drivers and members in turns, and move what can be moved; let everything run dry, and count.

    Args:
        events: on ``in``; half of them are published after a third of the kills.
        kills: of drivers and members together.
        seed: of the pauses and of which member.
        rows: of a micro-batch.
        say: called with a line about each step.
    """
    chance = Random(seed)
    outcome = Moved(events=events)
    began = time.monotonic()
    with open_realm() as directory, contextlib.ExitStack() as stack:
        bridge = _Bridge(directory)
        stack.callback(bridge.end)
        bridge.start()
        trio.run(_publish, range(events // 2))
        command = [sys.executable, "-m", "benchmarks.bridge.kill_driver", "local[2]", str(directory)]
        driver = Child([*command, json.dumps({}), str(rows)], ready="the query runs", log=directory / "driver.txt")
        stack.callback(driver.end)
        driver.start()

        def restart() -> None:
            if not driver.alive:
                outcome.ended += 1
                say("the driver ended by itself")
                driver.end()
                driver.start()

        for turn in range(kills):
            time.sleep(chance.uniform(1.0, 4.0))
            restart()
            if turn == kills // 3:
                trio.run(_publish, range(events // 2, events))
            if turn == 2 * kills // 3:
                bridge.rename(1)
                outcome.moves.append("member of shard 1 renamed")
                say(outcome.moves[-1])
            if turn % 2:
                bridge.kill(chance.choice(sorted(bridge.members)))
                outcome.members += 1
                say("member killed")
            else:
                driver.end()
                outcome.drivers += 1
                driver.start()
                say("driver killed")
        deadline = time.monotonic() + _DRY
        while len(counts := trio.run(_count_out)) < events and time.monotonic() < deadline:
            say(f"{len(counts)} of {events} are out")
            restart()
            time.sleep(_LOOK)
        outcome.lost = events - len(counts)
        outcome.doubled = sum(1 for times in counts.values() if times > 1)
    outcome.seconds = time.monotonic() - began
    return outcome
