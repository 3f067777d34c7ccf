"""Cases and results of the benchmark: a case is one kind of work with its size, and the figures that it yields.

A result keeps the rounds, their median, and a description of the machine that they depend on.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, final

Kind = Literal[
    "stream",
    "request",
    "paced",
    "open",
    "tunnel",
    "broadcast",
    "handshake",
    "start",
    "links",
    "subscriptions",
    "members",
]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a case, as systems report it, and how people read it."""

    name: str
    unit: str
    better: Literal["higher", "lower"]


RATE = Figure(name="rate", unit="msg/s", better="higher")
REQUESTS = Figure(name="rate", unit="req/s", better="higher")
THROUGHPUT = Figure(name="throughput", unit="MiB/s", better="higher")
HANDSHAKES = Figure(name="rate", unit="handshakes/s", better="higher")
JOIN = Figure(name="join", unit="ms", better="lower")
START = Figure(name="start", unit="ms", better="lower")
MEMORY = Figure(name="memory", unit="KiB", better="lower")
MEMBERS = (10, 100, 1000)
"""Members that there are when requests are measured as they grow."""

AMONG = tuple(Figure(name=f"rate-{members}", unit="req/s", better="higher") for members in MEMBERS)
KEPT = Figure(name="kept", unit="ratio", better="higher")
"""The rate with the most members, divided by that with the fewest."""
KEPT_BY_ASKER = Figure(name="kept-by-asker", unit="ratio", better="higher")
"""The same ratio, of requests for each second of processor time of the asker's own tasks, without the members'."""

P50 = Figure(name="p50", unit="us", better="lower")
P99 = Figure(name="p99", unit="us", better="lower")
P999 = Figure(name="p99.9", unit="us", better="lower")
P9999 = Figure(name="p99.99", unit="us", better="lower")
P99999 = Figure(name="p99.999", unit="us", better="lower")
"""The slowest of all, if there were fewer than 100,000."""

SENT = Figure(name="sent", unit="msg/s", better="higher")
"""The source's own rate, while ``rate`` is what sinks received: of several, their sum."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of work.

    Attributes:
        name: the stable name in the JSON.
        title: the name in the table.
        kind: ``stream``: one source sends as fast as it may, every sink gets every message;
            ``request``: one source asks, one sink answers with the same payload;
            ``paced``: one source sends at a fixed rate, the sink notes how old each message is;
            ``open``: one source asks by a schedule, and a reply is as late as the time at which its request was due;
            ``tunnel``, ``broadcast``: as ``stream``, through whatever carries bulk data, or reaches everybody, best;
            ``handshake``: one source connects again and again, and both ends prove who they are;
            ``start``, ``links``, ``subscriptions``: what a node costs that does nothing;
            ``members``: requests of one node to ever more members, all in one process.
        size: bytes of each payload.
        sinks: receiving processes.
        concurrency: requests that are in progress at any time.
        pace: messages per second.
        figures: figures that are read from it, in the order of the table.
        quick: True if ``--quick`` measures it.
    """

    name: str
    title: str
    kind: Kind
    size: int
    sinks: int = 1
    concurrency: int = 1
    pace: int = 0
    figures: tuple[Figure, ...]
    quick: bool = False

    @property
    def reported_by_source(self) -> bool:
        """True if the source reports the figures; else the sinks do."""
        return self.kind in ("request", "open", "handshake", "start", "subscriptions", "members")


CASES: tuple[Case, ...] = (
    Case(
        name="publish-100",
        title="one-way, 100 B",
        kind="stream",
        size=100,
        figures=(RATE,),
        quick=True,
    ),
    Case(name="publish-1k", title="one-way, 1 KiB", kind="stream", size=1024, figures=(RATE,)),
    Case(name="publish-64k", title="one-way, 64 KiB", kind="stream", size=65536, figures=(RATE,)),
    Case(name="fanout-4", title="one-way to 4, 100 B, sum", kind="stream", size=100, sinks=4, figures=(RATE,)),
    Case(
        name="request-1",
        title="request 128 B, one at a time",
        kind="request",
        size=128,
        figures=(P50, P99),
        quick=True,
    ),
    Case(
        name="request-64",
        title="request 128 B, 64 concurrent",
        kind="request",
        size=128,
        concurrency=64,
        figures=(REQUESTS,),
        quick=True,
    ),
    Case(
        name="request-512",
        title="request 128 B, 512 concurrent",
        kind="request",
        size=128,
        concurrency=512,
        figures=(REQUESTS,),
    ),
    Case(name="tunnel-64k", title="bulk in 64 KiB pieces", kind="tunnel", size=65536, figures=(THROUGHPUT,)),
    Case(name="broadcast-4", title="broadcast to 4, 100 B, sum", kind="broadcast", size=100, sinks=4, figures=(RATE,)),
    Case(
        name="paced-1000",
        title="age on delivery, 1,000 msg/s of 100 B",
        kind="paced",
        size=100,
        pace=1000,
        figures=(P50, P99, P999),
    ),
    Case(
        name="paced-10000",
        title="age on delivery, 10,000 msg/s of 100 B",
        kind="paced",
        size=100,
        pace=10000,
        figures=(P50, P99, P999),
    ),
    Case(
        name="handshake",
        title="connections with mutual handshakes, 8 at a time",
        kind="handshake",
        size=100,
        concurrency=8,
        figures=(HANDSHAKES,),
    ),
    Case(name="start", title="start of a node: to join, with imports", kind="start", size=100, figures=(JOIN, START)),
    Case(name="idle-link", title="memory of an idle link", kind="links", size=100, figures=(MEMORY,)),
    Case(
        name="subscription",
        title="memory of a subscription",
        kind="subscriptions",
        size=100,
        sinks=0,
        figures=(MEMORY,),
    ),
    Case(
        name="members-1",
        title="request 128 B, one at a time, to 10, 100 and 1,000 members in memory",
        kind="members",
        size=128,
        sinks=0,
        figures=(*AMONG, KEPT, KEPT_BY_ASKER),
    ),
    Case(
        name="members-64",
        title="request 128 B, 64 concurrent, to 10, 100 and 1,000 members in memory",
        kind="members",
        size=128,
        sinks=0,
        concurrency=64,
        figures=(*AMONG, KEPT, KEPT_BY_ASKER),
    ),
)


OPEN = Case(
    name="open",
    title="request 128 B, 1,000 a second by a schedule",
    kind="open",
    size=128,
    pace=1000,
    figures=(P50, P99, P999, P9999, P99999),
)
"""Requests of an open loop: a member that stands still delays all that are due meanwhile, and each of them counts."""


def at_pace(case: Case, pace: int) -> Case:
    """Return a case of an open loop at so many messages a second."""
    return dataclasses.replace(case, pace=pace, title=case.title.replace(f"{case.pace:,} ", f"{pace:,} "))


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one system, over all rounds."""

    case: str
    system: str
    unit: str
    better: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def as_json(self) -> dict[str, object]:
        """Return the row as it stands in the JSON."""
        return {
            "case": self.case,
            "system": self.system,
            "unit": self.unit,
            "better": self.better,
            "median": self.median,
            "min": min(self.rounds),
            "max": max(self.rounds),
            "rounds": list(self.rounds),
        }


def row_of(case: str, figure: Figure, system: str, rounds: Iterable[float]) -> Row:
    """Return the row of one figure."""
    name = f"{case}/{figure.name}"
    return Row(case=name, system=system, unit=figure.unit, better=figure.better, rounds=tuple(rounds))


def spread(row: Row) -> str:
    """Return the median with the least and the greatest figure, if there were several."""
    if len(row.rounds) == 1:
        return _number(row.median)
    return f"{_number(row.median)} ({_number(min(row.rounds))} - {_number(max(row.rounds))})"


def _number(value: float) -> str:
    """Return ``value`` with three significant digits, and commas."""
    if value >= 1000:
        magnitude = 10 ** (len(str(int(value))) - 3)
        return f"{round(value / magnitude) * magnitude:,}"
    return f"{value:.3g}"


def machine() -> dict[str, object]:
    """Return what the figures depend on most."""
    cpu = next(
        (line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), platform.machine()
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
