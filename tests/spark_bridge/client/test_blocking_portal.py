"""The portal: blocking code asks a node in a thread, and the node goes when nobody asks any more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from iris.kernel.errors import ConfigError
from iris.spark_bridge.client.blocking_portal import BlockingPortal, portal_to
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.client.connection import Connection
from iris.spark_bridge.errors import BridgeUnreachable


@pytest.fixture
def portal(realm: Path) -> Iterator[BlockingPortal]:
    portal = BlockingPortal(Connection(timeout=0.2), idle=0.2)
    yield portal
    portal.close()


async def thread_name(_: BridgeClient) -> str:
    await trio.lowlevel.checkpoint()
    return threading.current_thread().name


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def portal_threads() -> int:
    return sum(thread.name == "iris" for thread in threading.enumerate())


def test_a_call_runs_in_the_nodes_thread(portal: BlockingPortal) -> None:
    assert portal.call(thread_name) == "iris"
    assert portal.call(thread_name) == "iris"


def test_an_unused_node_is_closed_and_opened_again(portal: BlockingPortal) -> None:
    portal.call(thread_name)
    assert portal_threads() == 1
    until(lambda: portal_threads() == 0)
    assert portal.call(thread_name) == "iris"


def test_errors_come_to_the_caller(portal: BlockingPortal) -> None:
    with pytest.raises(BridgeUnreachable, match="iris bridge"):
        portal.call(lambda client: client.shards())
    with pytest.raises(ConfigError, match="/nowhere"):
        BlockingPortal(Connection(credential="/nowhere")).call(thread_name)


async def settled(_: BridgeClient) -> None:
    await trio.testing.wait_all_tasks_blocked()


async def count(_: BridgeClient) -> AsyncGenerator[int]:
    for number in range(100):
        yield number
        await trio.lowlevel.checkpoint()


def test_a_stream_gives_everything_in_order(portal: BlockingPortal) -> None:
    assert list(portal.stream(count)) == list(range(100))


def test_a_stream_is_fetched_ahead_but_not_without_bound(portal: BlockingPortal) -> None:
    fetched: list[int] = []

    async def endless(_: BridgeClient) -> AsyncGenerator[int]:
        while True:
            fetched.append(len(fetched))
            yield fetched[-1]

    stream = portal.stream(endless)
    assert next(stream) == 0
    portal.call(settled)
    assert 10 <= len(fetched) < 50, "one was taken, eight wait, and one is in the hand of the source"
    stream.close()


def test_closing_a_stream_ends_its_source(portal: BlockingPortal) -> None:
    ended = threading.Event()

    async def endless(_: BridgeClient) -> AsyncGenerator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    stream = portal.stream(endless)
    next(stream)
    stream.close()
    assert ended.wait(20)


def test_what_came_before_an_error_is_not_lost(portal: BlockingPortal) -> None:
    async def failing(_: BridgeClient) -> AsyncGenerator[int]:
        yield 1
        yield 2
        raise BridgeUnreachable("gone")

    seen: list[int] = []
    with pytest.raises(BridgeUnreachable, match="gone"):
        seen.extend(iter_and_keep(portal.stream(failing), seen))
    assert seen == [1, 2]


def iter_and_keep(stream: Iterator[int], seen: list[int]) -> Iterator[int]:
    for item in stream:
        seen.append(item)
        yield from ()


def test_a_stream_keeps_its_node_open(portal: BlockingPortal) -> None:
    stream = portal.stream(count)
    next(stream)
    other = BlockingPortal(Connection(bridge="other"), idle=0.2)
    other.call(thread_name)
    assert portal_threads() == 2
    until(lambda: portal_threads() == 1)  # the unused one is gone
    assert list(stream) == list(range(1, 100))


def test_many_threads_share_one_node(portal: BlockingPortal) -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(portal.call(thread_name))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["iris"] * 8
    assert portal_threads() <= 1


def test_a_connection_has_one_portal_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    here = portal_to(Connection(bridge="x"))
    assert portal_to(Connection(bridge="x")) is here
    assert portal_to(Connection(bridge="y")) is not here
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert portal_to(Connection(bridge="x")) is not here
