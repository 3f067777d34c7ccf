"""Tunnels between whole nodes, each cut at a random moment: by a crash, or by a network that passes nothing any more.

The network is in memory and the time is virtual, so that ten thousand of them fit into minutes; everything else is
what a real node runs.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final, final

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing

CLUSTER: Final = "streams"
_ERROR: Final = "TunnelBroken"
_AT_ONCE: Final = 10
_PATIENCE: Final = 120
"""Seconds after which an end without an error counts as silent."""


@final
class Seen:
    """Reports of the ends of tunnels that were cut."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.longest = 0.0
        """Seconds from a cut until the last of the ends that live had its error."""


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


async def _cuts(seed: int, count: int) -> Seen:
    """Cut so many times ``_AT_ONCE`` tunnels."""
    rng = random.Random(seed)
    seen = Seen()
    async with iris.testing.open_network(seed=seed) as network, network.open_node("opener", host="opener") as opener:
        for number in range(count):
            kind = rng.choice(["crash", "cut"])
            await cut_once(network, opener, f"member-{number}", rng, seen, kind=kind, after=rng.expovariate(1 / 0.01))
            network.memory.heal()
    return seen


async def cut_once(
    network: iris.testing.Network,
    opener: iris.Node,
    host: str,
    rng: random.Random,
    seen: Seen,
    *,
    kind: str,
    after: float,
) -> None:
    """Cut ``_AT_ONCE`` tunnels to a new member ``after`` so many seconds; add to ``seen`` how their ends saw it.

    An end may come to be after the cut: what was in flight then still arrives.  And a node that opens waits for an
    answer for a shorter time than it takes to hold a node dead.  So all ends that have come to be are waited for, and
    what they saw is noted before the member leaves, which would end them as well.
    """
    near = [End(rng) for _ in range(_AT_ONCE)]
    far: list[End] = []
    async with network.open_node(CLUSTER, host=host) as member, member.join(CLUSTER, _service(far, rng)):
        await opener.wait_for(CLUSTER)
        async with trio.open_nursery() as nursery:
            for end in near:
                nursery.start_soon(_use, opener, end)
            await trio.sleep(after)
            started = trio.current_time()
            if kind == "crash":
                network.memory.crash(host)
            else:
                network.memory.partition(["opener"], [host])
            living = [near] if kind == "crash" else [near, far]
            with trio.move_on_after(_PATIENCE):
                while any(end.outcome == "none" for ends in living for end in ends):  # noqa: ASYNC110 -- virtual time
                    await trio.sleep(0.1)
            seen.longest = max(seen.longest, trio.current_time() - started)
            seen.outcomes.update(f"{kind}: {end.outcome}" for end in near)
            if kind == "cut":
                seen.outcomes.update(f"{kind} at the other end: {end.outcome}" for end in far)
            nursery.cancel_scope.cancel()


def _service(ends: list[End], rng: random.Random) -> iris.Service:
    """Return the member's side: every tunnel gets an end that is noted."""
    service = iris.Service(CLUSTER)

    @service.tunnel
    async def use(tunnel: iris.Tunnel) -> None:
        end = End(rng)
        ends.append(end)
        await end.run(tunnel)

    return service


async def _use(opener: iris.Node, end: End) -> None:
    """Open a tunnel and use it."""
    try:
        async with opener.open_tunnel(CLUSTER) as tunnel:
            await end.run(tunnel)
    except iris.IrisError as error:
        if end.outcome == "none":  # leaving the block reports the same again, whatever the end itself has reported
            end.outcome = type(error).__name__


async def test_an_end_that_comes_to_be_after_the_cut_is_waited_for(autojump_clock: MockClock) -> None:
    """Nothing is there faster than 0.1 ms, so the member sees none of the tunnels before it is cut off."""
    seen = Seen()
    async with (
        iris.testing.open_network(seed=1) as network,
        network.open_node("opener", host="opener") as opener,
    ):
        await cut_once(network, opener, "member", random.Random(1), seen, kind="cut", after=0.00005)
    assert seen.outcomes == {"cut: RequestTimeout": 10, "cut at the other end: TunnelBroken": 10}
    assert 5 < seen.longest < 10, "the openers gave up before the member held their node dead"


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.long)])
async def test_every_cut_of_a_tunnel_is_an_error_at_every_end_that_lives(count: int, autojump_clock: MockClock) -> None:
    seen = await _cuts(0, count)
    near = [outcomes for what, outcomes in seen.outcomes.items() if "other end" not in what]
    assert sum(near) == count * _AT_ONCE, seen.outcomes
    # One that was being opened just then may not have come to be at all, which is an error of its own.
    assert {what.split(": ")[1] for what in seen.outcomes} <= {
        _ERROR, "RequestTimeout", "NoSuchCluster", "NotSent",
    }  # fmt: skip
    broken = sum(times for what, times in seen.outcomes.items() if what.endswith(_ERROR))
    assert broken > count * _AT_ONCE, seen.outcomes
