"""The run behind calls of threads: each call ends, whenever it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, final

import pytest
import trio

import iris
from iris.kernel.tasks import OutsideCall, thread_deadline
from iris.sync.portal import OwnRun, Portal, Waiter


def begin_after(steps: int, portal: Portal, call: OutsideCall) -> None:
    if not steps or not portal.do(begin_after, steps - 1, portal, call):
        portal.begin(call)


@pytest.mark.parametrize("steps", range(8))
def test_a_call_that_comes_while_the_run_ends_ends_as_well(steps: int) -> None:
    for _ in range(4):  # trio runs the tasks of one step in any order
        portal = OwnRun()
        portal.open()
        portal.call(trio.lowlevel.checkpoint)  # its task is kept for the next call, and ends with the run
        ended = Waiter()
        call = portal.new_call(trio.sleep_forever, ended.notify)
        portal.do(portal._scope.cancel)
        begin_after(steps, portal, call)
        portal.close()
        assert ended.notified
        with pytest.raises(trio.ClosedResourceError):
            call.result()


@final
class Reply:
    """What was begun at once: it has its outcome when ``woken`` is called."""

    def __init__(self, woken: Callable[[], None]) -> None:
        self.woken = woken
        self.outcome: tuple[object] | Exception | None = None
        self.abandoned = 0

    def reply(self) -> tuple[object] | None:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def go_on(self) -> object:
        await trio.lowlevel.checkpoint()
        return "gone on"

    def abandon(self) -> None:
        self.abandoned += 1


@contextmanager
def opened() -> Iterator[OwnRun]:
    portal = OwnRun()
    portal.open()
    try:
        yield portal
    finally:
        portal.close()


async def in_a_task() -> object:
    return trio.lowlevel.current_task().name


def fail(_woken: Callable[[], None], _deadline: float) -> None:
    raise KeyError("at once")


def test_what_is_done_at_once_needs_no_task() -> None:
    with opened() as portal:
        assert portal.call(in_a_task, lambda _woken, _deadline: (trio.lowlevel.current_task().name,)) != portal.call(
            in_a_task
        )
        assert portal.call(in_a_task, lambda _woken, _deadline: None) == portal.call(in_a_task)
        with pytest.raises(KeyError, match="at once"):
            portal.call(in_a_task, fail)


def test_it_has_the_context_of_its_caller_and_no_more_time() -> None:
    text = ContextVar[str]("text")
    text.set("mine")
    with opened() as portal:
        assert portal.call_plain(text.get) == "mine"
        token = thread_deadline.set(time.monotonic() + 30)
        try:
            until = portal.call(in_a_task, lambda _woken, deadline: (deadline - trio.current_time(),))
            thread_deadline.set(time.monotonic() - 1)
            with pytest.raises(iris.RequestTimeout):
                portal.call(trio.sleep_forever, lambda _woken, _deadline: (None,))
        finally:
            thread_deadline.reset(token)
    assert isinstance(until, float)
    assert 20 < until <= 30


@pytest.mark.parametrize("outcome", [("replied",), ValueError("refused"), None])
def test_what_waits_for_a_reply_ends_with_it(outcome: tuple[object] | Exception | None) -> None:
    with opened() as portal, ThreadPoolExecutor() as threads:
        begun: SimpleQueue[Reply] = SimpleQueue()

        def ask(woken: Callable[[], None], _: float) -> Reply:
            reply = Reply(woken)
            begun.put(reply)
            return reply

        calling = threads.submit(portal.call, in_a_task, ask)
        waiting = begun.get(timeout=30)
        waiting.outcome = outcome
        assert portal.do(waiting.woken)
        if isinstance(outcome, Exception):
            with pytest.raises(ValueError, match="refused"):
                calling.result(30)
        else:
            assert calling.result(30) == ("gone on" if outcome is None else outcome[0])
        assert waiting.abandoned == 0


def test_what_waits_for_a_reply_is_abandoned_when_the_run_ends() -> None:
    begun: SimpleQueue[Reply] = SimpleQueue()

    def ask(woken: Callable[[], None], _: float) -> Reply:
        reply = Reply(woken)
        begun.put(reply)
        return reply

    with ThreadPoolExecutor() as threads:
        with opened() as portal:
            calling = threads.submit(portal.call, in_a_task, ask)
            waiting = begun.get(timeout=30)
        with pytest.raises(trio.ClosedResourceError):
            calling.result(30)
    assert waiting.abandoned == 1


def test_many_calls_cross_at_one_waking() -> None:
    """What comes before the run takes what is due does not wake it again."""
    woken: list[object] = []
    with opened() as portal, ThreadPoolExecutor(32) as threads:
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go_on.wait(30)

        portal.do(hold)
        assert held.wait(30)
        do = portal.do

        def note(*args: Any) -> bool:
            woken.append(args)
            return do(*args)

        portal.do = note  # type: ignore[method-assign, assignment]
        calls = [threads.submit(portal.call_plain, partial(int, str(number))) for number in range(32)]
        ends = time.monotonic() + 30
        while len(portal._due) < 32:
            assert time.monotonic() < ends
            time.sleep(0.001)
        go_on.set()
        assert [call.result(30) for call in calls] == list(range(32))
        assert len(woken) == 1


def test_a_waking_that_was_interrupted_holds_nobody_up() -> None:
    with opened() as portal, ThreadPoolExecutor() as threads:
        do = portal.do

        def interrupted(*_: object) -> bool:
            portal.do = do  # type: ignore[method-assign]
            waiting.append(threads.submit(portal.call_plain, partial(int, "3")))
            while len(portal._due) < 2:
                time.sleep(0.001)
            raise KeyboardInterrupt

        waiting: list[Future[int]] = []
        ran: list[int] = []
        portal.do = interrupted  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            portal.call(trio.sleep_forever, None)
        assert waiting[0].result(30) == 3
        assert portal.call_plain(partial(ran.append, 1)) is None
        assert ran == [1]
