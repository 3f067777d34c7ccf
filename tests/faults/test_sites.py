"""Two sites over a long cable between two machines: what tunnels and publishers reach, and a minute without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.streams.cable import why_not

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_not()), reason=why_not())]

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 900.0


def test_over_forty_milliseconds_a_tunnel_and_a_publisher_fill_the_link_and_a_long_cut_loses_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.streams", "sites"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False, cwd=_ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    shares = dict(re.findall(r"^\| one (tunnel|publisher)[^|]*\| [\d.]+ \| (\d+)% \|", done.stdout, re.MULTILINE))
    assert shares.keys() == {"tunnel", "publisher"}, done.stdout
    assert all(int(share) >= 80 for share in shares.values()), done.stdout
    assert "one publisher, 0 events missed" in done.stdout
    cut = re.search(r"^\| equal \| ([\d.]+) \|", done.stdout, re.MULTILINE)
    assert cut is not None, done.stdout
    assert float(cut[1]) >= 60
