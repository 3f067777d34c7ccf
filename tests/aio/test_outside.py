"""What goes around trio: frames, requests and their handlers are the event loop's own; calls that wait for nothing."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
import trio

import iris
import iris.aio
from iris.aio.guest import enter_guest
from tests.support.aio import RUNNERS, Runner, open_pair
from tests.support.async_tests import on_asyncio

ASKED = 100

BROADCAST = 50
"""Messages that a member takes before it is asked for more credit."""

WITHOUT = ASKED // 2
"""Steps of trio's in which the nodes may have looked after each other while so many were asked."""

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Runner:
    chosen: Runner = request.param
    return chosen


class Steps(trio.abc.Instrument):
    """Counts the steps of trio's tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


def echo_service() -> iris.Service:
    service = iris.Service("shop")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    return service


@on_asyncio("run")
async def test_a_request_takes_no_step_of_trio_at_either_end() -> None:
    async with open_pair(echo_service()) as (_, client):
        await client.request("shop", b"first")
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for number in range(ASKED):
            assert await client.request("shop", number) == number
        trio.lowlevel.remove_instrument(steps)
        assert steps.count < WITHOUT


@on_asyncio("run")
async def test_a_broadcast_that_waits_for_nothing_takes_no_step_of_trio() -> None:
    service, all_heard = echo_service(), asyncio.Event()
    heard: list[object] = []

    @service.broadcast
    def hear(message: iris.Message) -> None:
        heard.append(message.payload)
        if len(heard) == BROADCAST:
            all_heard.set()

    async with open_pair(service) as (_, client):
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        for number in range(BROADCAST):
            await client.broadcast("shop", number)
        assert steps.count == 0
        trio.lowlevel.remove_instrument(steps)
        await asyncio.wait_for(all_heard.wait(), 10)
        assert heard == list(range(BROADCAST))


@on_asyncio("run")
async def test_a_call_that_waits_for_nothing_is_over_without_a_turn_of_the_loop_but_now_and_then() -> None:
    turns = [0]
    async with iris.aio.open_node("shop") as node, node.subscribe("prices.tea") as events:
        await events.confirm([])
        asyncio.get_running_loop().call_soon(turns.append, 1)
        for _ in range(10):
            await events.confirm([])
        assert turns == [0]
        for _ in range(200):
            await events.confirm([])
        assert turns == [0, 1]


def test_a_call_within_trio_waits_for_its_turn() -> None:
    """A task that a task factory begins at once is within trio when a handler of trio's has begun it."""
    results: list[int] = []

    async def main() -> None:
        guest = await enter_guest()

        async def one() -> int:
            return 1

        async def within() -> None:
            call = guest.call(one)
            waiting = call.send(None)  # as a task would that begins at once
            assert waiting is not None
            call.close()
            results.append(1)

        try:
            await guest.call(within)
            assert await guest.call(one) == 1
        finally:
            await guest.leave()

    asyncio.run(main())
    assert results == [1]


def test_each_request_has_a_context_and_a_task_of_its_own(run: Runner) -> None:
    seen: list[str | None] = []
    tasks: list[asyncio.Task[Any] | None] = []
    variable: ContextVar[str | None] = ContextVar("variable", default=None)
    service = iris.Service("shop")

    @service.request
    async def look(request: iris.Request) -> None:
        seen.append(variable.get())
        variable.set(str(request.payload))
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(variable.get())

    async def main() -> None:
        async with open_pair(service) as (_, client):
            await client.request("shop", "a")
            await client.request("shop", "b")

    run(main())
    assert seen == [None, "a", None, "b"]
    assert tasks[0] is not tasks[1]


@on_asyncio("run")
async def test_a_task_that_is_cancelled_before_its_handler_begins_is_an_error_for_its_caller_and_frees_its_place() -> (
    None
):
    async with (
        iris.aio.open_node("shop") as node,
        node.join("shop", echo_service(), limits=iris.Limits(concurrency=2)),
    ):
        own = asyncio.current_task()
        for _ in range(5):
            known = asyncio.all_tasks()
            asking = asyncio.ensure_future(node.request("shop", b""))
            while not (serving := asyncio.all_tasks() - known - {asking, own}):
                await asyncio.sleep(0)
            for task in serving:
                task.cancel()
            with pytest.raises(iris.RemoteError, match="was cancelled, and not by Iris"):
                await asking
        assert await node.request("shop", b"still") == b"still"
        service = node.statistics().services["shop"]
        assert (service.running, service.queued, service.failed, service.served) == (0, 0, 5, 1)


@on_asyncio("run")
async def test_a_task_factory_may_await_what_it_is_given_in_a_coroutine_of_its_own() -> None:
    """As those of tools do that trace what a program does."""

    def wrapped(loop: asyncio.AbstractEventLoop, given: Any, **options: Any) -> asyncio.Task[Any]:
        async def around() -> Any:
            return await given

        return asyncio.Task(around(), loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(wrapped)
    async with (
        iris.aio.open_node("shop") as node,
        node.join("shop", echo_service(), limits=iris.Limits(concurrency=2)),
    ):
        own = asyncio.current_task()
        for number in range(5):
            assert await node.request("shop", number) == number
            known = asyncio.all_tasks()
            asking = asyncio.ensure_future(node.request("shop", b""))
            while not (serving := asyncio.all_tasks() - known - {asking, own}):
                await asyncio.sleep(0)
            for task in serving:
                task.cancel()
            with pytest.raises(iris.RemoteError, match="was cancelled, and not by Iris"):
                await asking
        service = node.statistics().services["shop"]
        assert (service.running, service.queued, service.failed, service.served) == (0, 0, 5, 5)


@on_asyncio("run")
async def test_a_membership_that_ends_waits_for_handlers_that_clean_up() -> None:
    service = iris.Service("shop")
    ended: list[float] = []
    begun = asyncio.Event()

    @service.request
    async def stay(_: iris.Request) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(asyncio.get_running_loop().time())

    async with iris.aio.open_node("client") as client:
        async with iris.aio.open_node("member", config=iris.Config(drain_timeout=0.1)) as member:
            async with member.join("shop", service):
                await client.wait_for("shop")
                asking = asyncio.ensure_future(client.request("shop", b"", timeout=30))
                await begun.wait()
            assert ended
            with pytest.raises(iris.Unknown):
                await asking
        assert member.statistics() is not None


def test_more_requests_than_places_are_served_one_after_the_other() -> None:
    service, running, most = iris.Service("shop"), [0], [0]

    @service.request
    async def count(request: iris.Request) -> object:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001)
        running[0] -= 1
        return request.payload

    async def main() -> None:
        async with (
            iris.aio.open_node("shop") as node,
            node.join("shop", service, limits=iris.Limits(concurrency=3, queue=100)),
        ):
            assert await asyncio.gather(*(node.request("shop", n) for n in range(50))) == list(range(50))
            counted = node.statistics().services["shop"]
            assert (counted.received, counted.served, counted.running, counted.queued) == (50, 50, 0, 0)

    asyncio.run(main())
    assert most == [3]
