"""Happy Eyeballs: staggered attempts at several addresses; the first that succeeds cancels the others.

Source: RFC 8305, "Happy Eyeballs Version 2", section 5.  An address behind which packets vanish answers nothing for
minutes; an attempt that waited for it alone would never come to the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from iris.kernel.tasks.background import open_background

T = TypeVar("T")

STAGGER: Final = 0.25
"""Seconds after which the next one is tried beside those that have not ended.  The specification's default; above the
round trip of nearly every line, so that a connection more than is needed is rare."""

AT_ONCE: Final = 4
"""Attempts that are in progress at one time: who makes up a node with sixteen addresses from which nothing comes back
must not take sixteen of the slots that there are for connections."""

LONGEST: Final = AT_ONCE * STAGGER
"""Seconds after which an attempt is given up if another one waits for its slot; with so many at once none waits."""


async def first_of(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    failures: list[Exception],
    *,
    expected: tuple[type[Exception], ...],
    discard: Callable[[T], None],
    at_once: int = AT_ONCE,
) -> T | None:
    """Return the result of the first attempt that succeeds; None if all have failed.

    The next attempt begins when the one before has failed, and after ``STAGGER`` seconds at the latest, as far as
    ``at_once`` allows.  How long all of it takes is for the caller to limit.  Cancelling it leaves no result behind.

    Args:
        attempts: in the order in which they are preferred.
        failures: gets the errors of those that failed, in the same order.
        expected: errors that count as a failure; any other one is raised as it is.
        discard: called with each result that is not returned.
        at_once: attempts that may be in progress at one time.  Where more wait, the oldest one is given up after
            ``LONGEST`` seconds, and counts as failed with the first of ``expected``.
    """
    if len(attempts) == 1:  # which is usual, and needs no tasks
        try:
            return await attempts[0]()
        except expected as error:
            failures.append(error)
            return None
    results: list[T] = []
    failed: dict[int, Exception] = {}
    running: dict[int, tuple[trio.CancelScope, float]] = {}
    changed = trio.lowlevel.ParkingLot()

    async def attempt(number: int) -> None:
        with running[number][0] as scope:
            try:
                results.append(await attempts[number]())
            except expected as error:
                failed[number] = error
        if scope.cancelled_caught:
            failed[number] = expected[0](f"nothing came back for {LONGEST:g} s, and others were to be tried")
        del running[number]
        changed.unpark_all()

    try:
        async with open_background() as nursery:
            for number in range(len(attempts)):
                while not results and len(running) >= at_once:
                    scope, until = next(iter(running.values()))
                    scope.deadline = until
                    await changed.park()
                if results:
                    break
                running[number] = (trio.CancelScope(), trio.current_time() + LONGEST)
                nursery.start_soon(attempt, number)
                with trio.move_on_after(STAGGER):
                    while not results and number not in failed:
                        await changed.park()
            while not results and len(failed) < len(attempts):
                await changed.park()
    except BaseException:
        for result in results:
            discard(result)
        raise
    for result in results[1:]:  # it came in the moment in which the attempt was cancelled
        discard(result)
    failures.extend(error for _, error in sorted(failed.items(), key=lambda pair: pair[0]))
    return results[0] if results else None
