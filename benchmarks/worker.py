"""The program of one process of a trial: its task comes as JSON on standard input, it reports on standard output.

    python -P worker.py SYSTEM CASE sink|source

It measures the checkout that comes first on its path, also an earlier one, and so imports no other file of this one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import final

from iris.bench.cases import CASES, Case


@final
class Task:
    """Task of one process of a trial, and its line to the process that conducts it; see ``benchmarks.system.Task``."""

    def __init__(self, *, case: Case, seconds: float, broker: str, addresses: tuple[str, ...], seat: int = 0) -> None:
        self.case = case
        self.broker = broker
        self.addresses = addresses
        self.seat = seat
        self._seconds = seconds
        self._working = False

    @property
    def seconds(self) -> float:
        """Time for which the source works, in seconds.

        The first one that asks begins the time: each source takes the end of its time from it.  So the processor
        time of a message is that of the work, without imports and connections.
        """
        if not self._working:
            self._working = True
            self._say({"working": perf_counter()})
        return self._seconds

    def ready(self, address: str = "") -> None:
        """Say that this sink now receives, at ``address``."""
        self._say({"ready": address})

    def finish(self, **figures: float) -> None:
        """Say what was measured, and when."""
        self._say({"figures": figures, "at": perf_counter()})

    def _say(self, line: Mapping[str, object]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Do one part of one case, and wait for the end of the trial, which reads how much processor time it took."""
    from benchmarks.systems import system_named  # of the checkout that is measured

    name, case_name, part = sys.argv[1:]
    (case,) = (case for case in CASES if case.name == case_name)
    roles = system_named(name).roles[case.kind]
    given = json.loads(sys.stdin.readline())
    task = Task(
        case=case,
        seconds=given["seconds"],
        broker=given["broker"],
        addresses=tuple(given["addresses"]),
        seat=given["seat"],
    )
    role = roles.sink if part == "sink" else roles.source
    role(task)
    sys.stdout.write(json.dumps({"ended": part}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
