"""Scheduling: trio's order of tasks from a seed, a clock that jumps, and hosts whose tasks stand still.

This is the one place that knows trio's own modules.  ``_r`` draws the order in which tasks run that can run at the same
time; with ``_ALLOW_DETERMINISTIC_SCHEDULING`` that order depends on nothing else.  A task that is to run goes through
``Runner.reschedule``: those of a host that is stalled are taken out of the queue again, and put back at its end, as
SIGSTOP and SIGCONT do with a process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, final

import trio

_RUN: Final[Any] = trio._core._run

HOST: Final[ContextVar[str]] = ContextVar("HOST", default="test")
"""The simulated host that the current task runs on; ``test`` is that of the test itself."""


@final
class JumpingClock(trio.abc.Clock):
    """Virtual time: when every task waits, it is at once the time for which the first one waits."""

    autojump_threshold: Final = 0.0
    """See ``trio.testing.MockClock``."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        """See ``trio.abc.Clock``."""

    def current_time(self) -> float:
        """See ``trio.abc.Clock``."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See ``trio.abc.Clock``.  trio asks only when no task can run."""
        if deadline <= self.now:
            return 0.0
        runner = _RUN.GLOBAL_RUN_CONTEXT.runner
        if runner.entry_queue.queue or runner.entry_queue.idempotent_queue:
            return 0.0  # something is to be done before time goes on
        if deadline < math.inf and not runner.waiting_for_idle:
            self.now = float(deadline)  # tests give times as int, too
            return 0.0
        return deadline - self.now


@final
class Stalls:
    """Hosts that stand still.  Made by ``seeded``."""

    def __init__(self) -> None:
        self._held: dict[str, list[Any]] = {}

    def __contains__(self, host: str) -> bool:
        return host in self._held

    def stop(self, host: str) -> None:
        """Run no task of a host any more."""
        self._held.setdefault(host, [])

    def go_on(self, host: str) -> None:
        """Run its tasks again, and what was due meanwhile."""
        for task in self._held.pop(host, ()):
            if not task._runner.runq and task._runner.is_guest:
                task._runner.force_guest_tick_asap()
            task._runner.runq.append(task)

    def end(self) -> None:
        """Have every host go on."""
        for host in list(self._held):
            self.go_on(host)

    def hold_back(self, task: Any) -> None:
        """Take a task that was scheduled out of the queue if its host stands still."""
        if self._held:
            held = self._held.get(task.context.get(HOST))
            if held is not None:
                held.append(task._runner.runq.pop())


@contextmanager
def seeded(seed: int) -> Iterator[Stalls]:
    """Have trio draw the order of tasks from ``seed`` in the runs of this block."""
    assert hasattr(_RUN, "_ALLOW_DETERMINISTIC_SCHEDULING"), "trio has lost its switch for repeatable runs"
    stalls = Stalls()
    switch, state, reschedule = _RUN._ALLOW_DETERMINISTIC_SCHEDULING, _RUN._r.getstate(), _RUN.Runner.reschedule

    def hold_back_or_reschedule(runner: Any, task: Any, *next_send: Any) -> None:
        reschedule(runner, task, *next_send)
        stalls.hold_back(task)

    _RUN._ALLOW_DETERMINISTIC_SCHEDULING = True
    _RUN._r.seed(f"tasks {seed}")
    _RUN.Runner.reschedule = hold_back_or_reschedule
    try:
        yield stalls
    finally:
        _RUN.Runner.reschedule = reschedule
        _RUN._r.setstate(state)
        _RUN._ALLOW_DETERMINISTIC_SCHEDULING = switch
