"""The work that a call takes, counted in lines of Python that run: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines a call runs, each as often as it does."""
    return _traced(call, "line")


def steps_run(call: Callable[[], object]) -> int:
    """Return how many instructions of Python a call runs: loops within one line count as well."""
    return _traced(call, "opcode")


def _traced(call: Callable[[], object], counted: str) -> int:
    count = 0

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = counted == "opcode"
        count += event == counted
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
