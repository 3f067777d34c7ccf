"""Processes that a test or a measuring program starts, kills and starts again, in a local realm of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, final

ROOT: Final = Path(__file__).resolve().parents[2]

READY = 120.0
"""Seconds that a process may take to start: this much only where others use the machine, too."""


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Let a child of this process do nothing until SIGCONT.  Return when the last of its threads has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


@final
class Child:
    """A process that says on standard error when it is ready.  Its children are killed with it.

    Args:
        command: what to run.
        ready: part of the line that it says then.
        log: where standard error goes; added to when it is started again.
        environment: what it gets beside the environment of this process.
    """

    def __init__(
        self, command: Sequence[str], *, ready: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = list(command)
        self._ready = ready
        self._log = log
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        self._environment = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process is running."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._began = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def wait_ready(self, ready: str | None = None) -> str:
        """Wait until it is ready, or says ``ready``, and return the line in which it says so."""
        ready = self._ready if ready is None else ready
        deadline = time.monotonic() + READY
        said = ""
        while time.monotonic() < deadline:
            said = self.said()
            for line in said.splitlines(keepends=True):
                if ready in line and line.endswith("\n"):
                    return line
            if not self.alive:
                break
            time.sleep(0.02)
        self.end(signal.SIGKILL)
        raise RuntimeError(f"{' '.join(self._command[:4])} did not start; it said:\n{said[-2000:]}")

    def wait_end(self) -> str:
        """Wait until it has ended by itself, and return what it said."""
        assert self._process is not None
        self._process.wait(timeout=READY)
        self._process = None
        return self.said()

    def said(self) -> str:
        """Return what it has said since it was started last."""
        with self._log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode("utf-8", "replace")

    def start(self) -> str:
        """Start it and wait until it is ready."""
        self.launch()
        return self.wait_ready()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int | None:
        """End it and whatever it has started; return its exit status, None if it was not running."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.send_signal(number)
        try:
            return process.wait(timeout=READY)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


@contextlib.contextmanager
def open_realm(*, base: Path | None = None) -> Iterator[Path]:
    """Make a local realm that this run has for itself, in a directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="ib-", dir=base))  # short: paths of ipc sockets end at 107 bytes
    before = {name: os.environ.get(name) for name in ("IRIS_HOME", "XDG_RUNTIME_DIR")}
    os.environ.update({"IRIS_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(directory)})
    try:
        yield directory
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(directory, ignore_errors=True)


def bridge_child(directory: Path, *options: str, data: str = "log") -> Child:
    """Return a member of a bridge that stores everything; its log is in ``directory/data``."""
    command = [sys.executable, "-m", "iris", "bridge", "--topic", ">", "--data", str(directory / data), *options]
    return Child(command, ready="stores", log=directory / "bridge.txt")


def copy_child(directory: Path, data: str) -> Child:
    """Return a copy of the log of that member; it says ``stores`` when it was promoted."""
    command = [sys.executable, "-m", "iris", "bridge", "--follow", "bridge/0", "--data", str(directory / data)]
    return Child(command, ready="is the copy", log=directory / f"{data}.txt")
