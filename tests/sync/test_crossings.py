"""What calls of threads take of their node's thread: one crossing, and a task only to wait there."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import iris.sync
from tests.support.crossings import OPERATIONS, TASK, TIMES, Cast, Cost, counted, open_others
from tests.support.threads import inspected, portal_of

pytestmark = pytest.mark.usefixtures("own_home")


def count_all(other: iris.sync.Node) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    with (
        iris.sync.open_node("counted") as node,
        node.subscribe("own.a") as events,
        node.open_tunnel("shop", wait=30) as tunnel,
        node.confirming(timeout=60) as confirming,
        ThreadPoolExecutor(1) as thread,
    ):
        cast = Cast(node, events, tunnel, confirming, other)
        while len(inspected(node).subscribers.get("four.a", ())) < 4 or "own.a" not in inspected(other).subscribers:
            time.sleep(0.01)
        with counted(lambda: portal_of(node).calls) as found:

            def settle() -> None:
                """Have done what was posted; this call does not count."""
                portal_of(node).call_plain(int)
                found.calls -= 1

            for name, operation in OPERATIONS.items():
                before = (0, 0)
                for number in range(TIMES + 1):
                    if number == 1:
                        before = found.calls, found.tasks
                    operation.prepare(cast)
                    operation.call(cast)
                    settle()
                costs[name] = found.since(before)
            before = found.calls, found.tasks
            for number in range(TIMES):
                waiting = thread.submit(next, events)
                while found.tasks == before[1] + number:
                    time.sleep(0.001)
                other.publish("own.a", b"late")
                waiting.result(30)
            costs["next event, which comes later"] = found.since(before)
    return costs


def test_what_is_done_often_crosses_once_and_takes_no_task() -> None:
    expected = {name: operation.sync for name, operation in OPERATIONS.items()}
    with open_others() as other:
        assert count_all(other) == {**expected, "next event, which comes later": TASK}
