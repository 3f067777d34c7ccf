"""Supervisors of ``tests.support.programs.supervised``, and the workers of theirs that serve."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.processes import Child

PATIENCE = 60.0

Workers = dict[int, int]
"""The place of each process that serves."""


def workers(directory: Path) -> Workers:
    """Return the workers that serve."""
    found: Workers = {}
    for path in directory.glob("[0-9]*"):
        with suppress(FileNotFoundError):
            found[int(path.name)] = int(path.read_text())
    return found


def wait_workers(directory: Path, wanted: Callable[[Workers], bool]) -> Workers:
    """Wait until the workers that serve are as ``wanted``."""
    deadline = time.monotonic() + PATIENCE
    while not wanted(found := workers(directory)):
        assert time.monotonic() < deadline, found
        time.sleep(0.005)
    return found


@contextmanager
def supervised(count: int, directory: Path, ready: str) -> Generator[Child]:
    """Run a supervisor for the length of the block, which begins when it has said ``ready``."""
    command = [sys.executable, "-m", "tests.support.programs.supervised", str(count), str(directory)]
    child = Child(command, ready=ready, log=directory / "log.txt")
    child.start()
    try:
        yield child
    finally:
        child.end()


def log(directory: Path) -> str:
    """Return what a supervisor and its workers have said."""
    return (directory / "log.txt").read_text()


def is_running(pid: int) -> bool:
    """Return whether a process goes on."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_gone(*processes: int) -> None:
    """Wait until these processes have ended."""
    deadline = time.monotonic() + PATIENCE
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
