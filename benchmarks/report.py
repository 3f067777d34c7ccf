"""Reports of a run: JSON for programs, a table in Markdown for people.

The JSON is one object::

    schema    1; grows when the meaning of a key changes
    machine   {cpu, cores, memory_gib, system, python}
    run       {date, seconds, rounds, quick, busy, load, others, others_most}   seconds of a trial; load of the minute
              before; what others took of the processors, 0 to 1, in the run and in the worst trial
    systems   [{system, version, server, encrypted, lacks}]
    results   [{case, system, unit, better, median, min, max, rounds: [one figure per round]}]   case: request-1/p50;
              better: higher or lower
    ratios    [{case, peer, unit, better, ratio}]       median of iris / median of the peer
    processor [{case, system, source, sinks, server}]   us of processor time for each message; server: null if none
    lost      [{case, system, messages}]                in all rounds together; not listed: none
    absent    [{system, case or null, reason}]
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from benchmarks.system import System
from benchmarks.trial import PROCESSOR
from iris.bench.cases import Case, Figure, Row, machine, row_of

OURS = "iris"
OURS_IN_ASYNCIO = "iris.aio"


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Something that was not measured, and why."""

    system: str
    case: str | None
    reason: str


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How it was measured.

    Attributes:
        seconds: length of a trial.
        busy: whether it was measured in spite of what other programs took of the processors.
        load: load average of the last minute before it began.
    """

    date: str
    seconds: float
    rounds: int
    quick: bool = False
    busy: bool = False
    load: float = 0.0


@final
@dataclasses.dataclass(slots=True, kw_only=True)
class Report:
    """Everything that a run found, growing while it goes on.

    Attributes:
        others: by case, what other programs took of all processors, as a share, during each trial.
    """

    run: Run
    cases: Sequence[Case]
    systems: Sequence[System]
    figures: dict[tuple[str, str, str], list[float]] = dataclasses.field(
        default_factory=dict[tuple[str, str, str], list[float]]
    )
    absent: list[Absence] = dataclasses.field(default_factory=list[Absence])
    others: dict[str, list[float]] = dataclasses.field(default_factory=dict[str, list[float]])

    def others_during(self, *cases: str) -> tuple[float, float]:
        """Return what other programs took of all processors, as a share, in these cases: the mean, and at most."""
        shares = [share for case in cases for share in self.others.get(case, ())]
        return (statistics.fmean(shares), max(shares)) if shares else (0.0, 0.0)

    def add(self, case: Case, system: System, outcome: Mapping[str, float]) -> None:
        """Add the outcome of one trial: what the table shows, and what the plots show beyond it."""
        for name, value in outcome.items():
            self.figures.setdefault((case.name, name, system.name), []).append(value)

    def row(self, case: Case, figure: Figure, system: str) -> Row | None:
        """Return one figure of one system; None if it was not measured."""
        rounds = self.figures.get((case.name, figure.name, system))
        return row_of(case.name, figure, system, rounds) if rounds else None

    def rows(self) -> Iterable[Row]:
        """Every figure of every system, in the order of the table."""
        for case in self.cases:
            for figure in case.figures:
                for system in self.systems:
                    if (row := self.row(case, figure, system.name)) is not None:
                        yield row

    def processor(self, case: Case, system: str) -> tuple[float | None, ...]:
        """Return the microseconds of processor time that a message takes at source, sinks and server, as medians.

        None where it was not measured.
        """
        each = [self.figures.get((case.name, name, system)) for name in PROCESSOR]
        return tuple(statistics.median(rounds) if rounds else None for rounds in each)

    def losses(self) -> Iterable[tuple[Case, System, int]]:
        """Every system that lost messages in a case, and how many in all rounds together."""
        for case in self.cases:
            for system in self.systems:
                if lost := sum(self.figures.get((case.name, "lost", system.name), ())):
                    yield case, system, int(lost)

    def ratios(self) -> Iterable[tuple[Row, Row, float]]:
        """Every figure of Iris with the same figure of a peer, and the one divided by the other."""
        ours = {row.case: row for row in self.rows() if row.system == OURS}
        for row in self.rows():
            if row.system != OURS and row.case in ours and row.median:
                yield ours[row.case], row, ours[row.case].median / row.median

    def as_json(self) -> dict[str, Any]:
        """Return the whole report as it stands in the JSON."""
        others = self.others_during(*self.others)
        return {
            "schema": 1,
            "machine": machine(),
            "run": dataclasses.asdict(self.run) | dict(zip(("others", "others_most"), others, strict=True)),
            "systems": [
                {
                    "system": system.name,
                    "version": system.version(),
                    "server": system.server(),
                    "encrypted": system.encrypted,
                    "lacks": list(system.lacks),
                }
                for system in self.systems
            ],
            "results": [row.as_json() for row in self.rows()],
            "ratios": [
                {"case": peer.case, "peer": peer.system, "unit": peer.unit, "better": peer.better, "ratio": ratio}
                for _, peer, ratio in self.ratios()
            ],
            "processor": [
                {"case": case.name, "system": system.name}
                | dict(zip(("source", "sinks", "server"), self.processor(case, system.name), strict=True))
                for case in self.cases
                for system in self.systems
                if any(part is not None for part in self.processor(case, system.name))
            ],
            "lost": [{"case": case.name, "system": s.name, "messages": lost} for case, s, lost in self.losses()],
            "absent": [dataclasses.asdict(absence) for absence in self.absent],
        }

    def save(self, path: Path) -> None:
        """Write the JSON to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
