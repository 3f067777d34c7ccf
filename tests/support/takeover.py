"""Takeovers of a bridge by an election, with real processes: ``python -m tests.support.takeover --turns 100 ENGINE``.

A primary and two copies; in each turn the primary is killed, stopped beyond its lease and continued, or cut off from
the engine, and in half of the turns in which it is killed its directory is removed, too.  Publishers go on all the
time, and so do two that want one lease of the bridge.  A process that ends is started again as a copy, as a supervisor
does.  After each turn, and in the end, it looks at the log, and raises AssertionError if an acknowledged event is lost
or doubled, if two had the lease, or if a former primary was not refused.  A turn that does not come to rest leaves what
each process says of itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, assert_never, final

import trio

import iris
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import ask_copies
from iris.spark_bridge.election.engine import LEASE
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.events.schema import decode_events
from tests.support.etcd import find_etcd, open_etcd
from tests.support.postgres import find_server, open_postgres
from tests.support.processes import Child, open_realm
from tests.support.waiting import wait_until

Fault = Literal["killed", "stopped", "cut off"]

_PATIENCE: Final = 120.0
_BEGINS: Final = 300.0
"""Seconds that a process may take to begin where others use the machine, too."""
_PUBLISHERS: Final = 4
_STOPPED: Final = 10.0
"""Seconds that a primary is stopped for at the least: more than its lease, and more than a failure detection takes."""


@final
class Gate:
    """A port that leads to the engine until it is shut: a network that can be cut for one process."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self._open = trio.Event()
        self._open.set()
        self._scopes: set[trio.CancelScope] = set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._forward, [listener])

    def shut(self) -> None:
        """Let nothing through: connections are taken, and nothing answers."""
        self._open = trio.Event()
        for scope in self._scopes:
            scope.cancel()

    def open(self) -> None:
        """Let everything through again."""
        self._open.set()

    async def _forward(self, client: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, OSError), trio.CancelScope() as scope:
            await self._open.wait()
            self._scopes.add(scope)
            async with (
                client,
                await trio.open_tcp_stream("127.0.0.1", self._target) as server,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_copy, client, server)
                await _copy(server, client)
                nursery.cancel_scope.cancel()
        self._scopes.discard(scope)


async def _copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        async for data in source:
            await target.send_all(data)


@dataclasses.dataclass
class Shown:
    """What a run has shown."""

    acknowledged: list[str] = dataclasses.field(default_factory=list[str])
    served: list[tuple[Fault, float]] = dataclasses.field(default_factory=list[tuple[Fault, float]])
    """For each turn, the longest time in seconds for which a publisher waited for an acknowledgement."""
    holders: list[str] = dataclasses.field(default_factory=list[str])
    leases: int = 0
    needless: int = 0
    """Takeovers from a primary to which nothing was done."""
    refused: int = 0
    """How often a former primary that began as a copy was refused, and began again."""

    def __str__(self) -> str:
        times = [seconds for _, seconds in self.served]
        by_fault = {
            fault: f"{statistics.median(some):.1f} s, at most {max(some):.1f} s"
            for fault in ("killed", "stopped", "cut off")
            if (some := [seconds for what, seconds in self.served if what == fault])
        }
        return (
            f"{len(self.acknowledged)} events acknowledged, none lost, none doubled; {len(times)} takeovers, writers "
            f"served again after {statistics.median(times):.1f} s, at most {max(times):.1f} s ({by_fault}); "
            f"{self.needless} takeovers without a fault, {self.refused} former primaries begun twice; "
            f"{self.leases} leases, never two holders"
        )


@final
class Stage:
    """A bridge of three processes, an engine, and those who use the bridge."""

    def __init__(self, directory: Path, chance: random.Random, gates: dict[str, Gate], url: str) -> None:
        self._directory = directory
        self._chance = chance
        self._gates = gates
        self._url = url
        self.children: dict[str, Child] = {}
        self.primary = ""
        self.shown = Shown()
        self._number = 0
        self._acknowledged = trio.Event()
        """Set, and replaced, with each acknowledgement."""
        self._last = [0.0] * _PUBLISHERS
        """When each publisher had its last acknowledgement."""
        self.gap = 0.0
        """Longest wait of a publisher for an acknowledgement in this turn, in seconds."""
        self._down: set[str] = set()
        """Those to which something is done now."""
        self._found: Counter[str] = Counter()
        """What the log has below ``_looked``."""
        self._looked: dict[str, int] = {}
        """Offset up to which each shard was looked at."""

    def _child(self, name: str, *options: str, ready: str) -> Child:
        url = self._url.format(port=self._gates[name].port)
        command = [sys.executable, "-m", "iris", "-v", "bridge", "--data", str(self._directory / name)]
        command += ["--election", url]
        return Child([*command, *options], ready=ready, log=self._directory / f"{name}.txt")

    async def start(self) -> None:
        """Start a primary and two copies."""
        first, *others = self._gates
        self.children[first] = self._child(first, "--topic", "events", "--min-copies", "1", ready="serves")
        self.children[first].launch()
        for name in others:
            self._follow(name)
        await self.wait_in_step()

    def _follow(self, name: str) -> None:
        self.children[name] = self._child(name, "--follow", "bridge/0", "--copy", name, ready="is the copy")
        self.children[name].launch()

    async def supervise(self) -> None:
        """Start again, as a copy, what has ended though nothing was done to it."""
        while True:
            for name in self.children.keys() - self._down:
                if not self.children[name].alive:
                    said = self.children[name].said()
                    assert "was promoted elsewhere" in said, f"{name} has ended: {said[-2000:]}"
                    if "serves" in said:
                        self.shown.needless += 1
                    else:  # it found no primary when it began, and then met one
                        self.shown.refused += 1
                    self._follow(name)
            await trio.sleep(0.1)

    async def wait_in_step(self) -> None:
        """Wait until all have begun and both copies take part in confirmations."""
        await wait_until(lambda: all(self._has_begun(name) for name in self._gates), within=_BEGINS)
        async with iris.open_node("observer") as node:
            client = BridgeClient(node, "bridge", patience=2.0)
            with trio.fail_after(_PATIENCE):
                while True:
                    with contextlib.suppress(BridgeUnreachable):
                        copies = (await read_status(client)).copies.get("bridge", ())
                        if [copy.state for copy in copies].count("in step") >= 2:
                            (self.primary,) = self._gates.keys() - {copy.name for copy in copies}
                            return
                    await trio.sleep(0.05)

    def _has_begun(self, name: str) -> bool:
        said = self.children[name].said()
        return self.children[name].alive and ("is the copy" in said or "serves" in said)

    async def describe(self) -> str:
        """Return what each process says of itself, for who wants to know why a turn does not come to rest."""
        lines: list[str] = []
        with trio.move_on_after(20):
            async with iris.open_node("observer") as node:
                try:
                    status = await read_status(BridgeClient(node, "bridge", patience=5.0))
                    lines += [str(shard) for shard in status.shards] + [str(copy) for copy in status.copies.values()]
                except iris.IrisError as error:
                    lines.append(repr(error))
                lines += [str(state) for state in await ask_copies(node, "bridge", 0, "state")]
        for name, child in self.children.items():
            lines += [f"-- {name}, {'alive' if child.alive else 'ended'}", child.said()[-5000:]]
        return "\n".join(lines)

    async def publish(self, node: iris.Node, which: int) -> None:
        """Publish one event after the other, each acknowledged."""
        while True:
            self._number += 1
            value = str(self._number)
            began = trio.current_time()
            await node.publish_confirmed("events", value, timeout=_PATIENCE)
            self.shown.acknowledged.append(value)
            self._last[which] = trio.current_time()
            self.gap = max(self.gap, trio.current_time() - began)
            self._acknowledged.set()
            self._acknowledged = trio.Event()
            await trio.sleep(0.01)

    async def hold(self, node: iris.Node) -> None:
        """Have the lease again and again."""
        holders = self.shown.holders
        while True:
            try:
                async with node.bridge().lease("one", ttl=6):
                    assert not holders, "two have the lease"
                    holders.append(node.id)
                    self.shown.leases += 1
                    try:
                        await trio.sleep(0.2)
                    finally:
                        holders.remove(node.id)
            except iris.IrisError:
                await trio.sleep(0.1)  # without a member that grants them it fails at once

    async def turn(self, fault: Fault) -> None:
        """Let something happen to the primary, and wait until another one is, and all are back."""
        former, child = self.primary, self.children[self.primary]
        began = trio.current_time()
        self.gap = 0.0
        self._down.add(former)
        match fault:
            case "killed":
                child.end(signal.SIGKILL)
                if self._chance.random() < 0.5:
                    await trio.to_thread.run_sync(shutil.rmtree, self._directory / former)
            case "stopped":
                child.send(signal.SIGSTOP)
            case "cut off":
                self._gates[former].shut()
            case _:
                assert_never(fault)
        with trio.fail_after(_PATIENCE):
            await self.wait_taken(former)
            taken = trio.current_time()
            while min(self._last) < taken:
                await self._acknowledged.wait()
        self.shown.served.append((fault, self.gap))
        if fault == "stopped":
            await trio.sleep_until(began + _STOPPED)
            child.send(signal.SIGCONT)
        if fault != "killed":
            await self.wait_refused(former)
            self._gates[former].open()
        await self.come_back(former)

    async def wait_taken(self, former: str) -> None:
        """Wait until another one is the primary."""
        while True:
            for name in self.children.keys() - {former}:
                if self.children[name].alive and "serves" in self.children[name].said().rpartition("is the copy")[2]:
                    return
            await trio.sleep(0.02)

    async def wait_refused(self, former: str) -> None:
        """Wait until a former primary has ended since another one was promoted."""
        said = await trio.to_thread.run_sync(self.children[former].wait_end)
        assert "was promoted elsewhere" in said, said[-2000:]

    async def come_back(self, former: str) -> None:
        """Start a former primary as a copy."""
        self._follow(former)
        self._down.discard(former)
        await self.wait_in_step()

    async def check(self, *, whole: bool = False) -> None:
        """Raise AssertionError if an acknowledged event is not in the log, or any is there twice.

        Args:
            whole: look at the whole log, and not only behind what was looked at before.
        """
        if whole:
            self._looked.clear()
            self._found.clear()
        acknowledged, found = set(self.shown.acknowledged), self._found
        async with iris.open_node("reader") as node:
            client = BridgeClient(node, "bridge", patience=_PATIENCE)
            (shard,) = await client.shards()
            at = self._looked.get(shard.id, shard.earliest)
            async for chunks in client.read(shard.address, shard.id, at, shard.next):
                for chunk in chunks:
                    values = decode_events(chunk.data).column("value").to_pylist()
                    found.update(value.decode() for value in values[max(0, at - chunk.first) :])
            self._looked[shard.id] = shard.next
        lost = acknowledged - found.keys()
        assert not lost, f"acknowledged and lost: {sorted(lost)[:10]}"
        doubled = [value for value, count in found.items() if count > 1]
        assert not doubled, f"stored twice: {doubled[:10]}"


@contextlib.contextmanager
def open_engine(kind: str) -> Iterator[tuple[str, int, object]]:
    """Run an engine; yield its URL with {port} in the place of its port, the port, and the server."""
    if kind == "etcd":
        program = find_etcd()
        assert program is not None, "etcd is not installed"
        with open_etcd(program) as server:
            yield "etcd://127.0.0.1:{port}", server.port, server
    else:
        programs = find_server()
        assert programs is not None, "PostgreSQL is not installed"
        with open_postgres(programs) as env:
            yield f"postgresql://{env['PGUSER']}@127.0.0.1:{{port}}/{env['PGDATABASE']}", int(env["PGPORT"]), env


@asynccontextmanager
async def open_stage(url: str, port: int, chance: random.Random) -> AsyncIterator[Stage]:
    """Start everything; the bridge's processes are killed in the end."""
    with open_realm() as directory:
        async with trio.open_nursery() as nursery:
            gates = {name: Gate(port) for name in ("a", "b", "c")}
            for gate in gates.values():
                await nursery.start(gate.run)
            stage = Stage(directory, chance, gates, url)
            try:
                await stage.start()
                async with (
                    iris.open_node("publishers") as publisher,
                    iris.open_node("workers") as one,
                    iris.open_node("workers") as two,
                ):
                    async with trio.open_nursery() as users:
                        for which in range(_PUBLISHERS):
                            users.start_soon(stage.publish, publisher, which)
                        users.start_soon(stage.hold, one)
                        users.start_soon(stage.hold, two)
                        users.start_soon(stage.supervise)
                        yield stage
                        users.cancel_scope.cancel()
                    await stage.check(whole=True)
            finally:
                for child in stage.children.values():
                    if child.alive:
                        with contextlib.suppress(ProcessLookupError):
                            child.send(signal.SIGCONT)
                if sys.exc_info()[0] is not None:
                    with trio.CancelScope(shield=True):
                        print(await stage.describe(), file=sys.stderr)  # noqa: T201
                for child in stage.children.values():
                    child.end(signal.SIGKILL)
            nursery.cancel_scope.cancel()


async def run_turns(kind: str, turns: int, seed: int = 1) -> Shown:
    """Run turns, each with the next fault; return what was shown."""
    chance = random.Random(seed)
    faults: tuple[Fault, ...] = ("killed", "stopped", "cut off")
    with open_engine(kind) as (url, port, _):
        async with open_stage(url, port, chance) as stage:
            for number in range(1, turns + 1):
                try:
                    await stage.turn(faults[(number - 1) % len(faults)])
                    await stage.check()
                except (AssertionError, iris.IrisError, trio.TooSlowError) as error:
                    error.add_note(f"in turn {number}")
                    raise
                fault, seconds = stage.shown.served[-1]
                print(  # noqa: T201
                    f"turn {number}: {fault}, {seconds:.1f} s; {len(stage.shown.acknowledged)} acknowledged, none lost,"
                    f" none doubled; {stage.shown.needless} takeovers without a fault, {stage.shown.refused}"
                    f" begun twice; load {os.getloadavg()[0]:.0f}",
                    flush=True,
                )
    return stage.shown


async def run_away(seconds: float) -> int:
    """Kill etcd for some seconds; return how many events were acknowledged meanwhile by the same primary."""
    with open_engine("etcd") as (url, port, server):
        async with open_stage(url, port, random.Random(1)) as stage:
            primary = stage.primary
            server.kill()  # type: ignore[attr-defined]
            before = len(stage.shown.acknowledged)
            await trio.sleep(seconds)
            meanwhile = len(stage.shown.acknowledged) - before
            await trio.to_thread.run_sync(server.start)  # type: ignore[attr-defined]
            await trio.sleep(2 * LEASE)  # nobody takes over behind it either
            for name in stage.children.keys() - {primary}:
                assert "serves" not in stage.children[name].said()
            assert stage.children[primary].alive
    return meanwhile


async def run_calm(kind: str, seconds: float) -> tuple[int, float]:
    """Let nothing happen; return how often a copy took over all the same, and the longest wait of a publisher."""
    with open_engine(kind) as (url, port, _):
        async with open_stage(url, port, random.Random(1)) as stage:
            await trio.sleep(seconds)
            await stage.wait_in_step()
    return stage.shown.needless, stage.gap


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["etcd", "postgres"])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--away", type=float, help="seconds that etcd is killed for, in the place of turns")
    parser.add_argument("--calm", type=float, help="seconds in which nothing happens, in the place of turns")
    chosen = parser.parse_args()
    if chosen.away:
        print(trio.run(run_away, chosen.away), "events acknowledged while etcd was away, and nobody took over")  # noqa: T201
    elif chosen.calm:
        number, longest = trio.run(run_calm, chosen.engine, chosen.calm)
        print(f"{number} takeovers in {chosen.calm:g} s without a fault, a publisher waited {longest:.1f} s at most")  # noqa: T201
    else:
        print(trio.run(run_turns, chosen.engine, chosen.turns))  # noqa: T201
