"""One trial: one system does one case once, in fresh processes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, final

from benchmarks.system import System
from iris.bench.cases import Case

ROOT = Path(__file__).resolve().parents[1]

PATIENCE = 120.0
"""Seconds that a process may be silent beyond the time of its work."""

LINKING = 150.0
"""The same where one process first links more than a thousand nodes: 15 s on a machine with nothing else to do."""


class TrialError(Exception):
    """A process of a trial failed or fell silent.  The message is its last line of standard error."""


def last_words(output: Iterable[str]) -> str:
    """Return the last line that says something: of several errors at once Python draws a tree around the texts."""
    return next((said for line in reversed(list(output)) if (said := line.strip(" |+-\n"))), "")


@final
class Worker:
    """One process of a trial."""

    def __init__(self, system: System, case: Case, part: str, seat: int, directory: Path) -> None:
        self._errors = (directory / f"{part}{seat}.log").open("w+")
        runtime = directory / f"{part}{seat}"  # one for each process: nodes must not meet over ipc
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", system.name, case.name, part],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "IRIS_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(runtime)},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._process.wait()
        self._lines.put("")

    def begin(self, **task: object) -> None:
        """Hand the process its task."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died before; the next ``hear`` says why
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()

    def hear(self, word: str, patience: float, *, watching: Worker | None = None) -> Any:
        """Wait for the line that says ``word`` and return what it says.

        Raises:
            TrialError: this process or the one that it is ``watching`` failed, or this one said nothing for
                ``patience`` seconds.
        """
        deadline = monotonic() + patience
        while True:
            try:
                line = self._lines.get(timeout=0.5)
            except queue.Empty:
                if watching is not None:
                    watching.check()
                if monotonic() > deadline:
                    raise TrialError(f"said nothing for {patience:.0f} s") from None
                continue
            if not line:
                self.check()
                raise TrialError("ended before it had finished")
            said = json.loads(line)
            if word in said:
                return said[word]

    def check(self) -> None:
        """Raise ``TrialError`` if the process has failed."""
        if self._process.poll():
            self._errors.seek(0)
            raise TrialError(last_words(self._errors) or f"ended with status {self._process.returncode}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # closing flushes
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


@contextlib.contextmanager
def _started(system: System, case: Case, part: str, seat: int, directory: Path) -> Generator[Worker]:
    worker = Worker(system, case, part, seat, directory)
    try:
        yield worker
    finally:
        worker.close()


def run_trial(system: System, case: Case, *, seconds: float, broker: str, directory: Path) -> dict[str, float]:
    """Run one trial and return its figures; the rates of several sinks are added up.

    Raises:
        TrialError: a process failed.
    """
    given: dict[str, object] = {"seconds": seconds, "broker": broker}
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(_started(system, case, "sink", seat, directory)) for seat in range(case.sinks)]
        source = stack.enter_context(_started(system, case, "source", 0, directory))
        for seat, sink in enumerate(sinks):
            sink.begin(addresses=[], seat=seat, **given)
        addresses = [sink.hear("ready", PATIENCE) for sink in sinks]
        source.begin(addresses=addresses, seat=0, **given)
        if case.reported_by_source:
            return dict(source.hear("figures", seconds + (LINKING if case.kind == "members" else PATIENCE)))
        figures = [dict(sink.hear("figures", 10 * seconds + PATIENCE, watching=source)) for sink in sinks]
        return added(figures)


def added(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the figures of all sinks together.

    Raises:
        TrialError: one counted more than was sent, so that what it counted were not the messages.
    """
    if any(one.get("lost", 0) < 0 for one in figures):
        raise TrialError("more messages were counted than were sent")
    return {name: sum(one[name] for one in figures) for name in figures[0]}
