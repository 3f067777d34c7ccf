"""The books of real processes: all patterns, while members and gateways are stopped, killed and cut off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults]

_ROOT = Path(__file__).resolve().parents[2]


def test_every_message_is_in_one_column_whatever_breaks() -> None:
    command = [sys.executable, "-m", "benchmarks.books", "faults", "--messages", "20000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, cwd=_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every message is in one column" in done.stdout
