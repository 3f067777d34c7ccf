"""What the documents promise: links lead somewhere, examples are the code that runs, the reference is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_links_examples_and_reference_are_up_to_date() -> None:
    build = [sys.executable, "docs/build.py", "--check"]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
