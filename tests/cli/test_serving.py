"""``iris run`` with services of asyncio and trio: real processes, their lifespans, and what their parent is told."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator

import pytest

import iris
from iris.cli.readiness import Readiness
from tests.support.command import COMMAND, PATIENCE, Terminal, interrupt, open_terminal

APP = """
import asyncio, contextlib, sys
import iris, iris.aio, trio

@contextlib.asynccontextmanager
async def book(node):
    print("entered", flush=True)
    yield {"tea": 3}
    print("left", flush=True)

prices = iris.aio.Service("prices", lifespan=book)

@prices.request
async def price(item: str, tea: iris.FromLifespan[int], node: iris.aio.Node) -> object:
    await asyncio.sleep(0.01)
    return [await node.request("names", item), tea, type(asyncio.get_running_loop()).__module__]

@prices.request("slow")
async def slow(item: str) -> str:
    print("begun", flush=True)
    await asyncio.sleep(0.5)
    return item

names = iris.Service("names")

@names.request
async def name(item: str) -> str:
    await trio.sleep(0.01)
    return f"fine {item}"

wrong = iris.Service("wrong")

@wrong.request
async def sleepy(item: str) -> str:
    await asyncio.sleep(0.01)
    return item

@contextlib.asynccontextmanager
async def broken(node):
    await asyncio.open_connection("127.0.0.1", 1)
    yield

@contextlib.asynccontextmanager
async def leaking(node):
    yield
    raise ValueError("not closed")

@contextlib.asynccontextmanager
async def sleeping(node):
    await asyncio.sleep(0)
    yield

@contextlib.asynccontextmanager
async def endless(node):
    print("waiting", flush=True)
    await asyncio.sleep(3600)
    yield

unready = iris.aio.Service("unready", lifespan=endless)
unstarted = iris.aio.Service("unstarted", lifespan=broken)
unended = iris.aio.Service("unended", lifespan=leaking)
unlooped = iris.Service("unlooped", lifespan=sleeping)
"""


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        yield opened


def test_services_of_asyncio_and_trio_share_one_node_and_drain_together(terminal: Terminal) -> None:
    with terminal.started("-v", "run", "app:prices", "app:names", announces="serves prices, names at") as member:
        assert member.stdout is not None
        assert member.stdout.readline() == b"entered\n"
        done = terminal.run("request", "prices", "tea")
        assert done.stdout in (b'["fine tea", 3, "uvloop"]\n', b'["fine tea", 3, "asyncio.unix_events"]\n'), done.stderr
        with terminal.started("request", "prices", "milk", "--operation", "slow", "--timeout", "20") as asker:
            assert member.stdout.readline() == b"begun\n"
            assert interrupt(member, signal.SIGTERM) == 0
            assert asker.communicate(timeout=PATIENCE)[0] == b"milk\n"
        assert member.stdout.read() == b"left\n"


def test_a_handler_of_asyncio_in_a_service_of_trio_is_told_what_to_change(terminal: Terminal) -> None:
    with terminal.started("run", "app:wrong", announces="serves wrong at"):
        done = terminal.run("request", "wrong", "tea")
    assert done.returncode == 1
    assert (
        b"no running event loop; it uses asyncio, and no asyncio event loop runs it: make the service an "
        in done.stderr
    )


def test_a_lifespan_that_fails_is_one_line_with_the_place(terminal: Terminal) -> None:
    done = terminal.run("run", "app:names", "app:unstarted")
    line = APP[: APP.index("await asyncio.open_connection")].count("\n") + 1
    assert done.returncode == 1
    assert done.stderr.startswith(f"iris: {terminal.directory}/app.py:{line}: ConnectionRefusedError: ".encode())
    assert done.stderr.endswith(b"; raised in the lifespan of service 'unstarted'\n")
    assert done.stderr.count(b"\n") == 1
    done = terminal.run("run", "app:unlooped")
    assert done.returncode == 1
    assert b"raised in the lifespan of service 'unlooped'; it uses asyncio" in done.stderr


def test_a_lifespan_that_fails_at_its_end_is_one_line_and_a_failure(terminal: Terminal) -> None:
    with terminal.started("run", "app:unended", announces="serves unended at") as member:
        assert interrupt(member, signal.SIGTERM) == 1
        assert member.stderr is not None
        assert b"ValueError: not closed; raised in the lifespan of service 'unended'\n" in member.stderr.read()


def test_a_program_that_is_told_to_end_while_it_starts_ends_in_order(terminal: Terminal) -> None:
    with terminal.started("run", "app:names", "app:unready") as member:
        assert member.stdout is not None
        assert member.stdout.readline() == b"waiting\n"
        assert interrupt(member, signal.SIGTERM) == 0
        assert member.stderr is not None
        assert member.stderr.read() == b""


def test_a_parent_reads_a_line_when_the_services_are_joined(terminal: Terminal) -> None:
    receives, sends = os.pipe()
    with os.fdopen(receives, "rb") as channel:
        process = subprocess.Popen(
            [*COMMAND, "run", "app:names"],
            cwd=terminal.directory,
            env={**terminal.environment, "IRIS_READY_FD": str(sends)},
            pass_fds=[sends],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with process:
            os.close(sends)
            try:
                assert channel.read() == b"ready\n"
                assert interrupt(process, signal.SIGTERM) == 0
            finally:
                process.kill()


def test_a_parent_reads_the_end_alone_of_what_ends_before_and_children_do_not_inherit_the_pipe() -> None:
    receives, sends = os.pipe()
    os.set_inheritable(sends, True)
    variables = {"IRIS_READY_FD": str(sends), "HOME": "/"}
    readiness = Readiness(variables)
    assert variables == {"HOME": "/"}
    assert not os.get_inheritable(sends)
    readiness.announce()
    readiness.announce()
    with os.fdopen(receives, "rb") as channel:
        assert channel.read() == b"ready\n"
    Readiness({}).announce()


@pytest.mark.parametrize("number", ["99", "one", "-1", "9" * 30])
def test_a_number_that_is_no_descriptor_is_refused(number: str) -> None:
    with pytest.raises(iris.ConfigError, match=f"IRIS_READY_FD is '{number}': use the number of a descriptor"):
        Readiness({"IRIS_READY_FD": number})
