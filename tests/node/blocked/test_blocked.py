"""Handlers that block, with real event loops, sockets and clocks: who is told what, and how soon."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import trio

import iris
import iris.sync
from iris.kernel.names import NodeId
from iris.node.blocked import BlockedStatistics
from tests.support.blocked import PATIENCE, STANDS, ask, check, lines, stand

COMPUTES: Final = 0.9
"""Seconds of processor time for which code in C keeps the interpreter: the stack is written after 0.75."""

WALL_CLOCK: Final = iris.Environment().wall_clock

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def caller() -> Iterator[iris.sync.Node]:
    """A node with an event loop of its own, in another thread: the one of the test is to be blocked."""
    with iris.sync.open_node("callers") as node:
        yield node


def place_in(function: Callable[..., object], more: int) -> str:
    """Return a line of a function as logs show it: so many lines below its decorator."""
    return f"test_blocked.py:{function.__code__.co_firstlineno + more}"


def test_a_handler_that_waits_is_named_at_both_ends(caller: iris.sync.Node, caplog: pytest.LogCaptureFixture) -> None:
    prices = iris.Service("prices")

    @prices.request("sleeps")
    async def sleeps(_: iris.Request) -> None:
        stand()

    async def main() -> iris.Node:
        async with iris.open_node("prices") as node, node.join("prices", prices):
            ended, token = trio.Event(), trio.lowlevel.current_trio_token()
            ask(caller, "sleeps", lambda: token.run_sync_soon(ended.set))
            await ended.wait()
        return node

    with caplog.at_level(logging.INFO, logger="iris"):
        (counted,) = trio.run(main).statistics().blocked
    check(caplog, "sleeps", counted)


def backtracking() -> str:
    """Return a text that a regular expression of the tests takes ``COMPUTES`` for, or a little more."""
    size, taken = 12, 0.0
    while taken < 0.02:
        size += 1
        began = time.thread_time()
        re.match(r"(a+)+$", "a" * size + "b")
        taken = time.thread_time() - began
    while taken < COMPUTES:
        size, taken = size + 1, 2 * taken
    return "a" * size + "b"


def test_code_in_c_that_keeps_the_interpreter_is_named_while_it_runs(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    prices, text, ended = iris.Service("prices"), backtracking(), [0.0]

    @prices.request("matches")
    async def matches() -> None:
        re.match(r"(a+)+$", text)
        ended.append(WALL_CLOCK())

    async def main() -> None:
        async with iris.open_node("prices") as node, node.join("prices", prices):
            await node.request("prices", None, operation="matches", timeout=PATIENCE)

    with caplog.at_level(logging.INFO, logger="iris"):
        trio.run(main)
    (blocked,) = lines(caplog, "blocks its node")
    assert place_in(matches, 2) in blocked.getMessage()
    assert "it computes" in blocked.getMessage()
    assert blocked.created < ended[-1], "named while it kept the interpreter to itself"
    assert "Stack (most recent call first)" not in capfd.readouterr().err, "it looks for signals: the log is enough"


def test_the_stack_of_code_in_c_that_looks_for_no_signals_is_written_by_the_kernels_signal(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.thread_time()
    sum(range(1_000_000))
    numbers = range(int(1_000_000 * 1.5 * COMPUTES / (time.thread_time() - began)))
    prices = iris.Service("prices")

    @prices.request("adds")
    async def adds() -> None:
        sum(numbers)

    async def main() -> None:
        async with iris.open_node("prices") as node, node.join("prices", prices):
            await node.request("prices", None, operation="adds", timeout=PATIENCE)

    with caplog.at_level(logging.INFO, logger="iris"):
        trio.run(main)
    written = capfd.readouterr().err
    assert re.search(rf'test_blocked.py", line {adds.__code__.co_firstlineno + 2} in adds', written), written
    (blocked,) = lines(caplog, "blocks its node")
    assert place_in(adds, 2) in blocked.getMessage(), "said again as soon as another thread runs"


def test_what_gives_way_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """A program that is busy all the time, step by step."""

    async def main() -> tuple[BlockedStatistics, ...]:
        async with iris.open_node("prices") as node:
            with trio.move_on_after(1.0):
                while True:
                    stand(0.05)
                    await trio.lowlevel.checkpoint()
            return node.statistics().blocked

    with caplog.at_level(logging.INFO, logger="iris"):
        assert trio.run(main) == ()
    assert lines(caplog, "blocks its node") == []


@pytest.mark.parametrize(
    ("blocks", "timeout", "error"),
    [(2.2, 1.9, iris.RequestTimeout), pytest.param(9.0, PATIENCE, iris.MemberLost, marks=pytest.mark.long)],
)
def test_a_request_that_blocks_its_member_is_not_carried_to_the_next(
    caller: iris.sync.Node, blocks: float, timeout: float, error: type[iris.IrisError]
) -> None:
    """Two members, one of them in this thread, and idempotent requests: one blocks, the other is only behind it."""
    prices, others, began = iris.Service("prices"), iris.Service("prices"), threading.Event()
    calls: list[str] = []
    outcomes: dict[str, object] = {}

    @prices.request("poison")
    async def poison() -> None:
        calls.append("poison")
        began.set()
        stand(blocks)

    @prices.request("harmless")
    @others.request("harmless")
    def harmless() -> str:
        return "here"

    @others.request("poison")
    def elsewhere() -> None:
        calls.append("elsewhere")

    def asking(operation: str, member: NodeId) -> None:
        options = iris.RequestOptions(idempotent=True, prefer=member)
        try:
            outcomes[operation] = caller.request("prices", None, operation=operation, timeout=timeout, options=options)
        except iris.IrisError as failed:
            outcomes[operation] = failed

    def all_asking(member: NodeId, done: Callable[[], object]) -> None:
        caller.wait_for("prices", 2)
        threads = [threading.Thread(target=asking, args=(one, member)) for one in ("poison", "harmless")]
        threads[0].start()
        began.wait(PATIENCE)
        threads[1].start()
        for thread in threads:
            thread.join()
        done()

    async def main() -> None:
        async with iris.open_node("prices") as node, node.join("prices", prices):
            ended, token = trio.Event(), trio.lowlevel.current_trio_token()
            threading.Thread(target=all_asking, args=(node.id, lambda: token.run_sync_soon(ended.set))).start()
            await ended.wait()

    with iris.sync.open_node("prices") as other, other.join("prices", others):
        trio.run(main)
    assert outcomes["harmless"] == "here"
    assert calls == ["poison"], "the other member was not asked"
    failed = outcomes["poison"]
    assert isinstance(failed, error)
    assert STANDS in str(failed)
    assert "is blocked, not dead" in str(failed)
    assert "at work on this request" in str(failed)
