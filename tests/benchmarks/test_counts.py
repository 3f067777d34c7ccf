"""The bytecodes that one message takes: other programs do not change them, so a tenth more is seen on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.counts import Counter

ROOT: Final = Path(__file__).resolve().parents[2]

MORE: Final = 1.05
"""What a count may grow to without a word: the same code varies by a twentieth at most, one message by nothing."""

LESS: Final = 0.8
"""What a count may fall to before its limit has to follow: else somebody could add again what was taken out."""

LIMITS: Final[dict[str, dict[str, tuple[int, int]]]] = {
    "3.11": {
        "request": (6738, 177),
        "event": (4563, 124),
        "event, 64 at a time": (200, 6),
        "tunnel message and back": (10317, 270),
        "asyncio: request": (5999, 198),
        "asyncio: event": (4998, 146),
        "asyncio: event, 64 at a time": (288, 9),
        "asyncio: tunnel message and back": (10320, 308),
    },
}
"""By version of Python, whose compiler decides: bytecodes and calls of C functions of one message, at both ends.

They are what ``python -m benchmarks.counts`` prints.  Whoever makes one larger says in the commit what it buys.
"""


def add(one: int, other: int) -> int:
    return len([one, other]) + one + other


def test_only_what_is_called_is_counted_and_the_same_each_time() -> None:
    counters = [Counter() for _ in range(4)]
    for counter in counters:
        with counter:
            add(1, 2)
    add(1, 2)
    ((bytecodes, calls),) = {(counter.bytecodes, counter.calls) for counter in counters[1:]}
    assert 8 <= bytecodes <= 30
    assert calls <= 4, "len(), and what ends the counting"


@pytest.mark.long
def test_a_message_takes_no_more_bytecodes_than_it_did() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in LIMITS:
        pytest.skip(f"no limits for Python {version}: add what python -m benchmarks.counts prints")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.counts", "--json"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    counted: dict[str, tuple[float, float]] = json.loads(done.stdout)
    assert counted.keys() == LIMITS[version].keys()
    changed: list[str] = []
    for name, limits in LIMITS[version].items():
        for what, count, limit in zip(("bytecodes", "calls of C functions"), counted[name], limits, strict=True):
            if not LESS * limit <= count <= MORE * limit:
                changed.append(f"{name}: {count:.0f} {what}, and {limit} before")
    assert changed == [], "look where they come from; the limits are what python -m benchmarks.counts prints"
