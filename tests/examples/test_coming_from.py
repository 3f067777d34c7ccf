"""The pages for users of other systems: what they have, and the same with Iris, print the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.support.ports import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "coming_from"

PRINTED = {
    "celery": "picture-0 at 64 pixels\npicture-1 at 64 pixels\npicture-2 at 64 pixels\n",
    "grpc": "tea 5.0\n",
    "kafka": "billing 0 1 2\naudit 0 1 2\n",
    "nats": "hello world\norders.created 7\n",
    "rabbitmq": "a.png is small now\nb.png: the disk is full\nb.png is small now\n",
    "redis": "3.5 2\norders.created 7\n",
    "zeromq": "hello world\norders.created 7\n",
}
BRIDGES = {"kafka": "orders.>", "rabbitmq": "thumbnails"}
"""Topics of the bridge that a program with Iris needs."""


def test_every_example_is_tested() -> None:
    wanted = {f"{name}_{when}" for name in PRINTED for when in ("before", "after")}
    assert {file.stem for file in EXAMPLES.glob("*.py")} == wanted


@contextmanager
def server(port: int, *command: str) -> Iterator[None]:
    """Run a server of somebody else until the end of the block, which begins when it takes connections."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        try:
            ends = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert time.monotonic() < ends
                    time.sleep(0.02)
            yield
        finally:
            it.terminate()


@contextmanager
def bridge(topic: str, directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "iris", "bridge", "--topic", topic, "--data", str(directory / "log")]
    with subprocess.Popen(command, env=environment_in(directory), stderr=subprocess.DEVNULL) as it:
        try:
            yield
        finally:
            it.terminate()


def environment_in(directory: Path) -> dict[str, str]:
    """Return the variables of a realm of its own."""
    return {**os.environ, "IRIS_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(directory)}


def printed(name: str, tmp_path: Path, **environment: str) -> str:
    """Run an example as it is, in a realm of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, f"{name}.py"],
        cwd=EXAMPLES, env=environment_in(tmp_path) | environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_the_program_with_iris_prints_what_the_other_one_prints(name: str, tmp_path: Path) -> None:
    with bridge(BRIDGES[name], tmp_path) if name in BRIDGES else nullcontext():
        assert printed(f"{name}_after", tmp_path) == PRINTED[name]


@pytest.mark.parametrize("name", ["celery", "grpc", "kafka", "rabbitmq", "zeromq"])
def test_the_program_of_the_other_system_prints_it(name: str, tmp_path: Path) -> None:
    if name == "kafka":
        pytest.importorskip("confluent_kafka")
    assert printed(f"{name}_before", tmp_path) == PRINTED[name]


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not installed")
def test_the_program_with_nats_prints_it(tmp_path: Path) -> None:
    port = free_port()
    with server(port, "nats-server", "--addr", "127.0.0.1", "--port", str(port)):
        assert printed("nats_before", tmp_path, NATS_URL=f"nats://127.0.0.1:{port}") == PRINTED["nats"]


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_the_program_with_redis_prints_it(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    port = free_port()
    with server(port, "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(tmp_path)):
        assert printed("redis_before", tmp_path, REDIS_URL=f"redis://127.0.0.1:{port}") == PRINTED["redis"]
