"""One attempt of a request at one member, until its outcome is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import trio
from msgspec import Struct

from iris.cluster.mesh import InboxWaiter
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.picker import Picker
from iris.patterns.request.call import Call

Outcome = kinds.Reply | kinds.Failure | str
"""Outcome of an attempt; a text says how its member was lost."""


@final
class Attempt(Struct, eq=False):
    """One attempt of a request, waiting for its outcome.

    Attributes:
        call: the request.
        identifier: id of the request, the same at every member.
        member: member that is asked.
        started: time at which it is sent, on trio's clock.
        woken: called by ``end`` where no task waits; it must not block.  None if a task is to wait.
        picker: chooser of the member; None if only this one may be asked.
        outcome: reply, failure or loss; None as long as there is none, and if the time is over.
        ended: time at which the member's answer came, if one did.
        is_over: True once it has an outcome, or its time is over.
        blocks: what its member says of the handler of this very request, which holds it up.  None: nothing.
        trouble: what was known of its member when that was given up, for an error's text.
        place: part of these texts that is for this realm only: where its member says that it stands.
        kept: why the request is not taken to another member, although this one is silent.  None: it is, or may be.
        times: seconds that it waited for a handler at its member and that this took, if it was to be timed.
    """

    call: Call
    identifier: int
    member: NodeId
    started: float
    woken: Callable[[], None] | None = None
    picker: Picker | None = None
    outcome: Outcome | None = None
    ended: float = 0.0
    is_over: bool = False
    blocks: kinds.Blocked | None = None
    trouble: str = ""
    place: str = ""
    kept: str | None = None
    times: tuple[float, float] | None = None
    _task: trio.lowlevel.Task | None = None
    _follower: InboxWaiter | None = None

    def wait(self, follower: InboxWaiter | None) -> Awaitable[object]:
        """Wait for ``end``, which has not been called; cancelling leaves nothing behind.  To be awaited at once.

        Args:
            follower: reader of the inbox while this waits; nobody else may use it then.
        """
        if follower is not None:
            return self._follow(follower)
        self._task = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._abort)  # noqa: ASYNC105 -- awaited by the caller, in one step less

    async def _follow(self, follower: InboxWaiter) -> None:
        self._follower = follower
        try:
            while not self.is_over:
                await follower.wait()
        finally:
            self._follower = None
            if follower.leads:
                follower.give_back()

    def end(self, outcome: Outcome | None) -> None:
        """Wake the task with an outcome, or without one because the time is over."""
        self.outcome = outcome
        self.is_over = True
        if self._follower is not None:
            self._follower.wake()
        elif self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        elif self.woken is not None:
            self.woken()

    def can_retry_elsewhere(self) -> bool:
        """Return whether another member may be asked as soon as this one is in doubt, and whether there is one."""
        if not self.call.idempotent or self.outcome is not None:
            return False
        return self.picker is None or self.picker.has_other(self.call.tried)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        """Forget the task: the wait is cancelled, and nobody may wake it any more."""
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
