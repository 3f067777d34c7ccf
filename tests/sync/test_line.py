"""The line of posted events: in order, not for longer than its node waits, and each of them sent or counted as lost."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import final

import pytest
import trio
from trio.testing import MockClock

from iris.node.open import GOODBYE
from iris.patterns.pubsub import PostedEvents
from iris.sync.line import Line


@final
class Posted:
    """An event that takes some seconds to publish, and some until there is room again; or that fails."""

    def __init__(self, seen: list[str], name: str, seconds: float = 0.0, room: float = 0.0, thread: int = 1) -> None:
        self.thread = thread
        self.size = len(name)
        self.posted = PostedEvents()
        self.posted.add(self.size)
        self._seen = seen
        self._name = name
        self._seconds = seconds
        self._room = room

    def at_once(self) -> bool:
        if not self._seconds:
            self._seen.append(self._name)
        return not self._seconds

    async def publish(self) -> None:
        await trio.sleep(self._seconds)
        if self._name == "refused":
            raise ValueError("as it is")
        self._seen.append(self._name)

    async def wait_room(self) -> None:
        await trio.sleep(self._room)

    def lose(self) -> None:
        self._seen.append(f"lost {self._name}")


@asynccontextmanager
async def open_line() -> AsyncIterator[Line]:
    async with trio.open_nursery() as nursery:

        def start(function: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(function)

        yield Line(start)


async def test_a_call_comes_after_the_events_of_its_thread_or_of_all(autojump_clock: MockClock) -> None:
    async with open_line() as line:
        seen: list[str] = []
        line.accept(Posted(seen, "at once"))
        assert not line.holds("all", 1)
        line.accept(Posted(seen, "waits", 1.0))
        line.accept(Posted(seen, "behind", thread=2))
        assert seen == ["at once"]
        assert [line.holds("own", thread) for thread in (1, 2, 3)] == [True, True, False]
        assert line.holds("all", 3)
        assert not line.holds("none", 1)
        line.call_emptied(partial(seen.append, "then"))
        await line.wait_emptied()
        assert seen == ["at once", "waits", "behind", "then"]
        assert line.is_empty
        assert not line.holds("own", 1)


async def test_leaving_waits_for_all_of_it(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    async with open_line() as line:
        async with line.published():
            for name in "ab":
                line.accept(Posted(seen, name, 60.0))
        assert seen == ["a", "b"]


@pytest.mark.parametrize("late", [0.0, GOODBYE / 2])
async def test_leaving_by_a_cancellation_gives_it_the_time_of_a_goodbye(
    late: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What is published and waits for room is not lost."""
    seen: list[str] = []
    async with open_line() as line:
        began = trio.current_time()
        with trio.CancelScope() as scope:
            async with line.published():
                line.accept(Posted(seen, "a", GOODBYE / 4))
                line.accept(Posted(seen, "b", GOODBYE / 4, 60.0 if late == 0 else 0.0))
                line.accept(Posted(seen, "c", 60.0))
                line.accept(Posted(seen, "d"))
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.sleep(late)
        assert trio.current_time() - began == pytest.approx(GOODBYE + late)
        assert seen == ["a", "b", "lost c", "lost d"]
        assert [one.message for one in caplog.records if one.levelno == logging.ERROR] == [
            "2 events of threads were not published: their node was left by then"
        ]


async def test_what_is_posted_after_that_is_published_at_once_or_lost(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    async with open_line() as line:
        async with line.published():
            pass
        line.accept(Posted(seen, "a"))
        line.accept(Posted(seen, "b", 1.0))
        await line.wait_emptied()
    assert seen == ["a", "lost b"]


async def test_what_is_refused_is_lost_and_those_behind_it_are_sent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    async with open_line() as line, line.published():
        for name in ("a", "refused", "b"):
            line.accept(Posted(seen, name, 1.0))
    assert seen == ["a", "b", "lost refused"]
    assert "1 events of threads were not published: as it is" in caplog.text
