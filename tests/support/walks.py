"""docs/explanation/architecture.md follows messages: what it says of a walk, and which functions were called."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(iris/[\w/.]+)` \| `([\w.]+)` \|", re.MULTILINE)
Step = tuple[str, str]


def documented(heading: str) -> list[Step]:
    """Return the files and functions that a section lists."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    section = text[text.index(f"## {heading}\n") :].split("\n## ")[0]
    return [(file, function) for file, function in ROW.findall(section)]


class Calls:
    """Notes each function of Iris when it is first called."""

    def __init__(self) -> None:
        self._noted: dict[Step, None] = {}

    def __iter__(self) -> Iterator[Step]:
        return iter(self._noted)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT / "iris"):
            self._noted.setdefault((str(file.relative_to(ROOT)), frame.f_code.co_qualname))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is called in a block."""
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)


def check(steps: list[Step], calls: Calls) -> None:
    """Check that the functions that are documented were called, in that order."""
    assert len(steps) >= 8
    called = list(calls)
    assert [step for step in steps if step not in called] == []
    assert steps == sorted(steps, key=called.index)
