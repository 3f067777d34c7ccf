"""Files of the machine used up: what accepts connections waits without spinning, says so once, and goes on after."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- programs of asyncio, too
import gc
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
import iris.aio
import iris.sync
from iris.doors import grant
from iris.doors.clients import ClientLimits, Clients
from iris.doors.http import open_http_door
from iris.doors.mqtt import open_mqtt_door
from iris.node.open import open_parts
from tests.support.async_tests import run_in_realm
from tests.support.doors import NOW

pytestmark = pytest.mark.long


@contextmanager
def none_left() -> Generator[None]:
    """Have this process open no file more for the length of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    taken: list[int] = []
    try:
        while True:  # numbers below that are free
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def sockets(family: int, number: int) -> list[socket.socket]:
    made = [socket.socket(family) for _ in range(number)]
    for one in made:
        one.setblocking(False)
    return made


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("scheme", ["tcp", "ws", "ipc"])
async def test_a_node_accepts_again_when_files_are_left_and_does_not_spin_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    url = {"tcp": "tcp://127.0.0.1:0", "ws": "ws://127.0.0.1:0/iris", "ipc": f"ipc://{tmp_path}/sock"}[scheme]
    async with open_parts("one", listen=[url]) as (one, one_parts), one.subscribe("news") as events:
        bound = [u for u in one_parts.mesh.listening if u.startswith(scheme)][-1]
        family: int
        address: Any
        if scheme == "ipc":
            family, address = socket.AF_UNIX, bound.removeprefix("ipc://")
        else:
            host, _, port = bound.partition("://")[2].partition("/")[0].rpartition(":")
            family, address = socket.AF_INET, (host, int(port))
        waiting = sockets(family, 8)
        with none_left():
            for s in waiting:
                s.connect_ex(address)
            await trio.sleep(0.2)
            began = time.process_time()
            await trio.sleep(1)
            assert time.process_time() - began < 0.3
            with trio.fail_after(5):
                await one.publish("news", "it rains")
                assert (await anext(events)).payload == "it rains"
        for s in waiting:
            s.close()
        async with iris.open_node("two") as two:
            with trio.fail_after(10):
                await two.publish("news", "it shines")
                assert (await anext(events)).payload == "it shines"
    told = complaints(caplog)
    assert len(told) <= 1


def test_doors_accept_again_when_files_are_left_and_say_once_that_none_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        tokens = tmp_path / "tokens"
        token = grant(tokens, "web", call=(">",), publish=(">",), subscribe=(">",))
        clients = Clients(tokens, lambda: NOW, ClientLimits())
        made = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(2)]
        async with (
            iris.aio.open_node("door") as node,
            open_http_door(node, clients, sockets=[made[0]]),
            open_mqtt_door(node, clients, sockets=[made[1]]),
        ):
            addresses = [one.getsockname() for one in made]
            await asyncio.sleep(0.3)
            waiting = [(s, a) for a in addresses for s in sockets(socket.AF_INET, 4)]
            with none_left():
                for s, a in waiting:
                    s.connect_ex(a)
                await asyncio.sleep(0.2)
                began = time.process_time()
                await asyncio.sleep(3)
                assert time.process_time() - began < 1
            for s, _ in waiting:
                s.close()
            await asyncio.sleep(1.2)
            for a in addresses:
                reader, writer = await asyncio.open_connection(*a)
                if a == addresses[0]:
                    writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                else:
                    password = token.encode()
                    body = b"\0\4MQTT\5\xc2\0\0\0\0\0\0\3web" + len(password).to_bytes(2, "big") + password
                    writer.write(bytes([0x10, len(body)]) + body)
                async with asyncio.timeout(5):
                    assert await reader.read(1)
                writer.close()

    run_in_realm(tmp_path, monkeypatch, work)
    told = complaints(caplog)
    assert len(told) <= 2


async def test_the_page_of_a_realm_is_served_again_when_files_are_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from iris.cli.operators.dash.server import open_server

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = listening.getsockname()
        async with open_server(app, listening, None):
            waiting = sockets(socket.AF_INET, 4)
            with none_left():
                for one in waiting:
                    one.connect_ex(address)
                await trio.sleep(1.5)
            for one in waiting:
                one.close()
            with trio.fail_after(10):
                stream = await trio.open_tcp_stream(*address)
                await stream.send_all(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
                await stream.aclose()
    told = complaints(caplog)
    assert len(told) == 1


def descriptors() -> set[str]:
    return {descriptor.name for descriptor in Path("/proc/self/fd").iterdir()}


@contextmanager
def few_left(number: int) -> Generator[None]:
    """Have this process open so many files more, and no others, for the length of the block."""
    spared = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
    with none_left():
        for one in spared:
            os.close(one)
        yield


def open_with_trio(number: int, **options: Any) -> None:
    async def main() -> None:
        with few_left(number), trio.fail_after(20):
            async with iris.open_node("one", **options) as node, node.subscribe("a") as events:
                await node.publish("a", 1)
                await anext(events)

    trio.run(main)


def open_with_asyncio(number: int) -> None:
    async def main() -> None:
        with few_left(number):
            async with asyncio.timeout(20), iris.aio.open_node("one") as node, node.subscribe("a") as events:
                await node.publish("a", 1)
                await anext(events)

    asyncio.run(main())


def open_with_threads(number: int) -> None:
    with few_left(number), iris.sync.open_node("one") as node, node.subscribe("a") as events:
        node.publish("a", 1)
        next(iter(events))


OPENINGS: dict[str, Callable[[int], None]] = {
    "trio": lambda number: open_with_trio(number, listen=["tcp://127.0.0.1:0"]),
    "asyncio": open_with_asyncio,
    "threads": open_with_threads,
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("front", OPENINGS)
def test_with_few_files_left_opening_a_node_works_or_says_why_and_leaves_none_open(own_home: None, front: str) -> None:
    OPENINGS[front](100)
    worked = 0
    for number in range(100):
        gc.collect()
        before = descriptors()
        try:
            OPENINGS[front](number)
        except iris.ConfigError as error:
            assert "oo many open files" in str(error)  # noqa: PT017 -- or none is raised
            worked = 0
        else:
            worked += 1
        gc.collect()  # trio and asyncio leave to it what they could not open whole
        assert descriptors() == before
        if worked == 3:
            return
    raise AssertionError("it never opens")
