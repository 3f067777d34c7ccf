"""Tests of programs for asyncio: what ``iris.testing`` has for trio, by the same names.

::

    async def test_orders():  # with pytest-asyncio, anyio or unittest.IsolatedAsyncioTestCase
        async with iris.aio.testing.autojump_clock(), iris.aio.testing.open_network() as network:
            async with network.open_node("orders") as member, network.open_node("shop") as shop:
                async with member.join("orders", service):
                    await shop.wait_for("orders")
                    assert await shop.request("orders", b"status") == b"open"

What knows no event loop is the same object as for trio and stays in ``iris.testing``: ``Faults``, ``CHAOS``,
``History``, ``check_at_most_once``, ``check_fifo``, ``check_books``, ``inspect`` and so on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial, wraps
from inspect import iscoroutinefunction
from pathlib import Path
from random import Random
from typing import final

from iris.aio.crossing import Handle, Opening, Source, awaited, block, direct
from iris.aio.guest import enter_guest
from iris.aio.jumping import autojump_clock
from iris.aio.node import Node
from iris.kernel.transport import MemoryNetwork
from iris.node.shown import Shown
from iris.security.identity import Rights, SigningKey
from iris.testing import ALL_RIGHTS, CALM, Faults
from iris.testing import Network as TrioNetwork
from iris.testing import World as TrioWorld
from iris.testing import check_answers as check_trio_answers
from iris.testing import open_network as open_trio_network
from iris.testing import simulate as simulate_trio
from iris.testing.machine import run_asyncio

__all__ = ("Network", "World", "autojump_clock", "check_answers", "open_network", "simulate")


@final
class Network(Handle[TrioNetwork]):
    """See ``iris.testing.Network``.  Made by ``open_network``; for use in its event loop."""

    __slots__ = ()

    memory = Shown[MemoryNetwork]()
    root = Shown[SigningKey]()
    wall_clock = direct(TrioNetwork.wall_clock)
    credential = direct(TrioNetwork.credential)
    bundle = direct(TrioNetwork.bundle)
    trust = direct(TrioNetwork.trust)
    distrust = direct(TrioNetwork.distrust)
    open_node = block(TrioNetwork.open_node, Node)

    def other_realm(self, seed: int, rights: Rights = ALL_RIGHTS) -> Network:
        """See ``iris.testing.Network.other_realm``."""
        return Network(self._inner.other_realm(seed, rights), self._guest)


@asynccontextmanager
async def open_network(
    *,
    seed: int = 0,
    latency: tuple[float, float] = (0.0001, 0.0005),
    loss: float = 0.0,
    rights: Rights = ALL_RIGHTS,
) -> AsyncIterator[Network]:
    """See ``iris.testing.open_network``: in this event loop, in real time but within ``autojump_clock``.

    In the block, and in tasks that begin in it, ``iris.aio.open_node`` opens nodes of this network.
    """
    opening = partial(open_trio_network, seed=seed, latency=latency, loss=loss, rights=rights)
    async with Opening(opening, Network, "open_network") as network:
        with network._inner.serving_programs():  # in the context of this task; trio's has its own
            yield network


@final
class World(Handle[TrioWorld]):
    """See ``iris.testing.World``.  Made for each seed by ``simulate``."""

    __slots__ = ()

    seed = Shown[int]()
    random = Shown[Random]()
    start = direct(TrioWorld.start_asyncio)
    start_trio = direct(TrioWorld.start)
    hosts = Shown[tuple[str, ...]]()
    is_faulty = Shown[bool]()
    wait_healed = awaited(TrioWorld.wait_healed)
    note = direct(TrioWorld.note)
    url = staticmethod(TrioWorld.url)

    @property
    def network(self) -> Network:
        """The network and its realm."""
        return Network(self._inner.network, self._guest)

    def every(self, seconds: float) -> AsyncIterator[int]:
        """See ``iris.testing.World.every``."""
        return Source(self._inner.every(seconds), self._guest)

    def directory(self, host: str | None = None) -> Path:
        """See ``iris.testing.World.directory``."""
        return self._inner.directory(host)


def simulate(
    *, seeds: int | Iterable[int] = 100, hours: float = 0.1, faults: Faults = CALM, shrink_runs: int = 100
) -> Callable[[Callable[..., Coroutine[object, object, object]]], Callable[..., None]]:
    """See ``iris.testing.simulate``: the test is for asyncio, and so are the programs that its ``World`` starts.

    Each program, and the test, has an event loop of its own, which knows no sockets, subprocesses and signals.
    """
    decorate = simulate_trio(seeds=seeds, hours=hours, faults=faults, shrink_runs=shrink_runs)

    def decorate_asyncio(function: Callable[..., Coroutine[object, object, object]]) -> Callable[..., None]:
        if not iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is no async function: simulate runs those only")

        @wraps(function)
        async def test(*args: object, **fixtures: object) -> None:
            await run_asyncio(_with_world, function, args, fixtures)

        return decorate(test)

    return decorate_asyncio


async def _with_world(
    function: Callable[..., Coroutine[object, object, object]], args: tuple[object, ...], fixtures: dict[str, object]
) -> None:
    *own, world = args  # a test that is a method has itself first
    assert isinstance(world, TrioWorld)
    guest = await enter_guest()
    try:
        await function(*own, World(world, guest), **fixtures)
    finally:
        await guest.leave()


async def check_answers(
    node: Node, cluster: str, payload: object = b"", *, within: float = 60.0, **options: object
) -> None:
    """See ``iris.testing.check_answers``."""
    await node._guest.call(partial(check_trio_answers, node._inner, cluster, payload, within=within, **options))
