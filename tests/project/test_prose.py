"""The spelling of the pages."""

from __future__ import annotations

import subprocess
import sys

from docs.pages import ROOT, pages


def test_codespell_finds_nothing() -> None:
    files = [str(page) for page in pages() if page.name != "CHANGELOG.md"]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *files], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
