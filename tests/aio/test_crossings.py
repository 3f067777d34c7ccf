"""What calls of asyncio take of trio: none of those that programs make often cross into it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from inspect import isawaitable

import pytest

import iris.aio
import iris.sync
from iris.testing import inspect
from tests.support.crossings import NOTHING, OPERATIONS, TIMES, Cast, Cost, counted, open_others
from tests.support.threads import inspected

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def other() -> Iterator[iris.sync.Node]:
    with open_others() as node:
        yield node


async def count_all(other: iris.sync.Node) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    async with (
        iris.aio.open_node("counted") as node,
        node.subscribe("own.a") as events,
        node.open_tunnel("shop", wait=30) as tunnel,
        node.confirming(timeout=60) as confirming,
    ):
        cast = Cast(node, events, tunnel, confirming, other)
        while len(inspect(node).subscribers.get("four.a", ())) < 4 or "own.a" not in inspected(other).subscribers:
            await asyncio.sleep(0.01)
        with counted(lambda: node._guest._calls) as found:
            for name, operation in OPERATIONS.items():
                before = (0, 0)
                for number in range(TIMES + 1):
                    if number == 1:
                        before = found.calls, found.tasks
                    await asyncio.to_thread(operation.prepare, cast)
                    came = operation.call(cast)
                    if isawaitable(came):
                        await came
                costs[name] = found.since(before)
            before = found.calls, found.tasks
            for _ in range(TIMES):
                waiting = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0.01)
                assert not waiting.done()
                other.publish("own.a", b"late")
                await waiting
            costs["next event, which comes later"] = found.since(before)
    return costs


def test_what_is_done_often_does_not_cross_into_trio(other: iris.sync.Node) -> None:
    expected = {name: operation.aio for name, operation in OPERATIONS.items()}
    assert asyncio.run(count_all(other)) == {**expected, "next event, which comes later": NOTHING}
