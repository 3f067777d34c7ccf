"""Steps of one coroutine in several contexts: values, errors and cancellations pass as through ``await``."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from iris.patterns.service.contexts import fresh_context, in_fresh_contexts

number: ContextVar[int] = ContextVar("number", default=0)


async def test_each_part_begins_with_the_original_and_its_waits_stay_in_it(autojump_clock: MockClock) -> None:
    seen: list[int] = []

    async def steps() -> None:
        for value in (1, 2, 3):
            await fresh_context()
            seen.append(number.get())
            number.set(value)
            await trio.sleep(1)
            seen.append(number.get())
            await fresh_context()
            await fresh_context()

    token = number.set(7)
    original = copy_context()
    number.set(8)
    began = trio.current_time()
    await in_fresh_contexts(original, steps())
    assert seen == [7, 1, 7, 2, 7, 3]
    assert trio.current_time() - began == 3
    assert (number.get(), original[number]) == (8, 7)
    number.reset(token)


async def test_each_pause_is_told_of_and_the_end(autojump_clock: MockClock) -> None:
    told: list[str] = []

    async def steps() -> None:
        await fresh_context()
        told.append("first")
        await trio.sleep(1)
        await fresh_context()
        told.append("second")

    await in_fresh_contexts(copy_context(), steps(), lambda: told.append("pause"))
    assert told == ["first", "pause", "second", "pause"]


async def fails() -> None:
    await fresh_context()
    await trio.lowlevel.checkpoint()
    raise KeyError("mine")


async def fails_at_once() -> None:
    raise KeyError("mine")


@pytest.mark.parametrize("steps", [fails, fails_at_once])
async def test_an_error_comes_out_as_it_is(steps: Any) -> None:
    with pytest.raises(KeyError, match="mine"):
        await in_fresh_contexts(copy_context(), steps())


async def test_cancelling_reaches_the_wait_and_what_it_cleans_up_with(autojump_clock: MockClock) -> None:
    ended: list[float] = []

    async def steps() -> None:
        await fresh_context()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            ended.append(trio.current_time())

    began = trio.current_time()
    with trio.move_on_after(2) as scope:
        await in_fresh_contexts(copy_context(), steps())
    assert scope.cancelled_caught
    assert ended == [began + 3]


def test_what_is_thrown_in_arrives_where_it_waits() -> None:
    """Trio throws only when it crashes, ``close`` when a coroutine is dropped."""
    seen: list[BaseException] = []

    async def steps() -> None:
        try:
            await trio.lowlevel.checkpoint()
        except ValueError as error:
            seen.append(error)
        try:
            await trio.lowlevel.checkpoint()
        except GeneratorExit as error:
            seen.append(error)
            raise

    async def outer() -> None:
        await in_fresh_contexts(copy_context(), steps())

    async def main() -> None:
        waiting: Coroutine[Any, Any, None] = outer()
        waiting.send(None)
        thrown = ValueError("thrown")
        waiting.throw(thrown)
        waiting.close()
        assert [type(error) for error in seen] == [ValueError, GeneratorExit]
        assert seen[0] is thrown

    trio.run(main)
