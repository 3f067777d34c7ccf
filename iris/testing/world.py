"""World: the hosts of a simulation, what runs on them, and the network between them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Final, final

import trio

from iris.kernel.errors import ConfigError
from iris.kernel.tasks import protected_context
from iris.node.node import Node
from iris.node.open import OpenNode
from iris.testing.machine import HOST, SimulatedDisk, Stalls, run_asyncio
from iris.testing.network import Network
from iris.testing.trace import Trace

Program = Callable[..., Awaitable[object]]

_RESTART: Final = 1.0
"""Seconds after which a supervisor starts a program anew that has failed."""


@final
class Host:
    """A machine of the simulation, with the programs that run on it."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.programs: Final[list[tuple[Program, tuple[object, ...], tuple[type[Exception], ...]]]] = []
        self.scope = trio.CancelScope()
        """Scope of everything that runs there."""
        self.nursery: trio.Nursery | None = None
        self.up = trio.Event()
        self.fails = False
        """True if the machine fails when it crashes, and not the programs alone."""

    @property
    def is_down(self) -> bool:
        """True while it has crashed and was not started again."""
        return not self.up.is_set()


@final
class World:
    """A simulated network of hosts, with a realm of its own.  Made for each seed by ``simulate``.

    ``iris.open_node`` (and that of ``iris.aio``) opens nodes of this world, on the host of the program that calls it.
    All hosts of a site find each other, so it refuses ``listen``, ``seeds``, ``lan=False``, ``revocations`` and
    ``environment`` with ``ConfigError``: a program leaves them out there.  Of a credential only the cluster is taken.

    Attributes:
        seed: the seed of the run.
        random: a source of random numbers for the test, from the seed.
        network: the network and its realm: ``credential``, ``memory``.
        trace: the events so far.
    """

    def __init__(
        self, network: Network, seed: int, trace: Trace, stalls: Stalls, directory: Path, disk: SimulatedDisk
    ) -> None:
        self.seed: Final = seed
        self.random: Final = random.Random(f"test {seed}")
        self.network: Final = network
        self.trace: Final = trace
        self.stalls: Final = stalls
        self.nodes: Final[list[Node]] = []
        """Every node that was opened."""
        self.healed: Final = trio.Event()
        """Event that is set when the faults are over."""
        self._directory = directory
        self._disk = disk
        self._hosts: dict[str, Host] = {}
        self._nursery: trio.Nursery | None = None

    # -- for tests -------------------------------------------------------------------------------------------

    def start(self, host: str, program: Program, *args: object, restart: Iterable[type[Exception]] = ()) -> None:
        """Run an async function on a host, which comes to be by that; again from its beginning after each crash.

        An error that it raises fails the test, but when its host crashes.  Code in ``finally`` and ``except`` blocks
        runs in a crash as well, which it would not on a machine; nothing that it sends arrives.

        Args:
            host: any name but ``test``, which is that of the test itself.
            program: the program to run; it may end.
            args: the arguments of the program.
            restart: errors after which it is started anew a second later, as a supervisor does.
        """
        if host == HOST.get() or host == "test":
            raise ConfigError(f"host {host!r} is the one that the test runs on: start the program on another")
        known = self._hosts.get(host)
        entry = (program, args, tuple(restart))
        if known is not None:
            known.programs.append(entry)
            if known.nursery is not None:
                self._start_program(known, *entry)
            return
        known = self._hosts[host] = Host(host)
        known.programs.append(entry)
        assert self._nursery is not None
        self._nursery.start_soon(self._run_host, known, name=f"host {host}")

    def start_asyncio(
        self,
        host: str,
        program: Callable[..., Coroutine[object, object, object]],
        *args: object,
        restart: Iterable[type[Exception]] = (),
    ) -> None:
        """Start a program of asyncio's as ``start`` does, with an event loop of its own and nodes of ``iris.aio``.

        There are no sockets, subprocesses and signals in that loop.
        """
        self.start(host, run_asyncio, program, *args, restart=restart)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that were started so far, and that of the test."""
        return (*self._hosts, "test")

    @property
    def is_faulty(self) -> bool:
        """True while faults may still begin, or go on."""
        return not self.healed.is_set()

    async def every(self, seconds: float) -> AsyncIterator[int]:
        """Yield 0, 1, 2 ... with a pause, until the faults are over."""
        number = 0
        while self.is_faulty:
            yield number
            number += 1
            with trio.move_on_after(seconds):
                await self.healed.wait()

    async def wait_healed(self) -> None:
        """Wait until the faults are over, and all hosts up."""
        await self.healed.wait()
        for host in self._hosts.values():
            await host.up.wait()

    def note(self, text: str) -> None:
        """Put a line into the timeline, and into the digest of the run."""
        self.trace.note("note", HOST.get(), text)

    def directory(self, host: str | None = None) -> Path:
        """Return the directory of a host that outlives its crashes; by default that of the caller's."""
        directory = self._directory / (host or HOST.get())
        directory.mkdir(exist_ok=True)
        return directory

    @staticmethod
    def url(host: str) -> str:
        """Return the address at which a gateway on a host can listen for others."""
        return f"mem://{host}/gateway"

    # -- for the simulation ----------------------------------------------------------------------------------

    def begin(self, nursery: trio.Nursery) -> None:
        """Take the nursery in which hosts run."""
        self._nursery = nursery

    def crash(self, host: str, *, power: bool = False) -> None:
        """Kill the programs of a host."""
        known = self._hosts[host]
        known.up = trio.Event()
        known.fails = power
        self.trace.note("host", host, "crashes")
        self.stalls.go_on(host)
        self.network.memory.crash(host)
        known.scope.cancel()

    def restart(self, host: str) -> None:
        """Start the programs of a host that has crashed anew."""
        self.trace.note("host", host, "starts again")
        self._hosts[host].up.set()

    async def _run_host(self, host: Host) -> None:
        HOST.set(host.name)
        host.up.set()
        while True:
            with trio.CancelScope() as host.scope:
                try:
                    async with trio.open_nursery() as host.nursery:
                        for program in host.programs:
                            self._start_program(host, *program)
                        await trio.sleep_forever()
                except Exception as error:
                    if not host.is_down:
                        raise
                    self.trace.note("host", host.name, f"what it raised while it crashed: {type(error).__name__}")
                finally:
                    host.nursery = None
            if host.fails:
                lost = self._disk.lose(host.name)
                self.trace.note("host", host.name, f"writes that are lost or torn: {lost}")
            await host.up.wait()

    def _start_program(
        self, host: Host, program: Program, args: tuple[object, ...], restart: tuple[type[Exception], ...]
    ) -> None:
        assert host.nursery is not None
        context = copy_context()
        context.run(HOST.set, host.name)
        context.run(host.nursery.start_soon, self._supervise, program, args, restart)

    async def _supervise(
        self, program: Program, args: tuple[object, ...], restart: tuple[type[Exception], ...]
    ) -> None:
        while True:
            try:
                await program(*args)
            except restart as error:
                self.note(f"the program failed: {type(error).__name__}: {error}")
                await trio.sleep(_RESTART)
            else:
                return

    @protected_context
    async def open_parts(self, *args: object, **options: object) -> AsyncIterator[OpenNode]:
        """Bring a node up on the host of the caller, in place of that of ``iris.node.open``, with its arguments.

        Raises:
            ConfigError: an argument is given that a simulation cannot honour, or cannot be used.
        """
        host = HOST.get()
        async with self.network.open_for_program(*args, host=host, **options) as opened:  # type: ignore[arg-type]
            node = opened.node
            self.nodes.append(node)
            self.trace.note("host", host, f"opens a node of {node.name}")
            try:
                yield opened
            finally:
                with suppress(RuntimeError):  # the run is over
                    self.trace.note("host", host, f"closes its node of {node.name}")
