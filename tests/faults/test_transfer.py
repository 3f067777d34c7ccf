"""Ten gibibytes through a bad network between two machines: packets are lost, the link flaps, connections are reset."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.streams.cable import why_not

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_not()), reason=why_not())]

_ROOT = Path(__file__).resolve().parents[2]
_HOURS = 3 * 3600.0


def test_ten_gibibytes_arrive_as_they_were_sent() -> None:
    command = [sys.executable, "-m", "benchmarks.streams", "transfer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_HOURS, check=False, cwd=_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^\| 10,240 MiB \| equal \| ([\d,]+) of [\d,]+ \| (\d+) \| (\d+) \|", done.stdout, re.MULTILINE)
    assert found, done.stdout
    lost, flaps, resets = (int(number.replace(",", "")) for number in found.groups())
    # The faults come by what has passed, so that their number does not depend on how fast that was.
    assert lost > 5000
    assert flaps >= 100
    assert resets >= 100
    opener, member = map(int, re.findall(r"(\d+), (\d+) MiB \|$", done.stdout, re.MULTILINE)[0])
    assert max(opener, member) < 64 + 64, "a node and one tunnel take less, whatever passes through"
