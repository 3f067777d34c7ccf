"""Processes of one run, each in a namespace: they are given lines, and report what they saw, line by line."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, final

import trio

ROOT = Path(__file__).resolve().parents[2]

PATIENCE = 240.0
"""Seconds that a process may say nothing where nothing else is said."""


class RunError(Exception):
    """A process of a run failed or fell silent."""


def say(**line: object) -> None:
    """Tell the conducting process something."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def resident(pid: int | str = "self", field: str = "VmRSS") -> int:
    """Return the bytes that a process has in memory; with ``field="VmHWM"`` the most it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status has no {field}")


@final
class Part:
    """One process of a run."""

    def __init__(
        self, directory: Path, number: int, prefix: Sequence[str], case: str, role: str, task: dict[str, object]
    ) -> None:
        self.name = f"{role} {number}"
        self._errors = (directory / f"{number}.log").open("w+")
        runtime = directory / str(number)  # one for each process: nodes must not meet over ipc
        runtime.mkdir(mode=0o700)
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.support.parts", case, role, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "IRIS_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(runtime)},
        )
        self.pid = self._process.pid
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._process.wait()
        self._lines.put("")

    def tell(self, line: str = "") -> None:
        """Let the process go on: it waits for a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def hear(self, word: str, patience: float = PATIENCE) -> Any:
        """Read a line as ``hear_line`` does, and return its value under ``word``."""
        return self.hear_line(word, patience)[word]

    def hear_line(self, word: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Wait for the line that says ``word``, and return all of it; with "" the next line, whatever it says.

        Raises:
            RunError: it failed, or said nothing for ``patience`` seconds.
        """
        deadline = monotonic() + patience
        while (left := deadline - monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if not line:
                raise RunError(f"{self.name} ended: {self._last_words()}")
            said: dict[str, Any] = json.loads(line)
            if not word or word in said:
                return said
        raise RunError(f"{self.name} did not say {word!r} within {patience:.0f} s")

    def kill(self) -> None:
        """Kill the process and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return said[-1] if said else f"status {self._process.returncode}"

    def close(self) -> None:
        """End the process, and forget what it said."""
        self.kill()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # closing flushes
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


@final
class Run:
    """The processes of one run, which end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.parts: list[Part] = []

    def start(self, case: str, role: str, *, prefix: Sequence[str] = (), **task: object) -> Part:
        """Start a process that plays ``role`` in ``case``; ``prefix`` is a command that runs commands."""
        part = Part(self.directory, len(self.parts), prefix, case, role, task)
        self.parts.append(part)
        return part


@contextlib.contextmanager
def open_run() -> Generator[Run]:
    """Give a run; all its processes are dead at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="is-") as directory:
        run = Run(Path(directory))
        try:
            yield run
        finally:
            for part in run.parts:
                part.close()


def main() -> None:
    """Play one role of one case in this process: ``CASE ROLE TASK``, the task as JSON."""
    case, role, task = sys.argv[1:]
    trio.run(importlib.import_module(case).ROLES[role], json.loads(task))


if __name__ == "__main__":
    main()
