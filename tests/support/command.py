"""Running the ``iris`` command as people do: in processes of its own, in a local realm that is forgotten afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from tests.support.verbs import Verbs

PATIENCE = 120.0
"""Seconds after which a process that should be done is taken to hang."""

COMMAND = (sys.executable, "-m", "iris")

VERBS: Final = Verbs()
"""Parent process of short runs of the command."""


@final
class Terminal:
    """A directory and a local realm of their own, in which ``iris`` is run.

    Args:
        parent: the directory.
        prefix: a command that runs the command that follows it.
    """

    def __init__(self, parent: Path, prefix: Sequence[str] = ()) -> None:
        self._command = (*prefix, *COMMAND)
        self.directory = parent / "work"
        self.environment = {
            **os.environ,
            "IRIS_HOME": str(parent / "home"),
            "XDG_RUNTIME_DIR": str(parent),
            "TERMINAL_OF_TEST": str(parent),  # by which a process is known that was started here
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, *arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run ``iris`` with ``arguments`` to its end, with ``given`` as its standard input."""
        if self._command == COMMAND:
            done = VERBS.run(arguments, self.directory, self.environment, given or b"", PATIENCE)
            if done is not None:
                return done
        return subprocess.run(
            [*self._command, *arguments],
            cwd=self.directory,
            env=self.environment,
            input=given or b"",
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    @contextmanager
    def started(self, *arguments: str, announces: str | None = None) -> Generator[subprocess.Popen[bytes]]:
        """Run ``iris`` for the length of the block, which begins when it has said ``announces`` on standard error."""
        process: subprocess.Popen[bytes] | None = None
        if self._command == COMMAND:
            process = VERBS.start(arguments, self.directory, self.environment)
        with process or subprocess.Popen(
            [*self._command, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                if announces is not None:
                    _wait_for_line(process, announces, arguments)
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


def interrupt(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> int:
    """Send ``process`` a signal and return its exit status."""
    process.send_signal(number)
    return process.wait(PATIENCE)


def _wait_for_line(process: subprocess.Popen[bytes], text: str, arguments: Sequence[str]) -> None:
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line.decode())
        if text in said[-1]:
            return
    raise AssertionError(f"iris {' '.join(arguments)} ended and had not said {text!r}: {''.join(said)}")


@contextmanager
def open_terminal(prefix: Sequence[str] = ()) -> Generator[Terminal]:
    """Open a terminal; what it writes has a short path, because those of ipc sockets end at 107 bytes."""
    parent = Path(tempfile.mkdtemp(prefix="iris-"))
    try:
        (parent / "work").mkdir()
        yield Terminal(parent, prefix)
    finally:
        shutil.rmtree(parent)
