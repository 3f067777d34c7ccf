"""The deadline of the current task is the one that trio has for it, whatever scopes are around it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.tasks import effective_deadline


async def both() -> float:
    """Return the deadline, which is the same by either way."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    assert effective_deadline() == trio.current_effective_deadline()
    return effective_deadline()


async def test_it_is_that_of_the_scope_that_ends_first(autojump_clock: MockClock) -> None:
    assert await both() == math.inf
    with trio.CancelScope(deadline=9.0) as outer:
        assert await both() == 9.0
        with trio.CancelScope(deadline=12.0), trio.CancelScope() as inner:
            assert await both() == 9.0
            inner.deadline = 7.0
            assert await both() == 7.0
            outer.deadline = 5.0
            assert await both() == 5.0
            inner.shield = True
            assert await both() == 7.0


async def test_it_is_that_of_the_nursery_also_in_tasks(autojump_clock: MockClock) -> None:
    seen: list[float] = []

    async def note() -> None:
        seen.append(await both())

    with trio.move_on_at(3.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note)
    assert seen == [3.0]


async def test_once_it_is_cancelled_it_is_over(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope, trio.CancelScope():
        scope.cancel()
        assert await both() == -math.inf
        with trio.CancelScope(shield=True):
            assert await both() == math.inf


async def test_a_trio_that_keeps_it_elsewhere_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = object()
    monkeypatch.setattr(trio.lowlevel, "current_task", lambda: task)
    monkeypatch.setattr(trio, "current_effective_deadline", lambda: 4.0)
    assert effective_deadline() == 4.0
