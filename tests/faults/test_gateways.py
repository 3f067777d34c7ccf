"""Gateways that are killed under load, in processes and on the real clock."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.faults]

_ROOT = Path(__file__).resolve().parents[2]


def test_with_one_of_two_gateways_killed_nothing_is_lost_and_nobody_waits_for_a_second() -> None:
    command = [sys.executable, "-m", "benchmarks.federation", "--only", "failover", "--kills", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, cwd=_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.search(r"^4 kills .* 0 of (\d+) idempotent requests lost$", done.stdout, re.MULTILINE)
    assert shown is not None, done.stdout
    assert int(shown[1]) > 100
