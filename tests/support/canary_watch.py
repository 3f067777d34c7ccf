"""Watches a whole test run for secrets in logs, output, reports and exceptions.

Every secret that is made while the tests run, in the process that runs them or in one that a test starts, is a canary:
private keys, gate secrets, seeds of ML-KEM, results of Diffie-Hellman, chaining and session keys, passphrases and the
keys made of them.  Searched for them is

- what is logged, at DEBUG, and what a test prints, also where it reads that itself (``capsys``, ``capfd``);
- what a process says to a test that has started it, on its standard output and error;
- how a test failed;
- every exception that ``pytest.raises`` takes, with all that it comes from, and every error of Iris, caught or not.

If a secret is found the run fails.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast, final

import pytest
import trio
import xdist

from iris.kernel.errors import IrisError
from tests.support.canaries import Canaries
from tests.support.children import sitecustomize
from tests.support.verbs import Started

_PENDING: Final = 4096
"""Texts that are kept before they are searched, so that a test of many errors takes no memory for them."""


def texts_of(error: BaseException) -> Iterator[str]:
    """Yield everything that an exception could show, with its causes, its contexts and its parts."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield f"{one!r} {one} {one.args!r}"
        if vars(one):
            yield repr(vars(one))  # notes included
        found += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            found += cast("BaseExceptionGroup[BaseException]", one).exceptions


@final
class _Heard(io.FileIO):
    """A pipe from a process: what is read from it is noted."""

    def __init__(self, descriptor: int, note: Callable[[bytes], None]) -> None:
        super().__init__(descriptor)
        self._note = note

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        self._note(bytes(memoryview(buffer)[: count or 0]))
        return count

    def readall(self) -> bytes:
        data = super().readall()
        self._note(data)
        return data

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self._note(data)
        return data


@final
class CanaryWatch(logging.Handler):
    """The plugin.  ``config.pluginmanager.register(CanaryWatch())``, once."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.canaries = Canaries()
        self.seen: list[str] = []
        self._made_by_workers = 0
        self._where = "before the first test"
        self._texts: dict[str, str] = {}
        self._undo: list[Callable[[], None]] = []
        self.file: Path | None = None
        self._read = 0
        self._searching = threading.RLock()

    # -- what is watched ------------------------------------------------------------------------------------

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Begin to take note of secrets, and of what could show them, in the process that runs the tests."""
        if not xdist.is_xdist_controller(session):
            self.start()

    def start(self) -> None:
        """Begin."""
        for name, watch in sitecustomize.WATCHED.items():
            self._undo.append(watch(importlib.import_module(name), self.canaries.add, self._add_passphrase))
        self._watch_children()
        self._watch_exceptions()
        self._watch_captures()
        self._watch_pipes()
        logger = logging.getLogger()
        level = logger.level
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)
        self._undo += [lambda: logger.removeHandler(self), lambda: logger.setLevel(level)]

    def stop(self) -> None:
        """Put everything back."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _add_passphrase(self, passphrase: bytes) -> None:
        self.canaries.add_passphrase(passphrase.decode(errors="surrogatepass"))

    def _replace(self, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        """Put what ``made`` makes of an attribute in its place."""
        own = name in vars(owner)
        before = getattr(owner, name)
        setattr(owner, name, made(before))
        self._undo.append(lambda: setattr(owner, name, before) if own else delattr(owner, name))

    def _watch_children(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="iris-secrets-")
        self.file = Path(directory.name) / "made"
        self.file.touch(0o600)
        self._undo.append(directory.cleanup)
        paths = [str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", "")]
        self._set_variable(sitecustomize.VARIABLE, str(self.file))
        self._set_variable("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def _set_variable(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        os.environ[name] = value

        def undo() -> None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

        self._undo.append(undo)

    def _watch_exceptions(self) -> None:
        def leaving(leave: Any) -> Any:
            def watching(raises: object, kind: object, error: BaseException | None, traceback: object) -> object:
                __tracebackhide__ = True
                if error is not None:
                    self.note(*texts_of(error))
                return leave(raises, kind, error, traceback)

            return watching

        def making(make: Any) -> Any:
            def watching(error: BaseException, *arguments: object) -> None:
                make(error, *arguments)
                self.note(repr(arguments), *(one for one in arguments if isinstance(one, str)))

            return watching

        for kind in (pytest.RaisesExc, pytest.RaisesGroup):
            self._replace(kind, "__exit__", leaving)
        self._replace(IrisError, "__init__", making)

    def _watch_captures(self) -> None:
        def reading(read: Any) -> Any:
            def watching(fixture: object) -> object:
                said = read(fixture)
                self.note(said.out, said.err)
                return said

            return watching

        self._replace(pytest.CaptureFixture, "readouterr", reading)

    def _watch_pipes(self) -> None:
        def starting(start: Any) -> Any:
            def watching(process: Any, *arguments: Any, **options: Any) -> None:
                start(process, *arguments, **options)
                for name in ("stdout", "stderr"):
                    pipe = getattr(process, name, None)
                    if pipe is not None:
                        setattr(process, name, self._heard(pipe))

            return watching

        def communicating(communicate: Any) -> Any:
            def watching(process: object, *arguments: object, **options: object) -> object:
                said = communicate(process, *arguments, **options)
                self.note(*filter(None, said))
                return said

            return watching

        def receiving(receive: Any) -> Any:
            async def watching(stream: object, max_bytes: int | None = None) -> bytes:
                data: bytes = await receive(stream, max_bytes)
                self.note(data)
                return data

            return watching

        for kind in (subprocess.Popen, Started):
            self._replace(kind, "__init__", starting)
        self._replace(subprocess.Popen, "communicate", communicating)
        self._replace(trio.lowlevel.FdStream, "receive_some", receiving)

    def _heard(self, pipe: Any) -> Any:
        """Return a pipe in the place of another one, which nobody has read from yet."""
        text = cast("io.TextIOWrapper", pipe) if isinstance(pipe, io.TextIOWrapper) else None
        heard: Any = _Heard(os.dup(pipe.fileno()), self.note)
        if text is not None or isinstance(pipe, io.BufferedReader):
            heard = io.BufferedReader(heard)
        if text is not None:
            heard = io.TextIOWrapper(heard, encoding=text.encoding, errors=text.errors)
        pipe.close()
        return heard

    # -- what is seen ---------------------------------------------------------------------------------------

    def note(self, *texts: str | bytes) -> None:
        """Have texts searched."""
        for text in texts:
            if text:
                self._texts.setdefault(text if isinstance(text, str) else text.decode("latin-1"), self._where)
        if len(self._texts) > _PENDING:
            self.search()

    def emit(self, record: logging.LogRecord) -> None:
        """Note what was logged, with its exception."""
        self._texts.setdefault(self.format(record), f"{self._where}, logged by {record.name}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Know which test runs."""
        self._where = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a test has printed, and how it failed."""
        if report.longrepr is not None:
            self.note(report.longreprtext)
        self.note(*(text for _, text in report.sections))
        if report.when == "teardown":
            self.search()

    def search(self) -> None:
        """Search what was noted."""
        with self._searching:  # threads note things, too
            self._take_note_of_children()
            texts, self._texts = self._texts, {}
            for text, where in texts.items():
                if self.canaries.find(text) is not None:
                    self.seen.append(where)

    def _take_note_of_children(self) -> None:
        """Learn the secrets of the processes that tests have started; each is written down before it can be shown."""
        if self.file is None or not self.file.exists():
            return
        with self.file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._read += len(line)
                add = self._add_passphrase if line.startswith(b"p") else self.canaries.add
                add(bytes.fromhex(line[1:].decode()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Search what is left, and fail the run if a secret was seen; a worker reports to its starter."""
        self.search()
        self.stop()
        if xdist.is_xdist_worker(session):
            session.config.workeroutput.update(made=len(self.canaries), seen=self.seen)  # type: ignore[attr-defined]
        if self.seen:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has found; one that broke off has failed its test."""
        output: dict[str, Any] = getattr(node, "workeroutput", {})
        self._made_by_workers += output.get("made", 0)
        self.seen += output.get("seen", ())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was found."""
        made = len(self.canaries) + self._made_by_workers
        seen = len(self.seen)
        terminalreporter.write_line(f"secrets made: {made}; seen in logs, output, reports and exceptions: {seen}")
        for where in sorted(set(self.seen)):
            terminalreporter.write_line(f"a secret was seen in: {where}", red=True)
