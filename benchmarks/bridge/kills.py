"""Kills: publisher, bridge, driver and executors die at random, and what was confirmed is in Spark's output once.

The way of an event: publisher -> bridge -> Spark on a standalone cluster -> staged sink -> bridge.  When the kills are
over, everything is let run dry, and the log is read: each number on ``in`` must stand once on ``out``, and every number
that was confirmed to the publishers must be among them.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, final

import trio

import iris
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.topics.filter import TopicFilter
from tests.support.processes import Child, bridge_child, open_realm
from tests.support.spark_cluster import SparkCluster, open_cluster

VICTIMS: Final = ("publisher", "bridge", "driver", "executor")
_COSTLY: Final = VICTIMS[2:]
"""To start them again takes a Java machine and some 10 s of processor time."""

_LIVES: Final = 10_000_000
"""Numbers that one life of the publisher has for itself."""

_DRY: Final = 600.0
_LOOK: Final = 0.5


@final
class Outcome:
    """Result of a run."""

    def __init__(self) -> None:
        self.kills: collections.Counter[str] = collections.Counter()
        self.ended_alone: collections.Counter[str] = collections.Counter()
        """Processes that ended without being killed, and were started again."""
        self.seconds = 0.0
        self.acknowledged = 0
        self.stored = 0
        self.lost: list[int] = []
        """Events that were acknowledged, and are not in Spark's output."""
        self.passed_over: list[int] = []
        """Events in the log and not in Spark's output, acknowledged or not."""
        self.doubled: list[int] = []

    @property
    def good(self) -> bool:
        """True if nothing is lost and nothing doubled."""
        return not (self.lost or self.passed_over or self.doubled)

    def __str__(self) -> str:
        kills = ", ".join(f"{victim} {self.kills[victim]}" for victim in VICTIMS)
        alone = ", ".join(f"{victim} {count}" for victim, count in self.ended_alone.items()) or "none"
        return (
            f"{self.kills.total()} kills in {self.seconds:.0f} s ({kills}); ended by themselves: {alone}\n"
            f"{self.acknowledged} events acknowledged: {self.acknowledged - len(self.lost)} of them in Spark's output, "
            f"{len(self.lost)} lost, {len(self.doubled)} doubled\n"
            f"{self.stored - self.acknowledged} more are stored, whose publisher died before it heard so: "
            f"{len(self.passed_over)} of them are not in the output"
        )


@final
class Scene:
    """Everything that runs beside the cluster.  Bridge and publisher start at once, while the cluster does.

    Args:
        directory: of this run.
        rate: events per second.
    """

    def __init__(self, directory: Path, rate: float) -> None:
        self.directory = directory
        self._cluster: SparkCluster
        self._rate = rate
        self._lives = 0
        self._closed = False
        self.bridge = bridge_child(directory)
        self.publisher = self._next_publisher()
        self.driver: Child | None = None
        self.bridge.launch()
        self.publisher.launch()

    def start(self, cluster: SparkCluster) -> None:
        """Start the driver with further settings, and wait until everything runs."""
        self._cluster = cluster
        driver = (
            *(sys.executable, "-m", "benchmarks.bridge.kill_driver", cluster.url, str(self.directory)),
            json.dumps(cluster.settings),
        )
        self.driver = Child(driver, ready="the query runs", log=self.directory / "driver.txt")
        self.driver.launch()
        for child in (self.bridge, self.publisher, self.driver):
            child.wait_ready()

    def _next_publisher(self) -> Child:
        first = self._lives * _LIVES
        self._lives += 1
        command = (
            *(sys.executable, "-m", "benchmarks.bridge.kill_publisher"),
            *(str(first), str(self.directory / f"{first}.confirmed"), str(self._rate)),
        )
        return Child(command, ready="publishing", log=self.directory / "publisher.txt")

    def kill(self, victim: str, chance: Random) -> bool:
        """Kill one; return whether there was one to kill.  What was killed is started again without waiting for it."""
        if victim == "executor":
            running = self._cluster.executors()
            if not running:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(running), signal.SIGKILL)
            return True
        child: Child = getattr(self, victim)
        if not child.alive:
            return False
        child.end()
        self._begin(victim)
        return True

    def wait_running(self, victim: str) -> None:
        """Wait until a publisher or a bridge is at work: to kill one that is starting shows little."""
        if victim not in _COSTLY:
            with contextlib.suppress(RuntimeError):  # it has ended by itself, and is started again at the next turn
                getattr(self, victim).wait_ready()

    def _begin(self, victim: str) -> None:
        if victim == "publisher":
            self.publisher = self._next_publisher()
        getattr(self, victim).launch()

    def revive(self, outcome: Outcome) -> None:
        """Start again what has ended by itself."""
        for victim in ("publisher", "bridge", "driver"):
            child: Child = getattr(self, victim)
            if not (child.alive or (victim == "publisher" and self._closed)):
                outcome.ended_alone[victim] += 1
                child.end()
                self._begin(victim)

    def acknowledged(self) -> list[int]:
        """Return every number that was confirmed to a publisher."""
        numbers: list[int] = []
        for path in self.directory.glob("*.confirmed"):
            first = int(path.stem)
            numbers += range(first, first + int(path.read_bytes() or b"0"))
        return numbers

    def end_publishing(self) -> None:
        """Let the publisher wait for its confirmations and end."""
        self._closed = True
        self.publisher.wait_ready()
        self.publisher.end(signal.SIGTERM)

    def end(self) -> None:
        """End everything."""
        for child in (self.publisher, self.driver, self.bridge):
            if child is not None:
                child.end()


@final
class LogReader:
    """Reads the log as it grows: how often each number stands on each topic."""

    def __init__(self) -> None:
        self.counts: dict[str, collections.Counter[int]] = {"in": collections.Counter(), "out": collections.Counter()}
        self._at = 0

    async def read_on(self) -> None:
        """Read what is new."""
        async with iris.open_node("observer") as node:
            await node.wait_for("bridge", timeout=60)
            client = BridgeClient(node, "bridge", patience=60)
            (shard,) = await client.shards()
            async for chunks in client.read(shard.address, shard.id, self._at, shard.next):
                for chunk in chunks:
                    batch = decode_events(chunk.data).slice(max(0, self._at - chunk.first))
                    for topic, counts in self.counts.items():
                        found = TopicFilter((topic,)).keep(batch).column("value").to_pylist()
                        counts.update(map(int, found))
            self._at = shard.next

    @property
    def outstanding(self) -> int:
        """Number of events on ``in`` that have not come out yet."""
        return len(self.counts["in"].keys() - self.counts["out"].keys())


def choose_victims(count: int, seed: int, costly: int | None = None) -> list[str]:
    """Return who is to be killed, one after the other.

    Args:
        count: kills.
        seed: of the order.
        costly: how many of them are drivers, and how many executors; the others are publishers and bridges by halves.
            By default each kind gets its turn within every four kills.
    """
    if costly is None:
        turns = -(-count // len(VICTIMS))
        return [victim for turn in range(turns) for victim in Random(f"{seed} {turn}").sample(VICTIMS, 4)][:count]
    cheap = VICTIMS[:2] * count
    chosen = [*_COSTLY * costly, *cheap[: count - 2 * costly]]
    return Random(seed).sample(chosen, count)


def run_kills(
    victims: Sequence[str],
    *,
    seed: int = 0,
    pause: float = 4.0,
    rate: float = 1000.0,
    executors: int = 2,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Kill processes, one after the other, let everything run dry, and compare.

    Args:
        victims: what kinds, in this order.
        seed: of the times, and of which executor.
        pause: mean seconds between two kills.
        rate: events per second.
        executors: as many, each on a worker of its own; without any the driver does all by itself.
        say: called with a line about each kill.
    """
    chance = Random(seed)
    outcome = Outcome()
    with open_realm() as directory, contextlib.ExitStack() as stack:
        scene = Scene(directory, rate)
        stack.callback(scene.end)
        with open_cluster(directory, workers=executors) as cluster:
            scene.start(cluster)
            began = time.monotonic()
            while (turn := outcome.kills.total()) < len(victims):
                victim = victims[turn]
                time.sleep(min(chance.expovariate(1 / pause), 5 * pause))
                scene.revive(outcome)
                scene.wait_running(victim)
                if scene.kill(victim, chance):
                    outcome.kills[victim] += 1
                    if say is not None:
                        say(f"{time.monotonic() - began:7.1f} s  {outcome.kills.total():4}  {victim} killed")
            outcome.seconds = time.monotonic() - began
            _let_run_dry(scene, outcome)
    return outcome


def _let_run_dry(scene: Scene, outcome: Outcome) -> None:
    scene.revive(outcome)
    scene.end_publishing()
    reader = LogReader()
    deadline = time.monotonic() + _DRY
    while True:
        scene.revive(outcome)
        trio.run(reader.read_on)
        if not reader.outstanding or time.monotonic() > deadline:
            break
        time.sleep(_LOOK)
    came, went = reader.counts["in"], reader.counts["out"]
    acknowledged = scene.acknowledged()
    outcome.acknowledged = len(acknowledged)
    outcome.stored = len(came)
    outcome.lost = sorted(number for number in acknowledged if number not in went)
    outcome.passed_over = sorted(came.keys() - went.keys())
    outcome.doubled = sorted({number for counts in (came, went) for number, times in counts.items() if times > 1})
