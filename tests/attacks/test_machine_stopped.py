"""Processes that are stopped and go on, machines without threads, memory, IPv6 or multicast: real processes."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import trio

import iris
import iris.sync
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_home")]


SHOP = """
import resource, sys, trio, iris
if len(sys.argv) > 1:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)

async def main():
    service = iris.Service("shop")

    @service.request
    async def reply(request: iris.Request):
        return request.payload

    @service.request("large")
    async def large(size: int) -> int:
        return len(bytearray(size))

    async with (
        iris.open_node("shop") as node,
        node.join("shop", service),
        node.subscribe("news") as events,
        node.state("prices") as prices,
    ):
        print("up", flush=True)
        async for event in events:
            print(event.payload, event.missed, dict(prices), flush=True)

trio.run(main)
"""


@contextmanager
def shop_process(*arguments: str) -> Generator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", SHOP, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("seconds", [1.0, 4.0, 9.0])
async def test_a_process_that_was_stopped_is_asked_and_told_again_when_it_goes_on(seconds: float) -> None:
    with shop_process() as process, trio.fail_after(60):
        assert process.stdout is not None
        async with iris.open_node("desk") as desk, desk.state("prices") as prices:
            await desk.wait_for("shop", timeout=20)
            assert await desk.request("shop", 1, timeout=10) == 1
            process.send_signal(signal.SIGSTOP)
            prices["eur"] = 1
            with trio.move_on_after(seconds):
                with pytest.raises((iris.RequestTimeout, iris.MemberLost, iris.NoSuchCluster)):
                    await desk.request("shop", 2, timeout=0.5)
                await trio.sleep_forever()
            process.send_signal(signal.SIGCONT)
            began = trio.current_time()
            await desk.wait_for("shop", timeout=20)
            assert await desk.request("shop", 3, timeout=15, options=iris.RequestOptions(idempotent=True)) == 3
            assert trio.current_time() - began < 10
            await prices.settled(2, timeout=20)
            said = ""
            while "'eur': 1" not in said:
                await desk.publish("news", "it rains")
                with trio.move_on_after(5):
                    said = await trio.to_thread.run_sync(process.stdout.readline)
            assert len(desk.statistics().links) == 1


async def test_a_process_that_stands_still_while_it_is_asked_answers_when_it_goes_on() -> None:
    with shop_process() as process, trio.fail_after(60):
        async with iris.open_node("desk") as desk:
            await desk.wait_for("shop", timeout=20)
            with subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {process.pid}"]):  # noqa: ASYNC220 -- it waits for nothing
                process.send_signal(signal.SIGSTOP)
                assert await desk.request("shop", 1, timeout=10) == 1


async def test_a_handler_without_memory_fails_and_its_process_serves_on() -> None:
    with shop_process(str(600 << 20)) as process, trio.fail_after(60):
        async with iris.open_node("desk") as desk:
            await desk.wait_for("shop", timeout=20)
            for _ in range(3):
                with pytest.raises(iris.RemoteError, match="MemoryError"):
                    await desk.request("shop", 4 << 30, operation="large", timeout=10)
                assert await desk.request("shop", 1_000, operation="large", timeout=10) == 1_000
                assert len(await desk.request("shop", bytes(900_000), timeout=10)) == 900_000
        assert process.poll() is None


def test_with_no_thread_left_opening_says_so_and_handlers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.Thread.start
    left = True

    def start(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    service = iris.Service("shop")

    @service.request
    def reply(request: iris.Request) -> Any:
        return request.payload

    with iris.sync.open_node("shop") as shop, shop.join("shop", service):
        left = False
        with pytest.raises(iris.ConfigError, match="limit of processes"), iris.sync.open_node("desk"):
            pass
        left = True
        with iris.sync.open_node("desk") as desk:
            desk.wait_for("shop")
            assert desk.request("shop", 1) == 1


async def test_a_machine_without_ipv6_has_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Socket(socket.socket):
        def __init__(self, family: int = -1, *args: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *args, **more)

    monkeypatch.setattr(socket, "socket", Socket)
    realm = create_realm(entropy=os.urandom)
    _, shop = issue_cluster(realm, "shop", entropy=os.urandom, wall_now=iris.Environment().wall_clock())
    opening = partial(iris.open_node, credential=shop, lan=False)
    with trio.fail_after(40):
        async with (
            opening(listen=["tcp://0.0.0.0:0"]) as one,
            one.subscribe("news") as events,
            opening(listen=["tcp://0.0.0.0:0"]) as two,
        ):
            await two.publish("news", "it rains")
            assert (await anext(events)).payload == "it rains"
            with pytest.raises(iris.ConfigError, match="cannot listen"):
                await opening(listen=["tcp://[::1]:0"]).__aenter__()


async def test_a_block_that_is_entered_twice_is_refused_and_the_node_goes_on() -> None:
    block = iris.open_node("a")
    async with block as node:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="entered before: call open_node once"):
                await block.__aenter__()
        async with node.subscribe("news") as events:
            await node.publish("news", "it rains")
            assert (await anext(events)).payload == "it rains"
    with pytest.raises(RuntimeError, match="entered before: call open_node once"):
        await block.__aenter__()


async def test_nodes_that_open_at_once_and_dial_each_other_have_one_link_each() -> None:
    nodes: list[iris.Node] = []
    opened = trio.Event()

    async def be(number: int) -> None:
        async with iris.open_node(f"node{number}") as node:
            nodes.append(node)
            if len(nodes) == 6:
                opened.set()
            await trio.sleep_forever()

    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(be, number)
            await opened.wait()
            while any(len(node.statistics().links) != 5 for node in nodes):  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.05)
            await trio.sleep(1)
            assert all(len(node.statistics().links) == 5 for node in nodes)
            nursery.cancel_scope.cancel()
