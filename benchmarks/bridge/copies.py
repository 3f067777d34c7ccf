"""Copies of a bridge's log, in turns.

Under load the primary is killed and its directory taken away, its copy is promoted, the former primary comes
back and must be refused, and a new copy follows: every other time it is the former primary, which has events that
nobody confirmed.  One log goes through all turns, and one publisher lives through them.  In every fifth turn the copy
is killed while it is promoted, too.  At the end each number that was confirmed must be in the log once, and with
``--spark`` once in the output of a query that has run all the time.  With ``--tier`` the log goes to a directory, a
segment each second, and nearly nothing stays on the disks.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, final

import trio

from benchmarks.bridge.kills import LogReader
from tests.support.copied_bridges import PROMOTE, promote_copy, wait_in_step
from tests.support.processes import Child, bridge_child, copy_child, open_realm
from tests.support.spark_cluster import LIGHT

_REFUSED: Final = "was promoted elsewhere"
_PATIENCE: Final = 120.0
_DRY: Final = 300.0


@final
class Outcome:
    """Result of the turns."""

    def __init__(self) -> None:
        self.turns = self.killed_promotions = self.refused = self.rejoined = self.drivers = 0
        self.seconds = 0.0
        self.away: list[float] = []
        """Seconds from each kill until an event was confirmed that was published behind it."""
        self.acknowledged = self.stored = 0
        self.lost: list[int] = []
        self.doubled: list[int] = []
        self.passed_over: list[int] = []
        self.wrong: list[str] = []

    @property
    def good(self) -> bool:
        """True if nothing is lost, doubled or passed over, and every former primary was refused."""
        return not (self.lost or self.doubled or self.passed_over or self.wrong) and self.refused == self.turns

    def __str__(self) -> str:
        drivers = f"; Spark's driver was started again {self.drivers} times" if self.drivers else ""
        return (
            f"{self.turns} primaries killed and their directories taken away in {self.seconds:.0f} s, "
            f"{self.killed_promotions} copies killed while promoted; {self.refused} former primaries refused, "
            f"{self.rejoined} of them then copies{drivers}\n"
            f"{self.acknowledged} events acknowledged: {len(self.lost)} lost, {len(self.doubled)} doubled; "
            f"{self.stored - self.acknowledged} more are stored, {len(self.passed_over)} not in Spark's output\n"
            f"from kill to the next confirmation {statistics.median(self.away):.1f} s in the median, "
            f"{max(self.away):.1f} s at most" + "".join(f"\n{line}" for line in self.wrong[:10])
        )


@final
class _Scene:
    """The processes of a run."""

    def __init__(self, directory: Path, rate: float, *, spark: bool, tier: bool) -> None:
        self.directory = directory
        self.number = 0
        to_tier = ("--tier", str(directory / "tier"), "--tier-minutes", "0.02", "--keep-mib", "0.01")
        self.options = ("--min-copies", "1", *(to_tier if tier else ()))
        self.primary = bridge_child(directory, *self.options, data="log-0")
        self.copy = copy_child(directory, "log-1")
        self.data = ["log-0", "log-1"]
        command = (
            *(sys.executable, "-m", "benchmarks.bridge.kill_publisher"),
            *("0", str(directory / "0.confirmed"), str(rate)),
        )
        self.publisher = Child(command, ready="publishing", log=directory / "publisher.txt")
        settings = {"spark.driver.extraJavaOptions": LIGHT, "spark.driver.bindAddress": "127.0.0.1"}
        driver = (sys.executable, "-m", "benchmarks.bridge.kill_driver", "local[2]", str(directory))
        self.driver = (
            Child((*driver, json.dumps(settings)), ready="the query runs", log=directory / "driver.txt")
            if spark
            else None
        )

    def start(self) -> None:
        """Start everything."""
        self.primary.start()
        self.copy.launch()
        self.wait_in_step()
        self.publisher.start()
        if self.driver is not None:
            self.driver.start()

    def wait_in_step(self) -> None:
        """Wait until the copy takes part in confirmations."""
        trio.run(wait_in_step)

    def confirmed(self) -> int:
        """Return the number of events that were confirmed to the publisher."""
        path = self.directory / "0.confirmed"
        return int(path.read_bytes() or b"0") if path.exists() else 0

    def end(self) -> None:
        """End everything."""
        for child in (self.publisher, self.driver, self.primary, self.copy):
            if child is not None:
                child.end()


def run_turns(
    turns: int,
    *,
    seed: int = 0,
    rate: float = 1000.0,
    spark: bool = False,
    tier: bool = False,
    pause: float = 1.0,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Kill the primary so many times, and compare what was confirmed with what is there.

    Args:
        turns: how often.
        seed: of the times.
        rate: events per second.
        spark: whether a query reads and writes all the time.
        tier: whether the log goes to a tier.
        pause: mean seconds of load in each turn, beside what starting takes.
        say: called with a line about each turn.
    """
    chance = Random(seed)
    outcome = Outcome()
    with open_realm() as directory:
        scene = _Scene(directory, rate, spark=spark, tier=tier)
        try:
            scene.start()
            began = time.monotonic()
            for turn in range(turns):
                time.sleep(min(chance.expovariate(1 / pause), 4 * pause))
                _turn(scene, turn, chance, outcome)
                if scene.driver is not None and not scene.driver.alive:
                    outcome.drivers += 1
                    scene.driver.start()
                outcome.turns += 1
                say(f"{time.monotonic() - began:7.1f} s  turn {turn + 1}: {scene.confirmed()} confirmed")
            outcome.seconds = time.monotonic() - began
            _compare(scene, outcome)
        finally:
            scene.end()
    return outcome


def _turn(scene: _Scene, turn: int, chance: Random, outcome: Outcome) -> None:
    directory, (data, copied) = scene.directory, scene.data
    scene.primary.end(signal.SIGKILL)
    killed = time.monotonic()
    before = scene.confirmed()
    taken = directory / f"taken-{turn}"
    (directory / data).rename(taken)
    if turn % 5 == 4:
        # At any moment: before the copy has received it, between promise and promotion, or after.
        promotion = subprocess.Popen(PROMOTE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.5, 2.5))
        scene.copy.end(signal.SIGKILL)
        promotion.wait(timeout=_PATIENCE)
        scene.copy.launch()
        outcome.killed_promotions += 1
    promote_copy(scene.copy)
    # Now the former primary comes back, as it was.
    former = bridge_child(directory, *scene.options, data=taken.name)
    former.launch()
    said = former.wait_end()
    if _REFUSED in said:
        outcome.refused += 1
    else:
        outcome.wrong.append(f"turn {turn}: the former primary was not refused, it said: {said[-500:]}")
    scene.number += 1
    following = f"log-{scene.number + 1}"
    if turn % 2:
        taken.rename(directory / following)
        outcome.rejoined += 1
    else:
        shutil.rmtree(taken)
    scene.primary, scene.copy = scene.copy, copy_child(directory, following)
    scene.data = [copied, following]
    scene.copy.launch()
    deadline = time.monotonic() + _PATIENCE
    while scene.confirmed() <= before and time.monotonic() < deadline:
        time.sleep(0.02)
    outcome.away.append(time.monotonic() - killed)
    scene.wait_in_step()


def _compare(scene: _Scene, outcome: Outcome) -> None:
    scene.publisher.end(signal.SIGTERM)
    reader = LogReader()
    deadline = time.monotonic() + _DRY
    while True:
        if scene.driver is not None and not scene.driver.alive:
            outcome.drivers += 1
            scene.driver.start()
        trio.run(reader.read_on)
        if scene.driver is None or not reader.outstanding or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    came, went = reader.counts["in"], reader.counts["out"]
    outcome.acknowledged = scene.confirmed()
    outcome.stored = len(came)
    final = came if scene.driver is None else went
    outcome.lost = [number for number in range(outcome.acknowledged) if number not in final]
    outcome.doubled = sorted({number for counts in (came, went) for number, times in counts.items() if times > 1})
    outcome.passed_over = [] if scene.driver is None else sorted(came.keys() - went.keys())
