"""What is kept of a measurement: rounds, their median, and the machine that they depend on."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import final

from iris._bench_case import Figure


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
