"""Injection: has the faults of a schedule happen to a world, or draws them as it goes and notes them."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Final, final

import trio

from iris.kernel.transport import LinkFault
from iris.testing.faults import (
    Broken,
    Crash,
    Fault,
    Faults,
    Flapping,
    FullDisk,
    HostFaultBase,
    LinkFaultBase,
    Lossy,
    Partition,
    Schedule,
    Slow,
    SlowDisk,
    SlowReader,
    Stall,
    WrongClock,
    describe,
)
from iris.testing.world import World


@final
class Injection:
    """The faults of one run.

    Args:
        world: to what they happen.
        seconds: seconds for which there are faults.
        faults: distributions to draw from; None: those of ``schedule`` happen.
        schedule: the faults to come.

    Attributes:
        happened: the faults that have begun.
        disk_delays: seconds that the disk of each host takes longer, if any.
        offsets: seconds by which the date of each host is wrong, if any.
        full: hosts whose disk is full.
    """

    def __init__(self, schedule: Schedule, faults: Faults | None) -> None:
        self._schedule = schedule
        self._faults = faults
        self.happened: Final[list[Fault]] = []
        self.disk_delays: Final[dict[str, float]] = {}
        self.offsets: Final[dict[str, float]] = {}
        self.full: Final[set[str]] = set()
        self._active: list[Fault] = []

    async def run(self, world: World) -> None:
        """Have them happen, and end all of them when their time is over."""
        due: list[tuple[float, int, Callable[[], None]]] = []
        numbers = itertools.count()

        def at(time: float, action: Callable[[], None]) -> None:
            heapq.heappush(due, (time, next(numbers), action))

        def begin(fault: Fault) -> None:
            self._begin(world, fault)
            at(fault.end, lambda: self._end(world, fault))
            if isinstance(fault, Flapping):
                flap(fault, 1)

        def flap(fault: Flapping, count: int) -> None:
            time = fault.at + count * fault.period
            if time < fault.end:

                def turn() -> None:
                    self._set_links(world)
                    flap(fault, count + 1)

                at(time, turn)

        chance = random.Random(f"faults {self._schedule.seed}")

        def next_after(time: float, faults: Faults) -> float:
            return round(time + chance.expovariate(1 / faults.pause), 3)  # as a schedule that was saved has it

        def draw(time: float, faults: Faults) -> None:
            taken = {fault.host for fault in self._active if isinstance(fault, HostFaultBase)}
            fault = faults.draw(chance, time, world.hosts, taken)
            if fault is not None:
                begin(fault)
            following = next_after(time, faults)
            at(following, lambda: draw(following, faults))

        if self._faults is None:
            for fault in self._schedule.faults:
                at(fault.at, lambda fault=fault: begin(fault))  # type: ignore[misc]
        elif self._faults.kinds:
            first, drawn = next_after(0.0, self._faults), self._faults
            at(first, lambda: draw(first, drawn))
        while due and due[0][0] < self._schedule.seconds:
            time, _, action = heapq.heappop(due)
            await trio.sleep_until(time)
            action()
        await trio.sleep_until(self._schedule.seconds)
        for fault in list(self._active):
            self._end(world, fault)
        world.trace.note("fault", "", "all are over")
        world.healed.set()

    def _begin(self, world: World, fault: Fault) -> None:
        self.happened.append(fault)
        if isinstance(fault, HostFaultBase) and fault.host not in world.hosts:
            return  # in this run it has not come to be
        self._active.append(fault)
        world.trace.note("fault", getattr(fault, "host", ""), describe(fault))
        match fault:
            case Crash():
                world.crash(fault.host, power=fault.power)
            case Stall():
                world.stalls.stop(fault.host)
            case SlowReader():
                world.network.memory.pause(fault.host)
            case WrongClock():
                self.offsets[fault.host] = fault.seconds
            case SlowDisk():
                self.disk_delays[fault.host] = fault.seconds
            case FullDisk():
                self.full.add(fault.host)
            case Broken():
                for near in fault.near:
                    for far in fault.far:
                        world.network.memory.break_links(near, far)
            case _:
                self._set_links(world)

    def _end(self, world: World, fault: Fault) -> None:
        if fault not in self._active:
            return
        self._active.remove(fault)
        world.trace.note("fault", getattr(fault, "host", ""), f"{type(fault).__name__} {fault.where} is over")
        match fault:
            case Crash():
                world.restart(fault.host)
            case Stall():
                world.stalls.go_on(fault.host)
            case SlowReader():
                world.network.memory.resume(fault.host)
            case WrongClock():
                del self.offsets[fault.host]
            case SlowDisk():
                del self.disk_delays[fault.host]
            case FullDisk():
                self.full.discard(fault.host)
            case Broken():
                pass
            case _:
                self._set_links(world)

    def _set_links(self, world: World) -> None:
        now = trio.current_time()
        links: dict[tuple[str, str], LinkFault] = {}
        for fault in self._active:
            if not isinstance(fault, LinkFaultBase):
                continue
            for near in fault.near:
                for far in fault.far:
                    for source, target in ((near, far), (far, near)):
                        one_way = isinstance(fault, Partition) and fault.one_way and source == far
                        known = links.get((source, target), LinkFault())
                        if not one_way:
                            links[source, target] = _worse(known, fault, now)
        world.network.memory.set_faults(links)


def _worse(link: LinkFault, fault: LinkFaultBase, now: float) -> LinkFault:
    blocked, loss, delay = link.blocked, link.loss, link.delay
    match fault:
        case Partition():
            blocked = True
        case Flapping():
            blocked = blocked or round((now - fault.at) / fault.period) % 2 == 0
        case Lossy():
            loss = max(loss, fault.probability)
        case Slow():
            delay = (delay[0] + fault.least, delay[1] + fault.greatest)
        case _:
            pass
    return LinkFault(blocked=blocked, loss=loss, delay=delay)
