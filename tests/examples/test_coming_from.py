"""The pages for users of other systems: what they have, and the same with Iris, print the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "coming_from"

PRINTED = {
    "celery": "picture-0 at 64 pixels\npicture-1 at 64 pixels\npicture-2 at 64 pixels\n",
    "grpc": "tea 5.0\n",
    "nats": "hello world\norders.created 7\n",
    "zeromq": "hello world\norders.created 7\n",
}


def test_every_example_is_tested() -> None:
    wanted = {f"{name}_{when}" for name in PRINTED for when in ("before", "after")}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == wanted


@contextmanager
def nats_server() -> Iterator[str]:
    port = free_port()
    with subprocess.Popen(["nats-server", "--addr", "127.0.0.1", "--port", str(port)], stderr=subprocess.DEVNULL) as it:
        try:
            ends = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < ends
                    time.sleep(0.02)
            yield f"nats://127.0.0.1:{port}"
        finally:
            it.terminate()


def printed(name: str, tmp_path: Path, **environment: str) -> str:
    """Run an example as it is, in a realm of its own, and return what it prints."""
    own = {"IRIS_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path), **environment}
    done = subprocess.run(
        [sys.executable, f"{name}.py"],
        cwd=EXAMPLES, env={**os.environ, **own}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_the_program_with_iris_prints_what_the_other_one_prints(name: str, tmp_path: Path) -> None:
    assert printed(f"{name}_after", tmp_path) == PRINTED[name]


@pytest.mark.parametrize("name", ["celery", "grpc", "zeromq"])
def test_the_program_of_the_other_system_prints_it(name: str, tmp_path: Path) -> None:
    assert printed(f"{name}_before", tmp_path) == PRINTED[name]


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not installed")
def test_the_program_with_nats_prints_it(tmp_path: Path) -> None:
    with nats_server() as url:
        assert printed("nats_before", tmp_path, NATS_URL=url) == PRINTED["nats"]
