"""The examples run as they are, each in a process and a realm of its own, and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PRINTED = {
    "request": "hello world\nno-name: whom shall I greet?\n",
    "pubsub": "".join(f"orders.created {{'id': {number}}} from shop, 0 missed\n" for number in range(3)),
    "federation": "hello from shop, answered in tokyo\n",
    "survey": "shown at gate: UA 1545 leaves from B12\nshown at hall: UA 1545 leaves from B12\n0 members are missing\n",
    "tunnel": "10,240,000 bytes arrived unchanged: True\n",
}


def test_every_example_is_tested() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == PRINTED.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    realm = {"IRIS_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **realm},
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED[name], "")


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) < 40
    assert f"python examples/{name}.py" in text
