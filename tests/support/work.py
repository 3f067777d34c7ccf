"""The work that a call takes, counted in lines of Python that run: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines a call runs, each as often as it does."""
    count = 0

    def follow(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def steps_run(call: Callable[[], object]) -> int:
    """Return how many instructions of Python a call runs: loops within one line count as well."""
    count = 0

    def follow(frame: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
