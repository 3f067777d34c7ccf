"""Wake-up: a condition with memory for one sleeping task, the cheapest that trio allows.

A ``trio.Event`` must be made anew for each wait; this costs half as much and is used once for each batch.
"""

from __future__ import annotations

from typing import final

import trio


@final
class Wakeup:
    """Lets one task wait until another calls ``wake``.  A wake-up with nobody waiting is remembered, once."""

    __slots__ = ("_pending", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._pending = False

    def wake(self) -> None:
        """Wake the waiting task, or make the next ``wait`` return at once."""
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)
        else:
            self._pending = True

    async def wait(self) -> None:
        """Wait for ``wake``.  Cancelling loses no wake-up: one that came first is not cancelled any more.

        Raises:
            trio.BusyResourceError: another task is waiting.
        """
        if self._task is not None:
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
