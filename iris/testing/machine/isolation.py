"""Isolation: what a program takes from its machine (random numbers, the date, threads) comes from the simulation.

Programs are not changed for it: for as long as the simulation runs, the functions of ``random``, ``secrets``, ``uuid``,
``os.urandom`` and ``time`` are the simulation's, and what ``trio.to_thread.run_sync`` would do in a thread is done in
one step, after the time that a thread takes.  ``datetime.now`` cannot be replaced and tells the real date.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import Any, Final, TypeVar, cast

import trio

from iris.testing.machine.disk import SimulatedDisk
from iris.testing.machine.scheduling import JumpingClock

T = TypeVar("T")

_THREAD: Final = (0.00005, 0.002)
"""Least and greatest seconds that something takes in a thread."""


@contextmanager
def isolated(
    seed: int, clock: JumpingClock, date: Callable[[], float], delay: Callable[[], float], disk: SimulatedDisk
) -> Iterator[None]:
    """Replace what a program takes from its machine.

    Args:
        seed: the seed of the random numbers.
        clock: the clock of the run.
        date: returns the date of the host that asks, in seconds since 1970.
        delay: returns the seconds that the disk of the host that asks takes longer than it should.
        disk: the disk of all hosts.
    """
    entropy = random.Random(f"entropy {seed}")
    threads = random.Random(f"threads {seed}")

    async def run_sync(
        sync_fn: Callable[..., T],
        *args: object,
        thread_name: str | None = None,  # noqa: ARG001 -- there is none
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Run a call as ``trio.to_thread.run_sync`` does, but in this thread."""
        await trio.lowlevel.checkpoint_if_cancelled()
        limiter = limiter or trio.to_thread.current_default_thread_limiter()
        borrower = object()
        await limiter.acquire_on_behalf_of(borrower)
        try:
            with trio.CancelScope(shield=not abandon_on_cancel):
                await trio.sleep(threads.uniform(*_THREAD) + delay())
            return copy_context().run(sync_fn, *args)
        finally:
            limiter.release_on_behalf_of(borrower)

    state = random.getstate()
    with ExitStack() as stack:

        def replace(owner: object, name: str, value: object) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        replace(os, "urandom", entropy.randbytes)
        replace(cast("Any", random), "_urandom", entropy.randbytes)
        replace(time, "time", date)
        replace(time, "time_ns", lambda: int(date() * 1e9))
        replace(time, "monotonic", clock.current_time)
        replace(time, "monotonic_ns", lambda: int(clock.now * 1e9))
        replace(trio.to_thread, "run_sync", run_sync)
        disk.install(replace)
        stack.callback(random.setstate, state)
        random.seed(f"program {seed}")  # noqa: TID251 -- programs draw from it
        yield
