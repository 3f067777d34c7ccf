"""The books of real processes: all patterns, while members and gateways are stopped, killed and cut off."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults]

_ROOT = Path(__file__).resolve().parents[2]
_MESSAGES = 30_000


def test_every_message_is_in_one_column_whatever_breaks() -> None:
    command = [sys.executable, "-m", "tests.support.programs.books_faults", str(_MESSAGES), "60", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, cwd=_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every message is in one column" in done.stdout
    sent = dict(re.findall(r"^([a-z]+) +([\d,]+) ", done.stdout, re.MULTILINE))
    assert {pattern: int(count.replace(",", "")) >= _MESSAGES for pattern, count in sent.items()} == dict.fromkeys(
        ("broadcast", "event", "request", "survey", "tunnel"), True
    )
    assert re.search(r"\d+ kill\b", done.stdout), "no member was killed"
