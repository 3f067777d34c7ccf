"""A process that has imported the ``iris`` command and runs it in children: ``python -m tests.support.verbs``.

A third of a second of each short run of the command is imports, and half a second of a bridge's.  Each line of its
input is a run: its arguments, directory, environment and input.  For each it answers with a line, the exit status and
how many bytes the run has written to its standard output and error, and then these.  A run that goes on has a null in
the place of its input, and gets its standard streams through a socket; the answer is its number, by which its status
is asked for when it has ended.  A run is a process of its own, and ends as one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, final

_STARTING: Final = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_")
"""How the names of variables begin that an interpreter has looked at before it runs anything."""


@final
class Started:
    """A run that goes on, with what ``subprocess.Popen`` has for one whose standard error is read as text."""

    def __init__(self, pid: int, stderr: IO[str], status: Callable[[int], int]) -> None:
        self.pid: Final = pid
        self.stderr = stderr
        self.returncode: int | None = None
        self._status: Final = status
        self._ended: Final = os.pidfd_open(pid)  # before its status has been asked for nobody else is ``pid``

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._ended, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit status.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["iris"], timeout or 0)
            os.close(self._ended)
            self.returncode = self._status(self.pid)
        return self.returncode


@final
class Verbs:
    """The end of who wants verbs run.  The process is started with the first one.

    Args:
        modules: what the process imports besides the command.
    """

    def __init__(self, *modules: str) -> None:
        self._modules: Final = modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._passing: socket.socket | None = None
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
            status, *sizes = self._ask((list(arguments), str(directory), dict(environment), given.hex(), timeout))
            assert process.stdout is not None
            said = [process.stdout.read(size) for size in sizes]
        finally:
            self._lock.release()
        if status is None:
            raise subprocess.TimeoutExpired(["iris", *arguments], timeout, *said)
        return subprocess.CompletedProcess(["iris", *arguments], status, *said)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Started | None:
        """Begin to run the command in this directory; None: it has to be a process that is started anew."""
        with self._lock:
            self._started()
            if _looked_at(environment) != _looked_at(self._begun):
                return None
            assert self._passing is not None
            reading, writing = os.pipe()
            with Path(os.devnull).open("rb") as nothing:
                socket.send_fds(self._passing, [b" "], [nothing.fileno(), 1, writing])
            os.close(writing)
            (pid,) = self._ask((list(arguments), str(Path.cwd()), dict(environment), None, None))
        return Started(pid, os.fdopen(reading), self._status)

    def _status(self, pid: int) -> int:
        with self._lock:
            (status,) = self._ask(pid)
        return int(status)

    def _ask(self, what: object) -> list[Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(what).encode() + b"\n")
        process.stdin.flush()
        answer: list[Any] = json.loads(process.stdout.readline())
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._begun = {**os.environ, "PYTHONUNBUFFERED": "1"}
            self._passing, passed = socket.socketpair()
            with passed:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.verbs", str(passed.fileno()), *self._modules],
                    cwd=Path(__file__).resolve().parents[2],
                    env=self._begun,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=(passed.fileno(),),
                )
            atexit.register(self._end, self._process, self._passing)
        return self._process

    @staticmethod
    def _end(process: subprocess.Popen[bytes], passing: socket.socket) -> None:
        with passing, process:  # it ends when nobody can want anything any more
            pass


def _looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_STARTING)}


def _serve(requests: IO[bytes], answers: IO[bytes], passed: socket.socket) -> list[str]:
    """Answer until nobody can want anything any more.  In a child it returns the arguments of its run."""

    def answer(*values: object, said: Sequence[bytes] = ()) -> None:
        answers.write(json.dumps(values).encode() + b"\n" + b"".join(said))
        answers.flush()

    def become(streams: Sequence[int], directory: str, environment: dict[str, str]) -> None:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for file in (requests, answers, passed):
            file.close()
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)

    for line in requests:
        wanted = json.loads(line)
        if isinstance(wanted, int):
            answer(os.waitstatus_to_exitcode(os.waitpid(wanted, 0)[1]))
            continue
        arguments, directory, environment, given, timeout = wanted
        if given is None:
            _, streams, _, _ = socket.recv_fds(passed, 1, 3)
            child = os.fork()
            if child == 0:
                become(streams, directory, environment)
            for stream in streams:
                os.close(stream)
            if child == 0:
                return list(arguments)
            answer(child)
            continue
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(bytes.fromhex(given))
            files[0].seek(0)
            child = os.fork()
            if child == 0:
                become([file.fileno() for file in files], directory, environment)
                return list(arguments)
            status = _wait(child, timeout)
            said: list[bytes] = []
            for file in files[1:]:
                file.seek(0)
                said.append(file.read())
        answer(status, *map(len, said), said=said)
    sys.exit(0)


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
    from iris.cli.bridge_log import needing_spark

    passed = socket.socket(fileno=int(sys.argv[1]))
    modules = sys.argv[2:]
    sys.argv = ["iris"]
    if modules:
        with needing_spark():
            for module in modules:
                import_module(module)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        nothing = os.open(os.devnull, mode)
        os.dup2(nothing, number)
        os.close(nothing)
    gc.freeze()
    sys.argv = ["iris", *_serve(requests, answers, passed)]
    sys.path[0] = str(Path.cwd())
    run_command()


if __name__ == "__main__":
    main()
