"""A process that has imported the ``iris`` command and runs it in children: ``python -m tests.support.verbs``.

A third of a second of each short run of the command is imports.  Each line of its input is a run: its arguments,
directory, environment and input.  For each it answers with a line, the exit status and how many bytes the run has
written to its standard output and error, and then these.  A run is a process of its own, and ends as one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, final

_STARTING: Final = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_")
"""How the names of variables begin that an interpreter has looked at before it runs anything."""


@final
class Verbs:
    """The end of who wants verbs run.  The process is started with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._begun: dict[str, str] = {}

    def run(
        self, arguments: Sequence[str], directory: Path, environment: Mapping[str, str], given: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes] | None:
        """Run the command to its end; None: it has to be a process that is started anew.

        Raises:
            subprocess.TimeoutExpired: the time is over; the run is killed.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            process = self._started()
            if _looked_at(environment) != _looked_at(self._begun):
                return None
            assert process.stdin is not None
            assert process.stdout is not None
            wanted = (list(arguments), str(directory), dict(environment), given.hex(), timeout)
            process.stdin.write(json.dumps(wanted).encode() + b"\n")
            process.stdin.flush()
            status, *sizes = json.loads(process.stdout.readline())
            said = [process.stdout.read(size) for size in sizes]
        finally:
            self._lock.release()
        if status is None:
            raise subprocess.TimeoutExpired(["iris", *arguments], timeout, *said)
        return subprocess.CompletedProcess(["iris", *arguments], status, *said)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._begun = {**os.environ, "PYTHONUNBUFFERED": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.verbs"],
                cwd=Path(__file__).resolve().parents[2],
                env=self._begun,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            atexit.register(self._end, self._process)
        return self._process

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        with process:  # it ends when nobody can want anything any more
            pass


def _looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_STARTING)}


def _serve(requests: IO[bytes], answers: IO[bytes]) -> list[str]:
    """Answer until nobody can want anything any more.  In a child it returns the arguments of its run."""
    for line in requests:
        arguments, directory, environment, given, timeout = json.loads(line)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(bytes.fromhex(given))
            files[0].seek(0)
            child = os.fork()
            if child == 0:
                _become(files, directory, environment)
                return list(arguments)
            status = _wait(child, timeout)
            said: list[bytes] = []
            for file in files[1:]:
                file.seek(0)
                said.append(file.read())
        answers.write(json.dumps((status, *map(len, said))).encode() + b"\n" + b"".join(said))
        answers.flush()
    sys.exit(0)


def _become(files: Sequence[Any], directory: str, environment: dict[str, str]) -> None:
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)


def _wait(child: int, timeout: float) -> int | None:
    """Return the exit status of a child; None: it was killed, for it took too long."""
    ended = os.pidfd_open(child)
    in_time, _, _ = select.select([ended], [], [], timeout)
    os.close(ended)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if in_time else None


def main() -> None:
    """Serve; a child goes on as the command does, to its end."""
    from iris.__main__ import main as run_command
    from iris.cli import main as _  # noqa: F401 -- what the command imports

    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        nothing = os.open(os.devnull, mode)
        os.dup2(nothing, number)
        os.close(nothing)
    gc.freeze()
    sys.argv = ["iris", *_serve(requests, answers)]
    sys.path[0] = str(Path.cwd())
    run_command()


if __name__ == "__main__":
    main()
