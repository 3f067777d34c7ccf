"""Leases of a bridge whose primaries are cut off, killed and followed by others: never two holders, in any history.

The leases and their holders are the real ones, on a virtual clock.  The log and its copies are played: a grant counts
when the copies have it, and a primary of a former term is followed by none of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import IrisError, LeaseLost, RequestTimeout
from iris.patterns.bridge_protocol import Ask
from iris.patterns.state import Lease, open_lease
from iris.spark_bridge.server.leases import Leases

R = TypeVar("R")

_HOLDERS = 3
_SPAN = 120.0


class Log:
    """The table of leases in the log of one member."""

    def __init__(self, records: Mapping[bytes, bytes]) -> None:
        self.rows = dict(records)

    @contextmanager
    def read_transaction(self) -> Iterator[Log]:
        yield self

    def items(self, _table: object) -> list[tuple[bytes, bytes]]:
        return list(self.rows.items())

    def get(self, _table: object, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def put(self, _table: object, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def delete(self, _table: object, key: bytes) -> None:
        self.rows.pop(key, None)


class Primary:
    """A member of a bridge, as far as leases need it."""

    def __init__(self, world: World, term: int) -> None:
        self.world, self.term = world, term
        self.store = Log(world.copied)
        self.copies = self
        self.known = {0: "bridge"}
        self.changes = self.copied = 0
        self.leases = Leases(cast("Any", self), address="bridge")

    def now(self) -> int:
        return 0

    async def write(self, change: Callable[[Log, list[object]], None]) -> None:
        change(self.store, [])
        self.changes += 1
        number, written = self.changes, dict(self.store.rows)
        await self.reach_copies()
        if number > self.copied:  # copies make changes in their order
            self.copied, self.world.copied = number, written
        await self.world.travel()

    async def wait_followed(self) -> None:
        await self.reach_copies()
        await self.world.travel()

    async def reach_copies(self) -> None:
        """Wait until what is sent to the copies is there; for ever if they follow another one."""
        await self.world.travel()
        while self in self.world.cut:
            await self.world.healed.wait()
        if self.term < self.world.term:
            await trio.sleep_forever()


class World:
    """Holders, primaries and what happens to them."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.rng = random.Random(seed)
        self.nursery = nursery
        self.copied: Mapping[bytes, bytes] = {}
        """Records that the copies have."""
        self.term = 1
        """Term that the copies have promised to follow."""
        self.cut: set[Primary] = set()
        self.healed = trio.Event()
        self.primaries = [Primary(self, 1)]
        self.reached = dict.fromkeys(range(_HOLDERS), 0)
        """Number of the primary that each holder reaches."""
        self.held: dict[int, Lease] = {}
        self.tokens: list[int] = []
        self.lost = 0

    async def travel(self) -> None:
        await trio.sleep(self.rng.choice((0.01, 0.01, 0.3, 1.0)) * self.rng.random())

    async def handle(
        self, primary: Primary, number: int, request: Ask[R], found: list[R], answered: trio.Event
    ) -> None:
        sender: Any = SimpleNamespace(node=str(number), cluster="workers")
        await self.travel()
        reply = await primary.leases.requests()[type(request)](sender, request)
        await self.travel()
        if self.rng.random() < 0.95:  # else it is lost
            found.append(cast("R", reply))
            answered.set()

    async def ask(self, number: int, request: Ask[R], timeout: float) -> R:
        primary = self.primaries[min(self.reached[number], len(self.primaries) - 1)]
        answered = trio.Event()
        found: list[R] = []
        self.nursery.start_soon(self.handle, primary, number, request, found, answered)  # it goes on after who asked
        with trio.move_on_after(timeout):
            await answered.wait()
            return found[0]
        raise RequestTimeout("nobody answers")

    def check(self) -> None:
        assert sum(lease.left > 0 for lease in self.held.values()) <= 1, "two nodes believe that they may"

    async def hold(self, number: int) -> None:
        rng = random.Random(f"{number} {self.rng.random()}")
        bridges = Bridges(self, number, rng)
        while True:
            with suppress(LeaseLost, RequestTimeout):
                ttl = rng.choice((2.0, 5.0, 10.0))
                async with open_lease(bridges, "bridge", "workers", "x", ttl, 30.0, rng) as lease:
                    self.held[number] = lease
                    self.tokens.append(lease.token)
                    self.check()
                    await trio.sleep(rng.choice((1.0, 8.0, 60.0)) * rng.random())
                    del self.held[number]
            self.lost += self.held.pop(number, None) is not None
            await trio.sleep(rng.random())

    async def change(self) -> None:
        while True:
            await trio.sleep(self.rng.choice((0.5, 4.0, 15.0)) * self.rng.random())
            match self.rng.randrange(5):
                case 0:
                    self.cut ^= {self.rng.choice(self.primaries)}
                    self.healed.set()
                    self.healed = trio.Event()
                case 1:
                    self.reached[self.rng.randrange(_HOLDERS)] = self.rng.randrange(len(self.primaries) + 1)
                case 2:
                    self.reached = dict.fromkeys(range(_HOLDERS), len(self.primaries))
                case _:
                    self.cut.add(self.primaries[-1])
                    self.term += 1  # promised; from here the former one is followed by nobody
                    await trio.sleep(self.rng.random())
                    self.primaries.append(Primary(self, self.term))
            self.check()


class Bridges:
    """The bridge, as one holder reaches it."""

    def __init__(self, world: World, number: int, rng: random.Random) -> None:
        self.world, self.number, self.rng = world, number, rng

    async def ask(self, _cluster: str, request: Ask[R], timeout: float, /) -> R:
        return await self.world.ask(self.number, request, timeout)

    def entropy(self, size: int, /) -> bytes:
        return self.rng.randbytes(size)


async def run_history(seed: int) -> World:
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery)
        for number in range(_HOLDERS):
            nursery.start_soon(world.hold, number)
        nursery.start_soon(world.change)
        await trio.sleep(_SPAN)
        nursery.cancel_scope.cancel()
    return world


@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
async def test_a_primary_that_was_cut_off_has_no_holder_beside_the_next_one(
    autojump_clock: MockClock, count: int
) -> None:
    granted = lost = 0
    for seed in range(count):
        try:
            world = await run_history(seed)
        except* (AssertionError, IrisError) as errors:
            errors.add_note(f"seed {seed}")
            raise
        assert world.tokens == sorted(set(world.tokens)), f"seed {seed}: tokens grow"
        granted += len(world.tokens)
        lost += world.lost
    assert granted > 5 * count
    assert lost > count / 2, "holders were cut off"
