"""Tunnels between whole nodes, each cut at a random moment: by a crash, or by a network that passes nothing any more.

The network is in memory and the time is virtual, so that ten thousand of them fit into minutes; everything else is
what a real node runs.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final, final

import trio
import trio.testing

import iris
import iris.testing
from benchmarks.streams.nodes import CLUSTER
from benchmarks.streams.table import heading, row

_ERROR: Final = "TunnelBroken"


@final
class End:
    """One end of a tunnel at work: sends and reads numbered messages until it cannot."""

    def __init__(self, rng: random.Random) -> None:
        self.outcome = "none"
        self.read = 0
        self._rng = rng

    async def run(self, tunnel: iris.Tunnel) -> None:
        """Use a tunnel in both directions until it ends; how it ended is in ``outcome``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send, tunnel)
            try:
                async for payload in tunnel:
                    if int.from_bytes(payload[:8]) != self.read:
                        self.outcome = "out of order"
                        return
                    self.read += 1
                self.outcome = "end of file"
            except iris.TunnelBroken:
                self.outcome = _ERROR
            finally:
                nursery.cancel_scope.cancel()

    async def _send(self, tunnel: iris.Tunnel) -> None:
        number = 0
        while True:
            try:
                await tunnel.send(number.to_bytes(8) + bytes(self._rng.randrange(50_000)))
            except iris.TunnelBroken:
                return  # the reading task says so
            number += 1
            await trio.sleep(self._rng.uniform(0, 0.002))


async def _cuts(seed: int, count: int) -> tuple[Counter[str], int]:
    """Cut so many tunnels; return how their ends saw it, and how many messages were read."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    messages = 0
    async with iris.testing.open_network(seed=seed) as network, network.open_node("opener", host="opener") as opener:
        for number in range(count):
            host = f"member-{number}"
            crash = rng.random() < 0.5
            near, far = End(rng), End(rng)
            service = iris.Service(CLUSTER)
            service.tunnel(far.run)
            async with network.open_node(CLUSTER, host=host) as member, member.join(CLUSTER, service):
                await opener.wait_for(CLUSTER)

                async def use() -> None:
                    try:
                        async with opener.open_tunnel(CLUSTER) as tunnel:
                            await near.run(tunnel)  # noqa: B023 -- it runs within this turn
                    except iris.IrisError as error:
                        near.outcome = type(error).__name__  # noqa: B023

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use)
                    await trio.sleep(rng.expovariate(1 / 0.01))
                    if crash:
                        network.memory.crash(host)
                    else:
                        network.memory.partition(["opener"], [host])
                    with trio.move_on_after(120):
                        # The time is virtual, so looking costs nothing.
                        while near.outcome == "none" or (far.outcome == "none" and not crash and far.read):  # noqa: ASYNC110
                            await trio.sleep(0.1)
                    nursery.cancel_scope.cancel()
                outcomes[f"{'crash' if crash else 'cut'}: {near.outcome}"] += 1
                if not crash and far.read:
                    outcomes[f"cut at the other end: {far.outcome}"] += 1
                messages += near.read + far.read
            network.memory.heal()
    return outcomes, messages


def conduct(*, quick: bool) -> None:
    """Cut, and count how it was seen."""
    count = 50 if quick else 10_000
    heading("Tunnels between whole nodes, cut at random moments", "cuts", "how the ends saw it", "messages read before")
    outcomes: Counter[str] = Counter()
    messages = 0
    for start in range(0, count, 100):
        part = min(100, count - start)
        clock = trio.testing.MockClock(autojump_threshold=0)
        found, read = trio.run(_cuts, start, part, clock=clock)
        outcomes += found
        messages += read
    row(f"{count:,}", "; ".join(f"{what}: {times:,}" for what, times in sorted(outcomes.items())), f"{messages:,}")
    silent = {what: times for what, times in outcomes.items() if what.endswith(("none", "end of file", "out of order"))}
    if silent:
        raise SystemExit(f"cuts: not every cut was an error: {silent}")
