"""More requests than can be served: whole nodes on a network in memory in virtual time, or processes and real time.

Callers do not wait for each other (an open loop), so refusing some slows nobody down.  Handlers sleep, so what shows is
the mechanism and not the processor: queues, refusals, repeats and what they make of each other.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final, final

import trio
import trio.testing

import iris
import iris.testing

MEMBERS: Final = 4
CONCURRENCY: Final = 8
SECONDS: Final = 0.05
"""Time that a handler takes, in seconds, give or take a half."""

FACTORS: Final = (0.5, 1.0, 2.0, 10.0)
"""Loads as multiples of what can be served."""

CAPACITY: Final = MEMBERS * CONCURRENCY / SECONDS

FLAT: Final = 16 * 2**20
"""Limit of the growth of all processes' memory at any moment of an overload, in bytes: what its callers note of each
request, and the queues, which are bounded."""

_LOOK: Final = 0.1
"""Seconds between two looks at the memory."""


def resident(process: int | str = "self") -> int:
    """Return the memory of a process, in bytes."""
    line = next(one for one in Path(f"/proc/{process}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@final
@dataclasses.dataclass(slots=True)
class Phase:
    """One load for some time, and what became of it."""

    factor: float
    outcomes: Counter[str] = dataclasses.field(default_factory=Counter[str])
    seconds: list[float] = dataclasses.field(default_factory=list[float])
    ended: list[float] = dataclasses.field(default_factory=list[float])
    attempts: int = 0
    grown: int = 0
    """Growth of memory at the worst moment, in bytes."""
    lasted: float = 0.0
    """Seconds: longer than was meant if the caller's process could not ask so fast."""

    @property
    def asked(self) -> int:
        """Requests of the callers."""
        return self.outcomes.total()

    def percentile(self, share: float) -> float:
        """Return a percentile of the time that accepted requests took, in seconds."""
        return sorted(self.seconds)[int(len(self.seconds) * share)] if self.seconds else float("nan")


@final
class Callers:
    """Requests at random moments, from one node.

    Args:
        node: asks.
        received: returns the number of requests that the members have received in all.
        used: returns the memory that all of it uses, in bytes.
        random: the moments.
        capacity: requests in a second that can be served.
    """

    def __init__(
        self,
        node: iris.Node,
        received: Callable[[], Awaitable[int]],
        used: Callable[[], int],
        random: Random,
        capacity: float = CAPACITY,
    ) -> None:
        self._node = node
        self._received = received
        self._used = used
        self._random = random
        self._capacity = capacity

    async def load(self, factor: float, seconds: float) -> Phase:
        """Ask ``factor`` times as often as can be served."""
        phase = Phase(factor)
        received = await self._received()
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch_memory, phase, self._used())
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                due = began
                while due < began + seconds:
                    due += self._random.expovariate(factor * self._capacity)
                    await trio.sleep_until(due)
                    nursery.start_soon(self._ask, phase, due)
                phase.lasted = max(seconds, trio.current_time() - began)
            watching.cancel_scope.cancel()
        phase.attempts = await self._received() - received
        return phase

    async def _watch_memory(self, phase: Phase, before: int) -> None:
        while True:
            phase.grown = max(phase.grown, self._used() - before)
            await trio.sleep(_LOOK)

    async def loads(self, factors: Sequence[float], seconds: float, calm: float = 5.0) -> list[Phase]:
        """Do one load after the other; after each that is too much comes half of what can be served for ``calm`` s."""
        await self.load(0.5, 2)  # everybody gets to know each other
        phases: list[Phase] = []
        for factor in factors:
            phases.append(await self.load(factor, seconds))
            if factor > 1:  # how it goes on at once after that
                phases.append(await self.load(0.5, calm))
        return phases

    async def _ask(self, phase: Phase, due: float) -> None:
        """Make one request; its time counts from when it was due, so that a caller that is late hides nothing."""
        try:
            await self._node.request("store")
        except iris.IrisError as error:
            phase.outcomes[type(error).__name__] += 1
        else:
            phase.outcomes["reply"] += 1
            phase.ended.append(trio.current_time())
            phase.seconds.append(trio.current_time() - due)


async def _run(factors: Sequence[float], seconds: float, calm: float) -> list[Phase]:
    random = Random(7)
    store = iris.Service("store")

    async def serve(_: iris.Request) -> None:
        await trio.sleep(SECONDS * random.uniform(0.5, 1.5))

    store.request(serve)
    async with iris.testing.open_network(seed=3) as network, AsyncExitStack() as stack:
        members: list[iris.Node] = []
        for index in range(MEMBERS):
            node = await stack.enter_async_context(network.open_node("store", host=f"store-{index}"))
            limits = iris.Limits(concurrency=CONCURRENCY)
            await stack.enter_async_context(node.join("store", store, limits=limits))
            members.append(node)
        shop = await stack.enter_async_context(network.open_node("shop"))
        await shop.wait_for("store", members=MEMBERS)

        async def received() -> int:
            return sum(member.statistics().services["store"].received for member in members)

        return await Callers(shop, received, resident, random).loads(factors, seconds, calm)


def run(factors: Sequence[float], seconds: float, calm: float = 5.0) -> list[Phase]:
    """Run one load after the other in virtual time; see ``Callers.loads``."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_run, factors, seconds, calm, clock=clock)


def recovery(phase: Phase, unloaded: float) -> float:
    """Return after how many seconds requests take no longer than without load: the end of the last slow window."""
    slow = [end for end, seconds in zip(phase.ended, phase.seconds, strict=True) if seconds > 1.5 * unloaded]
    return max(slow) - min(phase.ended) if slow else 0.0


def conduct(*, seconds: float) -> bool:
    """Run it in virtual time and print what it showed; return whether the targets are met."""
    print(f"\n{MEMBERS} members of {CONCURRENCY} handlers of {SECONDS * 1000:.0f} ms; {seconds:.0f} s each\n")
    return show(run(FACTORS, seconds), CAPACITY)


def show(shown: Sequence[Phase], capacity: float) -> bool:
    """Print what loads of ``FACTORS`` showed; return whether they were made and the targets are met.

    Args:
        shown: the loads, and what came after them.
        capacity: requests in a second that can be served.
    """
    unloaded, *phases = shown
    peak = phases[0].outcomes["reply"] / phases[0].lasted
    print("| load | asked | goodput, of peak | p50, p99 of accepted | p99, of unloaded | repeats | recovery | memory |")
    print("|---|---|---|---|---|---|---|---|")
    base = unloaded.percentile(0.99)
    kept = True
    overloads = [(phase, after) for phase, after in itertools.pairwise(phases) if phase.factor > 1]
    for phase, after in [(unloaded, None), (phases[0], None), *overloads]:
        goodput = phase.outcomes["reply"] / phase.lasted
        amplification = phase.attempts / phase.asked
        p50, p99 = phase.percentile(0.5), phase.percentile(0.99)
        back = "-" if after is None else f"{recovery(after, base):.1f} s"
        print(
            f"| {phase.factor:g}x | {phase.asked / phase.lasted:.0f}/s | {goodput:.0f}/s, {goodput / peak:.0%} "
            f"| {p50 * 1000:.0f}, {p99 * 1000:.0f} ms | {p99 / base:.1f}x | {amplification:.2f}x | {back} "
            f"| {phase.grown / 2**20:+.0f} MiB |"
        )
        if phase.asked / phase.lasted < 0.9 * phase.factor * capacity:
            print(f"NOT MADE: the load of {phase.factor:g}x, for want of a processor")
            kept = False
        if after is not None:
            wanted = 0.9 if phase.factor == 2 else 0.8
            kept &= goodput >= wanted * peak and p99 <= 3 * base and amplification <= 1.2
            kept &= recovery(after, base) <= 5 and phase.grown <= FLAT
    return kept
