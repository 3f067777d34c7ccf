"""The program of one process of a run: ``part CASE ROLE TASK``, the task as JSON."""

from __future__ import annotations

import importlib
import json
import sys

import trio


def main() -> None:
    """Play one role of one case."""
    case, role, task = sys.argv[1:]
    module = importlib.import_module(f"benchmarks.streams.{case}")
    trio.run(module.ROLES[role], json.loads(task))


if __name__ == "__main__":
    main()
