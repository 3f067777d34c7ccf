"""Nodes of programs without an event loop: every pattern, threads, Ctrl-C, forks, and the ways in which things end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import iris
import iris.sync
from tests.support.threads import portal_of

pytestmark = pytest.mark.usefixtures("own_home")


@dataclass
class Query:
    item: str
    count: int = 1


def shop_service() -> iris.Service:
    service = iris.Service("shop")

    @service.request
    def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("price")
    def price(query: Query) -> object:
        return {"item": query.item, "price": 3 * query.count}

    @service.request("thread", thread=True)
    def in_thread(_: iris.Request) -> object:
        return threading.current_thread().name

    @service.request("fail")
    def fail(request: iris.Request) -> object:
        raise KeyError(request.payload)

    @service.tunnel
    def echo_all(tunnel: iris.sync.Tunnel) -> None:
        for message in tunnel:
            tunnel.send(message)

    return service


@contextmanager
def open_pair(service: iris.Service) -> Iterator[tuple[iris.sync.Node, iris.sync.Node]]:
    """Open a member of a service's cluster, and a client."""
    with (
        iris.sync.open_node("member") as member,
        member.join(service.name, service),
        iris.sync.open_node("client") as client,
    ):
        client.wait_for(service.name)
        yield member, client


def until(condition: Callable[[], bool]) -> None:
    """Look until something holds."""
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_every_pattern(tmp_path: Path) -> None:
    service = shop_service()
    heard: list[object] = []
    told = threading.Event()

    @service.broadcast
    def hear(message: iris.Message) -> None:
        heard.append(message.payload)
        told.set()

    with open_pair(service) as (member, client):
        assert client.request("shop", b"hello") == b"hello"
        assert client.request("shop", Query("tea", 2), operation="price") == {"item": "tea", "price": 6}
        assert "MainThread" not in client.request("shop", 1, operation="thread")
        with pytest.raises(iris.RemoteError, match="KeyError"):
            client.request("shop", "x", operation="fail")
        with pytest.raises(iris.NoSuchCluster):
            client.request("nobody", b"")
        client.broadcast("shop", b"all")
        assert told.wait(10)
        with client.survey("shop", 5) as answers:
            assert [answer.payload for answer in answers] == [5]
        assert (answers.ended_by, answers.missing, answers.errors) == ("all", (), {})
        with member.subscribe("orders.>") as events, member.subscribe("orders.>", group="g") as grouped:
            for number in range(2000):
                client.publish("orders.new", b"%d" % number)
            assert [next(events).payload for _ in range(1000)] == [b"%d" % n for n in range(1000)]
            taken: list[iris.Event] = []
            while len(taken) < 1000:
                taken += events.receive_batch(300)
            assert next(grouped).payload == b"0"
            assert grouped.statistics().delivered == 1  # what waits in a thread's buffer could go to nobody else
            client.publish("orders.last", 3, headers={"a": "b"}, key="k")
            assert next(events).headers == {"a": "b"}
        with client.open_tunnel("shop") as tunnel:
            tunnel.send([1])
            assert tunnel.receive() == [1]
            tunnel.send(b"x" * 100_000)
            tunnel.send_eof()
            assert [len(message) for message in tunnel] == [100_000]
            with pytest.raises(iris.sync.EndOfChannel):
                tunnel.receive()
        with client.watch("shop") as changes:
            assert next(changes).kind == "joined"
        assert [found.node for found in client.members("shop")] == [member.id]
        assert member.statistics().services["shop"].served >= 3
    assert heard == [b"all"]


def test_many_threads_use_one_node() -> None:
    with open_pair(shop_service()) as (_, client), ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(partial(client.request, "shop"), range(1000)))
    assert replies == list(range(1000))


def test_handlers_run_in_threads_and_ask_others_within_their_deadline() -> None:
    inner, outer = iris.Service("inner"), iris.Service("outer")
    left: list[float] = []
    errors: list[BaseException] = []

    async def serve(started: threading.Event, stop: threading.Event) -> None:
        @inner.request
        async def wait(request: iris.Request) -> None:
            left.append(request.deadline - trio.current_time())
            await trio.sleep(60)

        async with iris.open_node("a") as a, a.join("inner", inner):
            started.set()
            await trio.to_thread.run_sync(stop.wait)

    started, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=trio.run, args=(serve, started, stop))
    thread.start()
    try:
        assert started.wait(30)
        with iris.sync.open_node("b") as b, iris.sync.open_node("c") as c:

            @outer.request
            def ask(_: iris.Request) -> object:
                try:
                    return b.request("inner", b"", timeout=60)
                except BaseException as error:
                    errors.append(error)
                    raise

            b.wait_for("inner")
            with b.join("outer", outer):
                c.wait_for("outer")
                with pytest.raises(iris.RequestTimeout):
                    c.request("outer", b"", timeout=0.3)
                until(lambda: bool(errors))
    finally:
        stop.set()
        thread.join()
    assert isinstance(errors[0], iris.RequestTimeout)
    assert left[0] < 0.4


def test_a_handler_of_one_node_asks_by_another_one() -> None:
    """Each has a run, and a clock, of its own."""
    passing = iris.Service("passing")
    with open_pair(shop_service()) as (_, client), iris.sync.open_node("b") as other:

        @passing.request
        def pass_on(request: iris.Request) -> object:
            return client.request("shop", request.payload)

        with other.join("passing", passing):
            for _ in range(3):
                assert client.request("passing", 7, wait=5) == 7


def test_a_membership_that_fails_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    service = iris.Service("shop")

    @service.request
    def leave(_: iris.Request) -> None:
        raise KeyboardInterrupt

    def serve_and_ask() -> None:
        with open_pair(service) as (_, client):
            with pytest.raises(iris.IrisError):
                client.request("shop", b"", timeout=1)
            until(lambda: any(record.levelname == "CRITICAL" for record in caplog.records))

    with pytest.raises(KeyboardInterrupt):
        serve_and_ask()


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_a_handler_that_exits_fails_and_its_node_serves_on(error: type[BaseException]) -> None:
    service = shop_service()

    @service.request("leave")
    def leave(_: iris.Request) -> None:
        raise error

    with open_pair(service) as (_, client):
        for _ in range(2):
            with pytest.raises(iris.RemoteError, match=error.__name__):
                client.request("shop", b"", operation="leave")
        assert client.request("shop", b"still here") == b"still here"


def test_what_tells_of_a_closed_node_still_does() -> None:
    with open_pair(shop_service()) as (_, client):
        client.request("shop", b"")
    assert client.statistics().requests.answered == 1
    assert client.clusters() == ("shop",)
    assert len(client.members("shop")) == 1


def test_a_block_is_entered_once() -> None:
    block = iris.sync.open_node("a")
    with block, pytest.raises(RuntimeError, match="call open_node once for each block"):
        block.__enter__()


def test_async_handlers_are_refused() -> None:
    service = iris.Service("shop")

    @service.request
    async def answer(_: iris.Request) -> None: ...

    with (
        iris.sync.open_node("member") as member,
        pytest.raises(iris.ConfigError, match=r"answer is an async def: with iris\.sync use def"),
        member.join("shop", service),
    ):
        pass


def test_an_error_in_a_block_leaves_it_as_with_trio() -> None:
    ends: list[str] = []
    service = iris.Service("shop")

    @service.tunnel
    def take(tunnel: iris.sync.Tunnel) -> None:
        try:
            tunnel.receive()
        except iris.TunnelBroken as error:
            ends.append(str(error))
            raise

    with open_pair(service) as (_, client):
        with pytest.raises(ValueError, match="mine"), client.open_tunnel("shop"):
            raise ValueError("mine")
        until(lambda: bool(ends))
    assert "ValueError" in ends[0]
    assert "mine" not in ends[0]


def test_waiting_threads_each_get_an_error_when_the_node_is_closed() -> None:
    service = iris.Service("shop")
    go_on = threading.Event()

    @service.request(thread=True)
    def wait(_: iris.Request) -> None:
        go_on.wait(30)

    errors: list[BaseException] = []

    def ask(node: iris.sync.Node) -> None:
        try:
            node.request("shop", b"", timeout=30)
        except iris.IrisError as error:
            errors.append(error)

    try:
        with iris.sync.open_node("member") as member, member.join("shop", service):
            with iris.sync.open_node("client") as client:
                client.wait_for("shop")
                threads = [threading.Thread(target=ask, args=(client,)) for _ in range(30)]
                for thread in threads:
                    thread.start()
                until(lambda: client.statistics().requests.waiting == 30)
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            with pytest.raises(iris.sync.ClosedResourceError, match="this node is closed"):
                client.request("shop", b"")
            go_on.set()
    finally:
        go_on.set()
    assert len(errors) == 30


def test_a_call_from_the_node_s_own_thread_is_refused() -> None:
    told: list[str] = []
    with iris.sync.open_node("a") as node:

        async def call_it() -> None:
            try:
                node.clusters()
            except RuntimeError as error:
                told.append(str(error))

        portal_of(node).call(call_it)
    assert told == ["this is the thread of the node itself, where nothing may wait: call it from another"]


FORKING = """
import os, iris, iris.sync
with iris.sync.open_node("a") as node:
    child = os.fork()
    if not child:
        try:
            node.request("nobody", b"")
        except RuntimeError as error:
            print(error)
        try:
            with iris.sync.open_node("b"):
                pass
        except iris.ConfigError as error:
            print(error)
    else:
        print("child", os.waitpid(child, 0)[1])
print("end")
"""


def test_a_forked_process_is_told_to_open_its_node_after_the_fork() -> None:
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[:60] for line in done.stdout.splitlines()] == [
        "this node belongs to the process that this one was forked fr",
        "a process that was forked after its parent had opened a node",
        "end",
        "child 0",
        "end",
    ]


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program; it is killed at the end of the block if it has not ended."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


INTERRUPTED = """
import sys, iris.sync
with iris.sync.open_node("client") as node, node.subscribe("never.*") as events:
    try:
        print("waiting", flush=True)
        next(events)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""


def test_ctrl_c_ends_a_wait_at_once() -> None:
    with running(INTERRUPTED) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        assert program.wait(30) == -signal.SIGINT or program.returncode == 1
        said = program.stderr.read()
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Internal" not in said


INTERRUPTED_REQUEST = """
import os, signal, threading, iris, iris.sync
shop, over = iris.Service("shop"), threading.Event()

@shop.request
def hang(request: iris.Request) -> object:
    os.kill(os.getpid(), signal.SIGINT)
    over.wait(30)
    return request.payload

with iris.sync.open_node("member") as member, member.join("shop", shop), iris.sync.open_node("client") as client:
    client.wait_for("shop")
    try:
        client.request("shop", b"", timeout=30)
    except KeyboardInterrupt:
        figures = client.statistics().requests
        print(figures.waiting, figures.expired)
        over.set()
"""


def test_ctrl_c_gives_a_request_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_REQUEST], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0 1\n"), done.stderr


STUCK = """
import sys, threading, trio, iris.sync
from iris.patterns.service.tunnels import Tunnels

async def never(self):
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

Tunnels.run = never  # a part that does not end
with iris.sync.open_node("client") as node:
    try:
        print("waiting", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
"""


def test_a_second_ctrl_c_does_not_wait() -> None:
    with running(STUCK) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        ends = time.monotonic() + 30
        while program.poll() is None and time.monotonic() < ends:
            program.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert program.returncode is not None


STARTING = """
import os, signal, threading, time, trio, iris.sync
from iris.sync import portal

run, interrupted = trio.run, threading.Event()

def run_late(main):  # Ctrl-C comes when the thread has begun, and trio has not
    os.kill(os.getpid(), signal.SIGINT)
    interrupted.wait(10)
    run(main)

def closing(self, *, wait=True, close=portal.OwnRun.close):
    interrupted.set()
    close(self, wait=wait)

trio.run, portal.OwnRun.close = run_late, closing
with iris.sync.open_node():
    pass
"""


def test_ctrl_c_while_the_node_s_thread_starts_ends_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, -signal.SIGINT)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_program_that_ends_with_a_node_open_says_goodbye() -> None:
    program = "import iris.sync\nblock = iris.sync.open_node('a')\nnode = block.__enter__()\nprint(node.id)\n"
    with iris.sync.open_node("b") as other, other.watch("a") as _:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() not in [node.node for node in other.nodes()]


def test_a_node_that_fails_ends_its_block_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object) -> None:
        await trio.sleep(0.1)
        raise OSError("the disk is gone")

    monkeypatch.setattr("iris.patterns.service.tunnels.Tunnels.run", broken)

    def body() -> None:
        with iris.sync.open_node("a") as node:
            until(lambda: portal_of(node).calls is None or is_closed(node))

    with pytest.raises(ExceptionGroup) as raised:
        body()
    assert raised.group_contains(OSError, match="the disk is gone")


def is_closed(node: iris.sync.Node) -> bool:
    try:
        node.request("nobody", b"")
    except iris.sync.ClosedResourceError:
        return True
    except iris.NoSuchCluster:
        pass
    return False


@pytest.mark.parametrize("wait", [np.array([1, 2]), Decimal("sNaN"), "soon"])
def test_a_wait_that_is_no_number_is_refused_in_one_line(wait: Any) -> None:
    with iris.sync.open_node("desk", listen=[]) as desk:
        for call in (desk.request, desk.broadcast):
            with pytest.raises(iris.ConfigError, match=r"^wait is .* use a number of seconds"):
                call("shop", 1, wait=wait)
