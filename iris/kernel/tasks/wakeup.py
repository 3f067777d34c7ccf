"""Wake-up: a condition with memory for one sleeping task, the cheapest that trio allows.

A ``trio.Event`` must be made anew for each wait; this costs half as much and is used once for each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import trio


@final
class Wakeup:
    """Lets one task wait until another calls ``wake``.  A wake-up with nobody waiting is remembered, once.

    Further ones before the task has its turn are the same one.
    """

    __slots__ = ("_pending", "_task", "_woken")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._woken: Callable[[], None] | None = None
        self._pending = False

    def wake(self) -> None:
        """Wake the waiting task, or call what watches, or make the next ``wait`` return at once."""
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)
        elif self._woken is not None:
            self._woken()
        else:
            self._pending = True

    def watch(self, woken: Callable[[], None]) -> Callable[[], None] | None:
        """Have a function called at each ``wake`` from now on, for what is no task of trio's; look for news first.

        Returns:
            What ends that.  None if somebody waits here already.
        """
        if self._task is not None or self._woken is not None:
            return None
        self._pending, self._woken = False, woken
        return self._unwatch

    def _unwatch(self) -> None:
        self._woken = None

    async def wait(self) -> None:
        """Wait for ``wake``.  Cancelling loses no wake-up: one that came first is not cancelled any more.

        Raises:
            trio.BusyResourceError: another task is waiting.
        """
        if self._task is not None or self._woken is not None:
            raise trio.BusyResourceError("another task is waiting here")
        if self._pending:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._pending = False
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._pending = False  # whatever came until this task has its turn, it sees now
