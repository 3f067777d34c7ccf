"""The program of one process of a trial: its task comes as JSON on standard input, it reports on standard output."""

from __future__ import annotations

import json
import sys

from benchmarks.system import Task
from benchmarks.systems import system_named
from iris.bench.cases import CASES


def main() -> None:
    """Do one part of one case: ``worker SYSTEM CASE sink|source``."""
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


if __name__ == "__main__":
    main()
