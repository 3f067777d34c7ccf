"""``python -m benchmarks.bridge.growth``: the distance of a realm of many bridges from its limits, the first one first.

What one thing costs is measured here (gossip in the simulation of membership; handshakes; the index of a log) or taken
from measurements of its own, which are named.  The rest is arithmetic: what a realm of that size does each second, over
what one process can do.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from benchmarks.bridge.rates import fill_index
from benchmarks.membership import scenarios
from benchmarks.security import measure_handshakes
from iris.spark_bridge.log import open_store

KB: Final = 1_000
EVENT: Final = 1 * KB
DAY: Final = 86_400

STORED: Final = 188_000
"""Confirmed events of 1 KB that one bridge member takes in a second: ``python -m benchmarks.bridge rates``."""

READ: Final = 3.7e-6
"""Seconds of a bridge's processor for each event that is read by session: docs/explanation/measured/spark.md."""

LINK: Final = 32 * 1024
"""Memory of the link of a reader at work, in bytes: ``python -m benchmarks.membership.clients``."""

AROUND: Final = 1.75e-3
"""Seconds of processor time for a handshake besides its cryptography: tasks and frames; from the same measurement."""

RENEWED: Final = 120.0
"""Seconds after which a session is renewed: ``Config.session_lifetime``."""

DESCRIPTORS: Final = 2
"""Descriptors of each link; a process may have 1,024 unless the limit is raised (``ulimit -n``)."""

COPIED: Final = 110e6
"""Rate at which a lost disk is restored, in bytes per second: one Gbit/s."""

LOOKED: Final = 10.0
"""Seconds after which a query asks all members of a bridge for their shards."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Realm:
    """Size of a realm.

    Attributes:
        readers: Spark workers; each reads from every bridge.
        queries: queries that they work for, each of which reads everything.
    """

    bridges: int
    publishers: int
    readers: int
    queries: int
    rate: float

    @property
    def members(self) -> int:
        """Nodes that gossip."""
        return self.bridges + self.publishers


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """Unit costs on this machine.

    Attributes:
        gossip: messages of each member in a second.
        death: seconds until all know that a process was killed.
        handshake: seconds of processor time at one end.
        index: bytes for each event.
        opening: seconds to open the log of a day.
    """

    gossip: float
    death: float
    handshake: float
    index: float
    opening: float


def measure(realm: Realm, events: int, *, seed: int = 0, handshakes: int = 200) -> UnitCosts:
    """Measure what each thing costs on this machine."""
    steady = scenarios.steady(realm.members, seed)
    killed = scenarios.killed(realm.members, seed)
    both_ends = next(iter(measure_handshakes(handshakes).values())) / 1e6
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        directory = Path(name)
        store = open_store(directory, shards=[0], entropy=os.urandom)
        epoch = store.shards()[0].epoch
        store.close()
        fill_index(directory, epoch, events)
        used = sum(file.stat().st_blocks * 512 for file in (directory / "index").rglob("*") if file.is_file())
        logging.disable(logging.ERROR)  # the segments have holes in the place of events, which it says
        try:
            began = time.perf_counter()
            open_store(directory, shards=[0], entropy=os.urandom).close()
            opening = time.perf_counter() - began
        finally:
            logging.disable(logging.NOTSET)
    return UnitCosts(
        gossip=steady.messages,
        death=killed.dead_everywhere,
        handshake=both_ends / 2,
        index=used / events,
        opening=opening,
    )


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One thing that a realm uses: how much of it at one bridge, and how much there is."""

    what: str
    used: float
    most: float
    unit: str

    @property
    def share(self) -> float:
        """Share of the limit that is used."""
        return self.used / self.most


def loads(realm: Realm, costs: UnitCosts) -> Iterator[Load]:
    """Yield what one bridge of a realm uses of each thing."""
    each = realm.rate / realm.bridges
    links = realm.members - 1 + realm.readers
    yield Load(what="files open, as systems allow them", used=DESCRIPTORS * links, most=1024, unit="")
    yield Load(what="files open, `LimitNOFILE=65536`", used=DESCRIPTORS * links, most=65536, unit="")
    yield Load(what="clients of one key", used=realm.readers, most=2000, unit="")
    yield Load(what="memory for links", used=links * LINK / 1e6, most=1000, unit="MB")
    yield Load(what="events stored", used=each, most=STORED, unit="/s")
    yield Load(what="processor for events read by session", used=realm.queries * each * READ, most=1, unit="cores")
    yield Load(
        what="processor for sessions renewed", used=links / RENEWED * (costs.handshake + AROUND), most=1, unit="cores"
    )
    yield Load(what="processor for gossip, 0.1 ms a message", used=costs.gossip * 1e-4, most=1, unit="cores")
    asked = realm.queries * (1 + 1 / LOOKED)
    yield Load(what="questions of queries for offsets, 0.3 ms each", used=asked * 3e-4, most=1, unit="cores")
    yield Load(
        what="network, events in and read", used=(1 + realm.queries) * each * EVENT / 1e6, most=1250, unit="MB/s"
    )
    yield Load(what="disk for a day", used=each * DAY * EVENT / 1e12, most=4, unit="TB")
    yield Load(what="index of that day", used=each * DAY * costs.index / 1e9, most=64, unit="GB")


def main() -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bridges", type=int, default=100)
    parser.add_argument("--publishers", type=int, default=50)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--rate", type=float, default=1e6, help="events per second, of all publishers")
    parser.add_argument("--events", type=int, default=10_000_000, help="events of the log that is opened")
    asked = parser.parse_args()
    realm = Realm(
        bridges=asked.bridges,
        publishers=asked.publishers,
        readers=asked.readers,
        queries=asked.queries,
        rate=asked.rate,
    )
    costs = measure(realm, asked.events)
    members = realm.members
    print(f"{realm}\n")
    print(f"links between members: {members * (members - 1) // 2:,}; of readers: {realm.readers * realm.bridges:,}")
    as_members = members + realm.readers
    print(f"links if readers were members: {as_members * (as_members - 1) // 2:,}")
    print(f"gossip: {costs.gossip:.2f} messages/s of each member; all know of a killed one in {costs.death:.2f} s")
    print(f"a handshake: {costs.handshake * 1e3:.2f} ms at each end")
    print(f"index: {costs.index:.3f} bytes for an event; a log of {asked.events:,} opens in {costs.opening:.3f} s")
    lost = realm.rate / realm.bridges * DAY * EVENT
    print(f"a lost disk with a day's events: {lost / 1e9:,.0f} GB, back in {lost / COPIED / 3600:.1f} h\n")
    print("| at one bridge | used | of | share |\n|---|---|---|---|")
    for load in sorted(loads(realm, costs), key=lambda load: -load.share):
        print(f"| {load.what} | {load.used:,.3g} {load.unit} | {load.most:,.4g} {load.unit} | {load.share:.1%} |")


if __name__ == "__main__":
    main()
