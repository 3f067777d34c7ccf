"""The run behind calls of threads: each call ends, whenever it comes."""

from __future__ import annotations

import pytest
import trio

from iris.kernel.tasks import OutsideCall
from iris.sync.portal import OwnRun, Portal, Waiter


def begin_after(steps: int, portal: Portal, call: OutsideCall) -> None:
    if not steps or not portal.do(begin_after, steps - 1, portal, call):
        portal.begin(call)


@pytest.mark.parametrize("steps", range(8))
def test_a_call_that_comes_while_the_run_ends_ends_as_well(steps: int) -> None:
    for _ in range(4):  # trio runs the tasks of one step in any order
        portal = OwnRun()
        portal.open()
        portal.call(trio.lowlevel.checkpoint)  # its task is kept for the next call, and ends with the run
        ended = Waiter()
        call = portal.new_call(trio.sleep_forever, ended.notify)
        portal.do(portal._scope.cancel)
        begin_after(steps, portal, call)
        portal.close()
        assert ended.notified
        with pytest.raises(trio.ClosedResourceError):
            call.result()
