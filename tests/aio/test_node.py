"""Nodes in an asyncio event loop: every pattern, deadlines, cancelling, and the ways in which things end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import iris
import iris.aio
from iris.aio.guest import _here
from tests.support.aio import RUNNERS, Runner, open_guest_cast, open_pair, use_virtual_clock
from tests.support.async_tests import on_asyncio

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(params=RUNNERS)
def run(request: pytest.FixtureRequest) -> Runner:
    chosen: Runner = request.param
    return chosen


@dataclass
class Query:
    item: str
    count: int = 1


def shop_service() -> iris.Service:
    service = iris.Service("shop")

    @service.request
    async def echo(request: iris.Request) -> object:
        await asyncio.sleep(0)
        return request.payload

    @service.request("price")
    async def price(query: Query) -> object:
        await asyncio.sleep(0)
        return {"item": query.item, "price": 3 * query.count}

    @service.request("plain")
    def plain(request: iris.Request) -> object:
        return [request.payload, threading.current_thread() is threading.main_thread()]

    @service.request("thread", thread=True)
    def in_thread(request: iris.Request) -> object:
        return [request.payload, threading.current_thread() is threading.main_thread()]

    @service.request("fail")
    async def fail(request: iris.Request) -> object:
        await asyncio.sleep(0)
        raise KeyError(request.payload)

    @service.request("busy")
    async def busy(_: iris.Request) -> object:
        await asyncio.sleep(60)
        raise AssertionError("it is cancelled")

    @service.tunnel
    async def echo_all(tunnel: iris.aio.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    return service


async def until(condition: Callable[[], bool], pause: float = 0.005) -> None:
    """Look until something holds; the time limit of the test ends it."""
    while not condition():
        await asyncio.sleep(pause)


def test_every_pattern(run: Runner) -> None:
    heard: list[object] = []

    async def main() -> None:
        service = shop_service()
        told = asyncio.Event()

        @service.broadcast
        async def hear(message: iris.Message) -> None:
            await asyncio.sleep(0)
            heard.append(message.payload)
            told.set()

        async with open_pair(service) as (member, client):
            assert await client.request("shop", b"hello") == b"hello"
            assert await client.request("shop", Query("tea", 2), operation="price") == {"item": "tea", "price": 6}
            assert await client.request("shop", 1, operation="plain") == [1, True]
            assert await client.request("shop", 1, operation="thread") == [1, False]
            with pytest.raises(iris.RemoteError, match="KeyError"):
                await client.request("shop", "x", operation="fail")
            with pytest.raises(iris.NoSuchCluster):
                await client.request("nobody", b"")
            await client.broadcast("shop", b"all")
            await asyncio.wait_for(told.wait(), 5)
            async with client.survey("shop", 5) as answers:
                assert [answer.payload async for answer in answers] == [5]
            assert (answers.ended_by, answers.missing, answers.errors) == ("all", (), {})
            async with member.subscribe("orders.>") as events:
                for number in range(2000):
                    await client.publish("orders.new", b"%d" % number)
                assert [(await anext(events)).payload for _ in range(1000)] == [b"%d" % n for n in range(1000)]
                taken: list[iris.Event] = []
                while len(taken) < 1000:
                    taken += await events.receive_batch(300)
                assert events.statistics().delivered == 2000
                await client.publish("orders.last", 3, headers={"a": "b"}, key="k")
                assert (await anext(events)).headers == {"a": "b"}
            await client.retain("last.value", 1, expires=60)
            async with member.subscribe("last.*") as events:
                value = await anext(events)
                assert (value.payload, value.retained, set(value.headers)) == (1, True, {"expires"})
            few = iris.SubscriptionLimits(events=4)
            async with member.subscribe("orders.>", overflow="fail", limits=few) as events:
                while not events.statistics().too_slow:
                    await client.publish("orders.more", b"")
                    await asyncio.sleep(0)
                for take in (events.__anext__, events.receive_batch):
                    with pytest.raises(iris.SubscriberTooSlow):
                        await take()
            async with client.open_tunnel("shop") as tunnel:
                await tunnel.send([1])
                assert await tunnel.receive() == [1]
                await tunnel.send(b"x" * 100_000)
                await tunnel.send_eof()
                assert [len(message) async for message in tunnel] == [100_000]
                with pytest.raises(iris.aio.EndOfChannel):
                    await tunnel.receive()
            async with client.watch("shop") as changes:
                assert (await anext(changes)).kind == "joined"
            assert [found.node for found in client.members("shop")] == [member.id]
            assert client.clusters() == ("shop",)
            assert member.statistics().services["shop"].served >= 5

    run(main())
    assert heard == [b"all"]


def test_confirmed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    use_virtual_clock(monkeypatch)

    async def main() -> None:
        async with open_guest_cast() as (_, cast), cast.shop.confirming() as events:
            for number in range(10):
                await events.publish("kept.a", number)
            await events.wait_confirmed()
            assert (events.published, events.confirmed) == (10, 10)

    asyncio.run(main())


def test_files_go_through_tunnels(tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(b"file" * 100_000)
    service = iris.Service("files")
    done = threading.Event()

    @service.tunnel
    async def take(tunnel: iris.aio.Tunnel) -> None:
        await tunnel.receive_file(tmp_path / "received")
        done.set()

    async def main() -> None:
        async with open_pair(service) as (_, client), client.open_tunnel("files") as tunnel:
            summary = await tunnel.send_file(tmp_path / "sent")
            assert summary.size == 400_000

    asyncio.run(main())
    assert done.is_set()
    assert (tmp_path / "received").read_bytes() == (tmp_path / "sent").read_bytes()


def test_a_failure_of_a_handler_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with open_pair(shop_service()) as (_, client):
            with pytest.raises(iris.RemoteError):
                await client.request("shop", "no such key", operation="fail")

    with caplog.at_level(logging.ERROR, "iris.handlers"):
        asyncio.run(main())
    (record,) = [one for one in caplog.records if one.name == "iris.handlers"]
    assert record.exc_info is not None
    assert "no such key" in repr(record.exc_info[1])


# -- deadlines and what a handler leaves running ----------------------------------------------------------------


def test_a_handler_is_cancelled_at_its_deadline_and_tells_those_whom_it_asks() -> None:
    ended: list[str] = []
    left: list[float] = []

    async def main() -> None:
        inner, outer = iris.Service("inner"), iris.Service("outer")

        @inner.request
        async def wait(request: iris.Request) -> None:
            left.append(request.deadline - trio.current_time())
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("inner")

        async with iris.aio.open_node("a") as a, a.join("inner", inner), iris.aio.open_node("b") as b:

            @outer.request
            async def ask(_: iris.Request) -> object:
                try:
                    return await b.request("inner", b"", timeout=60)
                finally:
                    ended.append("outer")

            async with b.join("outer", outer), iris.aio.open_node("c") as c:
                await b.wait_for("inner")
                await c.wait_for("outer")
                with pytest.raises(iris.RequestTimeout):
                    await c.request("outer", b"", timeout=0.3)
                await until(lambda: len(ended) == 2)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert sorted(ended) == ["inner", "outer"]
    assert left[0] < 0.4


def test_what_a_handler_leaves_running_outlives_its_deadline() -> None:
    async def main() -> None:
        slow, quick = iris.Service("slow"), iris.Service("quick")
        go_on = asyncio.Event()
        tasks: list[asyncio.Future[Any]] = []

        @slow.request
        async def wait(_: iris.Request) -> object:
            await go_on.wait()
            return b"late"

        async with iris.aio.open_node("a") as a, a.join("slow", slow), iris.aio.open_node("b") as b:

            @quick.request
            async def begin(_: iris.Request) -> object:
                tasks.append(asyncio.ensure_future(b.request("slow", b"", timeout=30)))
                await asyncio.sleep(0.01)
                return b"begun"

            async with b.join("quick", quick):
                await b.wait_for("slow")
                assert await a.request("quick", b"", timeout=0.2, wait=5) == b"begun"
                await asyncio.sleep(0.4)
                go_on.set()
                assert await tasks[0] == b"late"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_requests_in_a_handler_have_the_priority_of_what_is_served() -> None:
    from iris.patterns.priority import Priority, served_priority

    seen: list[int] = []

    async def main() -> None:
        service = iris.Service("shop")

        @service.request
        async def look(_: iris.Request) -> None:
            await asyncio.sleep(0)
            seen.append(served_priority.get())

        async with open_pair(service) as (_, client):
            await client.request("shop", b"", options=iris.RequestOptions(priority="high"))
            await client.request("shop", b"", options=iris.RequestOptions(priority="low"))

    asyncio.run(main())
    assert seen == [Priority.HIGH, Priority.LOW]


# -- cancelling -------------------------------------------------------------------------------------------------


def test_a_timeout_and_a_task_group_cancel_what_they_should() -> None:
    stopped: list[str] = []

    async def main() -> None:
        service = iris.Service("shop")
        begun = asyncio.Event()

        @service.request
        async def wait(_: iris.Request) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append("request")

        async with open_pair(service) as (_, client):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.request("shop", b"", timeout=30)
            begun.clear()

            async def ask_and_fail() -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(client.request("shop", b"", timeout=30))
                    await begun.wait()
                    raise ValueError("the body")

            with pytest.raises(ExceptionGroup) as raised:
                await ask_and_fail()
            assert raised.group_contains(ValueError, match="the body")
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await until(lambda: len(stopped) == 2)
            assert client.statistics().requests.waiting == 0

    asyncio.run(asyncio.wait_for(main(), 20))


@on_asyncio()
async def test_a_task_that_is_cancelled_twice_still_waits_for_the_end() -> None:
    async with open_pair(shop_service()) as (_, client):
        task = asyncio.ensure_future(client.request("shop", b"", operation="busy", timeout=30))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert client.statistics().requests.waiting == 0


def holds_something(source: Any) -> bool:
    """Return whether something has come; it is kept where it came until its taker runs."""
    if isinstance(source, iris.aio.Tunnel):
        return bool(source._inner._end.machine.receiving.messages)
    assert isinstance(source, iris.aio.Subscription)
    return bool(source._inner._runs)


@on_asyncio()
async def test_what_comes_in_the_moment_of_cancelling_is_kept() -> None:
    async with (
        open_pair(shop_service()) as (member, client),
        client.subscribe("orders.*") as events,
        client.open_tunnel("shop") as tunnel,
    ):
        sources: tuple[tuple[Any, Any], ...] = (
            (events, partial(member.publish, "orders.a")),
            (tunnel, tunnel.send),
        )
        for source, send in sources:
            taker = asyncio.ensure_future(anext(source))
            await asyncio.sleep(0.05)
            assert not taker.done()
            await send(1)
            await until(partial(holds_something, source), 0)  # and its taker does not know yet
            taker.cancel()
            await asyncio.wait([taker])
            if taker.cancelled():
                came = await asyncio.wait_for(anext(source), 5)
            else:
                came = taker.result()
            assert getattr(came, "payload", came) == 1
            await send(2)
            came = await asyncio.wait_for(anext(source), 5)
            assert getattr(came, "payload", came) == 2


def test_an_error_in_a_block_leaves_it_as_with_trio() -> None:
    ends: list[object] = []

    async def main() -> None:
        service = iris.Service("shop")

        @service.tunnel
        async def take(tunnel: iris.aio.Tunnel) -> None:
            try:
                await tunnel.receive()
            except iris.TunnelBroken as error:
                ends.append(str(error))
                raise

        async with open_pair(service) as (_, client):
            with pytest.raises(ValueError, match="mine"):
                async with client.open_tunnel("shop"):
                    raise ValueError("mine")
            await until(lambda: bool(ends))

    asyncio.run(asyncio.wait_for(main(), 20))
    assert "ValueError" in str(ends[0])
    assert "mine" not in str(ends[0])


# -- how things end ---------------------------------------------------------------------------------------------


async def to_the_end(changes: AsyncIterator[iris.Change]) -> None:
    """Wait for changes, of which there may be some of the load, until there can be no more."""
    async for _ in changes:
        pass
    raise EOFError


def test_a_hundred_tasks_that_wait_each_get_an_error_when_the_node_is_closed() -> None:
    async def main() -> None:
        service = shop_service()
        async with iris.aio.open_node("member") as member, member.join("shop", service):
            async with iris.aio.open_node("client") as client:
                await client.wait_for("shop")
                async with client.subscribe("orders.*") as events, client.watch("shop") as changes:
                    await anext(changes)
                    waits = [
                        asyncio.ensure_future(client.request("shop", b"", operation="busy", timeout=30))
                        for _ in range(98)
                    ]
                    waits += [asyncio.ensure_future(anext(events)), asyncio.ensure_future(to_the_end(changes))]
                    await asyncio.sleep(0.1)
                    assert not any(one.done() for one in waits)
                    closing = client
                    # The block is left while they wait: by another task, as a server that is stopped does.
            done, pending = await asyncio.wait(waits, timeout=5)
            assert not pending
            assert len(done) == 100
            errors = [one.exception() for one in waits]
            assert all(isinstance(error, Exception) for error in errors), errors
            with pytest.raises(iris.aio.ClosedResourceError, match="this node is closed"):
                await closing.request("shop", b"")
            assert await member.request("shop", b"still", wait=5) == b"still"

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_node_that_fails_ends_its_block_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object) -> None:
        await trio.sleep(0.1)
        raise OSError("the disk is gone")

    monkeypatch.setattr("iris.patterns.service.tunnels.Tunnels.run", broken)
    ended: list[str] = []

    async def body() -> None:
        async with iris.aio.open_node("a"):
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("body")

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await body()
        assert raised.group_contains(OSError, match="the disk is gone")
        assert ended == ["body"]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # nothing is left that would be cancelled

    asyncio.run(main())


def test_a_loop_that_ends_with_a_node_open_says_goodbye() -> None:
    opened: list[iris.aio.Node] = []
    blocks: list[object] = []

    async def forget() -> None:
        block = iris.aio.open_node("a")
        opened.append(await block.__aenter__())
        blocks.append(block)

    asyncio.run(forget())
    assert _here.guest is None
    with pytest.raises(iris.aio.ClosedResourceError):
        asyncio.run(opened[0].request("a"))

    asyncio.run(open_and_ask())
    blocks.clear()
    gc.collect()


def test_a_loop_that_is_closed_with_a_node_open_does_not_keep_the_thread() -> None:
    loop = asyncio.new_event_loop()
    block = iris.aio.open_node("a")
    node = loop.run_until_complete(block.__aenter__())
    loop.close()

    asyncio.run(open_and_ask())
    with pytest.raises(iris.aio.ClosedResourceError):
        asyncio.run(node.request("a"))
    for task in asyncio.all_tasks(loop):  # which nobody can run any more
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del block
    gc.collect()


def test_a_loop_that_is_closed_while_a_handler_cleans_up_does_not_keep_the_thread() -> None:
    loop = asyncio.new_event_loop()
    service = iris.Service("shop")

    @service.request
    async def clean_up(_: iris.Request) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(60)

    async def begin() -> list[object]:
        block = iris.aio.open_node("a")
        node = await block.__aenter__()
        membership = node.join("shop", service)
        await membership.__aenter__()
        with pytest.raises(iris.RequestTimeout):
            await node.request("shop", b"", timeout=0.1)
        return [block, membership]

    blocks = loop.run_until_complete(begin())
    tasks = asyncio.all_tasks(loop)
    loop.close()
    asyncio.run(open_and_ask())
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody can run it any more
        task.get_coro().close()
    del blocks


async def open_and_ask() -> None:
    async with open_pair(shop_service()) as (_, client):
        assert await client.request("shop", 1) == 1


def test_async_generators_of_trio_and_of_the_loop_are_kept_apart() -> None:
    """In an event loop that is run several times, and ends as those do that are run by hand."""
    loop = asyncio.new_event_loop()
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("numbers")

    async def begin() -> list[Any]:
        block = iris.aio.open_node("a")
        return [block, await block.__aenter__()]

    async def subscribe(node: iris.aio.Node) -> list[Any]:
        block = node.subscribe("orders.*")
        return [block, await block.__aenter__()]

    async def abandon() -> None:
        async for _ in numbers():
            break
        gc.collect()
        await asyncio.sleep(0.01)

    opened = loop.run_until_complete(begin())
    subscribed = loop.run_until_complete(subscribe(opened[1]))
    loop.run_until_complete(abandon())
    assert ended == ["numbers"]
    loop.run_until_complete(loop.shutdown_asyncgens())  # which is the end of the node, too
    with pytest.raises(iris.aio.ClosedResourceError):
        loop.run_until_complete(opened[1].request("a"))
    loop.run_until_complete(subscribed[0].__aexit__(None, None, None))
    loop.close()
    asyncio.run(open_and_ask())


def test_the_end_of_a_loop_with_a_node_open_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    blocks: list[object] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with asyncio.Runner() as runner:
                block = iris.aio.open_node("a")
                runner.run(block.__aenter__())
                blocks.append(block)
    assert caplog.records == []


@on_asyncio()
async def test_all_other_tasks_can_be_cancelled_and_waited_for_in_a_node_s_block() -> None:
    async with open_pair(shop_service()) as (_, client):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 5)
        assert await client.request("shop", 2) == 2


BY_HAND = """
import asyncio, iris, iris.aio
service = iris.Service("shop")

@service.request
async def echo(request):
    return request.payload

async def main():
    async with iris.aio.open_node("a") as node, node.join("shop", service):
        print("go", flush=True)
        while True:
            await node.request("shop", 5)

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
loop.run_until_complete(loop.shutdown_asyncgens())
"""


def test_ctrl_c_ends_a_loop_that_is_run_by_hand() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BY_HAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "go\n"
            program.send_signal(signal.SIGINT)
            said, _ = program.communicate(timeout=60)
            assert (said, program.returncode) == ("interrupted\n", 0)
        finally:
            program.kill()


@pytest.mark.parametrize(("times", "told"), [(1, "went on\ninterrupted\nended\n"), (2, "interrupted\nended\n")])
def test_ctrl_c_strikes_between_two_callbacks_of_a_loop_and_a_second_one_at_once(times: int, told: str) -> None:
    program = f"""
import asyncio, signal, iris.aio

def strike():
    for _ in range({times}):
        signal.raise_signal(signal.SIGINT)
    print("went on", flush=True)

async def main():
    async with iris.aio.open_node("a"):
        asyncio.get_running_loop().call_soon(strike)
        await asyncio.sleep(60)

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
loop.run_until_complete(loop.shutdown_asyncgens())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (told, 0), done.stderr


def test_a_handler_that_ends_the_program_ends_it() -> None:
    service = iris.Service("shop")

    @service.request
    async def leave(_: iris.Request) -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    async def main() -> None:
        async with open_pair(service) as (_, client):
            await client.request("shop", b"")

    with pytest.raises(SystemExit) as raised:
        asyncio.run(main())
    assert raised.value.code == 3


@on_asyncio()
async def test_a_handler_that_is_cancelled_before_it_has_begun_leaves_no_warning() -> None:
    async with open_pair(shop_service()) as (_, client):
        for steps in range(40):
            asking = asyncio.ensure_future(client.request("shop", b""))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
    gc.collect()


@on_asyncio()
async def test_a_block_is_entered_once() -> None:
    block = iris.aio.open_node("a")
    async with block:
        with pytest.raises(RuntimeError, match="call open_node once for each block"):
            await block.__aenter__()


@on_asyncio()
async def test_what_tells_of_a_closed_node_still_does() -> None:
    async with open_pair(shop_service()) as (_, client):
        await client.request("shop", b"")
    assert client.statistics().requests.answered == 1
    assert client.clusters() == ("shop",)
    assert len(client.members("shop")) == 1


def test_several_loops_one_after_the_other() -> None:
    async def main() -> None:
        async with iris.aio.open_node("a"):
            pass
        async with iris.aio.open_node("a"), iris.aio.open_node("b"):
            pass

    for _ in range(3):
        asyncio.run(main())
    assert _here.guest is None


def test_use_from_elsewhere_says_what_to_do() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_pair(shop_service()) as (_, client):
            with pytest.raises(RuntimeError, match=r"another thread.*run_coroutine_threadsafe"):
                await asyncio.to_thread(asyncio.run, client.request("shop", b""))
            future = asyncio.run_coroutine_threadsafe(client.request("shop", 2), loop)
            assert await asyncio.wrap_future(future) == 2

    asyncio.run(main())

    async def in_trio() -> None:
        with pytest.raises(RuntimeError, match=r"use iris\.open_node|there is none"):
            async with iris.aio.open_node("a"):
                pass

    trio.run(in_trio)


def test_a_request_from_another_loop_of_the_thread_is_not_sent() -> None:
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    block = iris.aio.open_node("a")
    node = loop.run_until_complete(block.__aenter__())

    async def ask() -> None:
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            await node.request("a", b"")

    other.run_until_complete(ask())
    other.close()
    assert node.statistics().requests.sent == 0
    loop.run_until_complete(block.__aexit__(None, None, None))
    loop.close()


@on_asyncio()
async def test_a_request_whose_coroutine_is_dropped_leaves_nothing() -> None:
    async with open_pair(shop_service()) as (_, client):
        asking = client.request("shop", b"", operation="busy", timeout=30)
        asking.send(None)
        assert client.statistics().requests.waiting == 1
        asking.close()
        assert client.statistics().requests.waiting == 0


@on_asyncio()
async def test_a_service_handler_that_cancels_itself_is_an_error_for_its_caller() -> None:
    service = iris.Service("shop")

    @service.request
    async def give_up(_: iris.Request) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with open_pair(service) as (_, client):
        with pytest.raises(iris.RemoteError, match="was cancelled"):
            await client.request("shop", b"")


@pytest.mark.parametrize("wait", [np.array([1, 2]), Decimal("sNaN"), "soon"])
def test_a_wait_that_is_no_number_is_refused_in_one_line(wait: Any) -> None:
    async def main() -> None:
        async with iris.aio.open_node("desk", listen=[]) as desk:
            for came in (desk.request("shop", 1, wait=wait), desk.broadcast("shop", 1, wait=wait)):
                with pytest.raises(iris.ConfigError, match=r"^wait is .* use a number of seconds"):
                    await came

    asyncio.run(main())
