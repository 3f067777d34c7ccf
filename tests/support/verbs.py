"""A process that has imported the ``iris`` command and runs it in children: ``python -m tests.support.verbs``.

A quarter of a second of each short run of the command is imports, and half a second of a bridge's.  Each line of its
input begins a run: its arguments, directory and environment, while its standard streams come through a socket; the
answer is the number of the process.  A line that is such a number asks for its exit status when it has ended.  A run is
a process of its own, and ends as one.  The command may be a program in Python instead, which is run as ``python FILE``.
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
from types import ModuleType
from typing import IO, Any, Final, final

_STARTING: Final = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_", "IRIS_TEST_SECRETS")
"""Prefixes of variables that an interpreter has read before it runs anything."""

_PATH: Final = "PYTHONPATH"
"""One of these to which a run may have something added."""


@final
class Started(subprocess.Popen[bytes]):
    """A run that goes on, as who has started it sees a process; another one is its parent.

    Args:
        pid: its process.
        pipes: the ends of pipes to its standard output and error, if there are any.
        status: waits until it has ended, and returns its exit status.
    """

    def __init__(self, pid: int, pipes: Sequence[IO[bytes] | None], status: Callable[[int], int]) -> None:
        self.args = ["iris"]
        self.pid = pid
        self.stdin = None
        self.stdout, self.stderr = pipes
        self.returncode: int | Any = None
        self._status: Final = status
        self._ended: Final = os.pidfd_open(pid)  # before its status has been asked for nobody else is ``pid``

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, sig)

    def poll(self) -> int | None:
        """Return its exit status; None: it goes on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit status.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            os.close(self._ended)
            self.returncode = self._status(self.pid)
        status: int = self.returncode
        return status

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:  # noqa: A002 -- its name in the base
        """Read what it says until it has ended.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        assert input is None, "nothing can be said to it"
        said: dict[IO[bytes], bytes] = {}

        def read(pipe: IO[bytes]) -> None:
            said[pipe] = pipe.read()

        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [threading.Thread(target=read, args=(pipe,), daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader, pipe in zip(readers, pipes, strict=True):
            reader.join(timeout)
            if pipe not in said:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            pipe.close()
        out, err = (b"" if pipe is None else said[pipe] for pipe in (self.stdout, self.stderr))
        return out, err

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


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
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(given)
            files[0].seek(0)
            streams = [file.fileno() for file in files]
            process = self.begin(("iris", *arguments), directory, environment, streams)
            if process is None:
                return None
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            said: list[bytes] = []
            for file in files[1:]:
                file.seek(0)
                said.append(file.read())
        return subprocess.CompletedProcess(["iris", *arguments], status, *said)

    def start(self, arguments: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Started | None:
        """Begin to run the command, with pipes to read from; None: it has to be a process that is started anew."""
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(Path(os.devnull).open("rb")).fileno()
            ends = [os.pipe(), os.pipe()]
            for _, writing in ends:
                stack.callback(os.close, writing)
            pipes = [os.fdopen(reading, "rb") for reading, _ in ends]
            streams = [nothing, *(writing for _, writing in ends)]
            process = self.begin(("iris", *arguments), directory, environment, streams, pipes=pipes)
            if process is None:
                for pipe in pipes:
                    pipe.close()
        return process

    def begin(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        streams: Sequence[int],
        *,
        pipes: Sequence[IO[bytes] | None] = (None, None),
        group: bool = False,
    ) -> Started | None:
        """Begin to run ``iris`` or a program; None: it has to be a process that is started anew.

        Args:
            command: ``iris`` or a file of Python, and its arguments.
            directory: where it runs.
            environment: its variables.
            streams: its standard streams, which stay open here.
            pipes: where its standard output and error can be read.
            group: whether it is a group of processes of its own.
        """
        with self._lock:
            self._started()
            places = _path(self._begun)
            if _looked_at(environment) != _looked_at(self._begun) or _path(environment)[: len(places)] != places:
                return None
            assert self._passing is not None
            socket.send_fds(self._passing, [b" "], streams)
            pid = self._ask((list(command), str(directory), dict(environment), group))
        return Started(pid, pipes, self._status)

    def _status(self, pid: int) -> int:
        with self._lock:
            return self._ask(pid)

    def _ask(self, what: object) -> int:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(what).encode() + b"\n")
        process.stdin.flush()
        return int(process.stdout.readline())

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
    return {name: value for name, value in environment.items() if name.startswith(_STARTING) and name != _PATH}


def _serve(requests: IO[bytes], answers: IO[bytes], passed: socket.socket) -> list[str]:
    """Answer until nobody can want anything any more.  In a child it returns the command that is to be run."""
    for line in requests:
        wanted = json.loads(line)
        if isinstance(wanted, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(wanted, 0)[1])
        else:
            command, directory, environment, group = wanted
            _, streams, _, _ = socket.recv_fds(passed, 1, 3)
            answer = os.fork()
            if group:
                os.setpgid(answer, answer)  # by both, as shells do: neither goes on before it is so
            if answer == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
            for stream in streams:
                os.close(stream)
            if answer == 0:
                for file in (requests, answers, passed):
                    file.close()
                _become(directory, environment)
                return list(command)
        answers.write(b"%d\n" % answer)
        answers.flush()
    sys.exit(0)


def _become(directory: str, environment: dict[str, str]) -> None:
    before, after = (_path(variables) for variables in (os.environ, environment))
    sys.path[1:] = [*after, *(place for place in sys.path[1:] if place not in before)]
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)


def _path(environment: Mapping[str, str]) -> list[str]:
    return [place for place in environment.get(_PATH, "").split(os.pathsep) if place]


def _run_program(file: Path) -> None:
    """Go on as ``python FILE``; an error shows as it does there."""
    sys.path[0] = str(file.parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(file)
    code = compile(file.read_bytes(), file, "exec")
    try:
        exec(code, vars(module))
    except Exception as error:  # noqa: BLE001 -- it is shown
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def main() -> None:
    """Serve; a child goes on as the command does, to its end."""
    from iris.__main__ import main as run_command
    from iris.cli import main as _  # noqa: F401 -- what the command imports
    from iris.cli.bridge_log import needing_bridge

    passed = socket.socket(fileno=int(sys.argv[1]))
    modules = sys.argv[2:]
    sys.argv = ["iris"]
    if modules:
        with needing_bridge():
            for module in modules:
                import_module(module)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        nothing = os.open(os.devnull, mode)
        os.dup2(nothing, number)
        os.close(nothing)
    gc.freeze()
    sys.argv = _serve(requests, answers, passed)
    if sys.argv[0] == "iris":
        sys.path[0] = str(Path.cwd())
        run_command()
    else:
        _run_program(Path(sys.argv[0]).resolve())


if __name__ == "__main__":
    main()
