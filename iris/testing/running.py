"""Running: one test, under one seed and one schedule, from an empty world to its end."""

from __future__ import annotations

import dataclasses
import gc
import logging
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, final

import trio

import iris.api  # pyright: ignore[reportUnusedImport] -- else the first run would load these, and differ
import iris.patterns.pubsub.queues.api  # pyright: ignore[reportUnusedImport]
import iris.patterns.state.api  # noqa: F401  # pyright: ignore[reportUnusedImport]
from iris.cluster.mesh import Dispatcher
from iris.kernel.shapes import is_group
from iris.kernel.wire import BatchDecoder, Message, kinds
from iris.node.open import OPENER
from iris.testing.checks import check_books
from iris.testing.faults import Faults, Schedule
from iris.testing.injection import Injection
from iris.testing.machine import HOST, JumpingClock, SimulatedDisk, Stalls, isolated, seeded
from iris.testing.network import EPOCH, open_network
from iris.testing.trace import TRACE, LogTrace, Trace
from iris.testing.world import World

Test = Callable[[World], Awaitable[object]]

GRACE: Final = 900.0
"""Seconds that a test may go on after the faults are over."""

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- the directory made there is private
"""Directory in memory, where synchronizing a file costs nothing; its files are removed when the test ends."""


_REQUEST: Final = 0x20
"""The first kind of message that is not of links or of membership."""


_decoder: Final[BatchDecoder[Message]] = BatchDecoder(*kinds.BY_KIND.values())


class DidNotEnd(AssertionError):
    """The test went on for longer than it may."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcome of one run.

    Attributes:
        schedule: the faults that have happened.
        error: the error that it has failed with; None if it has not failed.
        ended: virtual seconds from its beginning to its end, or to its failure.
        trace: the record of its events.
    """

    schedule: Schedule
    error: BaseException | None
    ended: float
    trace: Trace

    @property
    def cause(self) -> tuple[str, str, int]:
        """The identity of a failure, the same in runs that fail alike: its type, and the place that raised it."""
        assert self.error is not None
        traceback, place = self.error.__traceback__, ("", 0)
        while traceback is not None:
            place = (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
            traceback = traceback.tb_next
        return type(self.error).__qualname__, *place


def run_once(
    test: Test, schedule: Schedule, faults: Faults | None = None, *, detailed: bool = False, limit: float | None = None
) -> Run:
    """Run a test.

    Args:
        test: gets the world.
        schedule: seed, length, and the faults that are to happen.
        faults: draw them from these instead.
        detailed: note each frame and message in the trace.
        limit: virtual seconds after which it is given up without an error; None: ``GRACE`` after the faults, with one.
    """
    clock = JumpingClock()
    trace = Trace(clock, detailed=detailed)
    injection = Injection(schedule, faults)
    failures: list[BaseException] = []
    directory = Path(tempfile.mkdtemp(prefix="iris-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    disk = SimulatedDisk(directory, random.Random(f"disk {schedule.seed}"), injection.full)

    def date() -> float:
        return EPOCH + clock.now + injection.offsets.get(HOST.get(), 0.0)

    def disk_delay() -> float:
        return injection.disk_delays.get(HOST.get(), 0.0)

    async def main(stalls: Stalls) -> None:
        TRACE.set(trace)
        async with open_network(seed=schedule.seed) as network:
            network.shares_hosts = True
            network.offsets = injection.offsets
            network.memory.observer = trace.frame
            world = World(network, schedule.seed, trace, stalls, directory, disk)
            OPENER.set(world.open_parts)
            try:
                async with trio.open_nursery() as nursery:
                    world.begin(nursery)
                    nursery.start_soon(injection.run, world)
                    most = schedule.seconds + GRACE if limit is None else limit
                    with trio.move_on_after(most) as scope:
                        await _noting_failure(test, world)
                    if scope.cancelled_caught and limit is None:
                        raise DidNotEnd(f"the test has not ended {GRACE:g} s after the faults were over")
                    stalls.end()
                    nursery.cancel_scope.cancel()
            except BaseException:
                stalls.end()
                raise
        for node in world.nodes:
            check_books(node)

    gc.collect()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        handler = LogTrace(trace)
        logging.getLogger("iris").addHandler(handler)
        stack.callback(logging.getLogger("iris").removeHandler, handler)
        stalls = stack.enter_context(seeded(schedule.seed))
        stack.enter_context(isolated(schedule.seed, clock, date, disk_delay, disk))
        if detailed:
            stack.enter_context(_noting_messages(trace))
        try:
            trio.run(main, stalls, clock=clock)
        except BaseException as came:  # noqa: BLE001 -- of whatever kind: it is what the run has come to
            failures.append(_first(came))
    happened = Schedule(seed=schedule.seed, seconds=schedule.seconds, faults=tuple(injection.happened))
    error = failures[0] if failures else None
    if error is not None and not isinstance(error, Exception):
        raise error  # Ctrl-C, or a test that skips itself
    if error is not None:
        trace.fail(error)
    ended = clock.now if trace.failed is None else trace.failed
    return Run(schedule=happened, error=error, ended=ended, trace=trace)


async def _noting_failure(test: Test, world: World) -> None:
    try:
        await test(world)
    except Exception as error:
        world.trace.fail(_first(error))
        raise


def _first(error: BaseException) -> BaseException:
    while is_group(error):
        error = error.exceptions[0]
    return error


@contextmanager
def _noting_messages(trace: Trace) -> Iterator[None]:
    """Have every message that a node receives be noted, in this block."""
    dispatch = Dispatcher.dispatch_untrusted

    def noted(dispatcher: Dispatcher, peer: Any, batch: Any, work: Any = None) -> None:
        for message in _decoder.decode_untrusted(batch):
            tag = type(message).__struct_config__.tag
            kind = "upkeep" if isinstance(tag, int) and tag < _REQUEST else "message"
            trace.note_for_timeline(kind, HOST.get(), f"{peer.identity.cluster} {type(message).__name__}")
        dispatch(dispatcher, peer, batch, work)

    Dispatcher.dispatch_untrusted = noted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Dispatcher.dispatch_untrusted = dispatch  # type: ignore[method-assign]
