"""One trial: one system does one case once, in fresh processes, whose processor time is measured while they work."""

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
from time import monotonic, perf_counter, sleep
from typing import Any, Final, final

from benchmarks.broker import Broker
from benchmarks.load import processor_time
from iris.bench.cases import Case, Kind
from iris.bench.workload import WARM_UP

ROOT = Path(__file__).resolve().parents[1]

WARMED_UP: Final[tuple[Kind, ...]] = ("request", "handshake")
"""Kinds of work whose rate does not count the first ``WARM_UP`` seconds, so that the processor time does not either."""

COUNTED: Final[tuple[Kind, ...]] = (*WARMED_UP, "stream", "paced", "tunnel", "broadcast")
"""Kinds of work of which a message costs processor time."""

PROCESSOR: Final = ("processor-source", "processor-sinks", "processor-server")
"""Figures of the processor time of one message, in microseconds: of the source, of all sinks, of a broker."""

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
    """One process of a trial, of the checkout ``tree``."""

    def __init__(self, system: str, case: Case, part: str, seat: int, directory: Path, tree: Path) -> None:
        self._errors = (directory / f"{part}{seat}.log").open("w+")
        runtime = directory / f"{part}{seat}"  # one for each process: nodes must not meet over ipc
        runtime.mkdir(mode=0o700, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "benchmarks" / "worker.py"), system, case.name, part],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=tree,
            env={
                **os.environ,
                "IRIS_HOME": str(directory / "home"),
                "XDG_RUNTIME_DIR": str(runtime),
                "PYTHONPATH": str(tree),
            },
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

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def begin(self, **task: object) -> None:
        """Hand the process its task."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died before; the next ``hear`` says why
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()

    def hear(self, word: str, patience: float, *, watching: Worker | None = None) -> Mapping[str, Any]:
        """Wait for the line that says ``word`` and return all that it says.

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
            said: Mapping[str, Any] = json.loads(line)
            if word in said:
                return said
            if "ended" in said:
                raise TrialError("ended before it had finished")

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


@final
class Meter:
    """Processor time of the processes of a trial, from the beginning of the work on.

    Each process is read from outside, which costs it nothing.
    """

    def __init__(self, source: Worker, sinks: Sequence[Worker], broker: Broker | None) -> None:
        parts = ([source.pid], [sink.pid for sink in sinks], [] if broker is None else [broker.pid])
        self._parts = [pids for pids in parts if pids]
        self._began = perf_counter()
        self._before = self._look()

    def _look(self) -> list[float | None]:
        return [
            None if None in (times := [processor_time(pid) for pid in pids]) else sum(time or 0.0 for time in times)
            for pids in self._parts
        ]

    def each(self, rates: Iterable[tuple[float, float]]) -> dict[str, float]:
        """Return the microseconds of processor time of one message.

        Args:
            rates: for each process that counted messages, how many a second it counted, and when it had finished.
        """
        messages = sum(rate * (finished - self._began) for rate, finished in rates)
        if messages <= 0:
            return {}
        return {
            name: 1e6 * (after - before) / messages
            for name, before, after in zip(PROCESSOR, self._before, self._look(), strict=False)
            if before is not None and after is not None
        }


@contextlib.contextmanager
def _started(system: str, case: Case, part: str, seat: int, directory: Path, tree: Path) -> Generator[Worker]:
    worker = Worker(system, case, part, seat, directory, tree)
    try:
        yield worker
    finally:
        worker.close()


def run_trial(
    system: str, case: Case, *, seconds: float, directory: Path, broker: Broker | None = None, tree: Path = ROOT
) -> dict[str, float]:
    """Run one trial and return its figures; the rates of several sinks are added up.

    Args:
        system: the name of the system.
        case: the work.
        seconds: time for which the source works, in seconds.
        directory: logs, and the realm of Iris's nodes.
        broker: the system's broker. None if it needs none.
        tree: the checkout whose code is measured.

    Raises:
        TrialError: a process failed.
    """
    given: dict[str, object] = {"seconds": seconds, "broker": "" if broker is None else broker.address}
    with contextlib.ExitStack() as stack:

        def start(part: str, seat: int) -> Worker:
            return stack.enter_context(_started(system, case, part, seat, directory, tree))

        sinks = [start("sink", seat) for seat in range(case.sinks)]
        source = start("source", 0)
        for seat, sink in enumerate(sinks):
            sink.begin(addresses=[], seat=seat, **given)
        addresses = [sink.hear("ready", PATIENCE)["ready"] for sink in sinks]
        source.begin(addresses=addresses, seat=0, **given)
        meter: Meter | None = None
        if case.kind in COUNTED:
            source.hear("working", PATIENCE)
            if case.kind in WARMED_UP:
                sleep(WARM_UP)
            meter = Meter(source, sinks, broker)
        if case.reported_by_source:
            reports = [source.hear("figures", seconds + (LINKING if case.kind == "members" else PATIENCE))]
        else:
            reports = [sink.hear("figures", 10 * seconds + PATIENCE, watching=source) for sink in sinks]
        figures = added([report["figures"] for report in reports])
        if meter is not None:
            figures |= meter.each([(report["figures"].get("rate", case.pace), report["at"]) for report in reports])
        return figures


def added(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the figures of all sinks together.

    Raises:
        TrialError: one counted more than was sent, so that what it counted were not the messages.
    """
    if any(one.get("lost", 0) < 0 for one in figures):
        raise TrialError("more messages were counted than were sent")
    return {name: sum(one[name] for one in figures) for name in figures[0]}
