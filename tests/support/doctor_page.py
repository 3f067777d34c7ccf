"""docs/reference/doctor.md as tests read it, and what ``iris doctor`` has to say of each set-up that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "doctor.md").read_text()
TABLE = (Path(__file__).parent / "doctor_findings.txt").read_text()


class Row(NamedTuple):
    """A row of the table of broken set-ups."""

    symptom: str
    level: str
    code: str
    cause: str
    remedy: str


ROWS = [
    Row(symptom, level, code, cause, remedy)
    for symptom, level, code, cause, remedy in re.findall(
        r"^\| ([^|]+) \| (warning|problem) \| `([a-z-]+)` \| ([^|]+) \| `([^|]+)` \|$", TABLE, re.MULTILINE
    )
]


def fits(shown: str, found: str) -> bool:
    """Return whether a text is what the table shows, in which … stands for anything, and FILE for the credential."""
    pattern = ".*".join(map(re.escape, shown.split("…")))
    return re.fullmatch(pattern.replace("FILE", r"\S+"), found) is not None
