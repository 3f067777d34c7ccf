"""The books under faults: five members at two sites, all patterns at a time, and something breaks every few seconds.

| fault | how |
|---|---|
| a member stands still | SIGSTOP for 0.5 to 8 s |
| a member dies | SIGKILL; another process takes its place |
| a gateway dies | SIGKILL, likewise |
| sockets are cut | packets to a process are answered with a reset for 0.3 s |
| partition | packets to a member, or between the sites, are dropped for 0.5 to 6 s |

It runs in a network namespace of its own, so it needs root.  At the end everything is whole, and then every message has
to be in one column; what the members have counted for themselves has to fit to that.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

import iris
from benchmarks.books.children import CLUSTER
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import RealmRoot, create_realm
from iris.security.files import save_credential
from iris.security.identity import Rights

_ISOLATED = "IRIS_BOOKS_ISOLATED"
_SENDER = 7000
_FAILURES = (iris.DeliveryError, iris.TunnelBroken, trio.BrokenResourceError)
_HEALED = 20.0
"""Seconds after the last fault until the books are closed: links are made anew, who is dead is known."""


def isolate() -> None:
    """Go on in a network namespace of its own, with a loopback whose packets can be dropped."""
    if os.environ.get(_ISOLATED):
        return
    script = (
        'ip link set lo up && nft add table inet books && nft add chain inet books input "{ type filter hook input '
        'priority 0 ; }" && exec "$@"'
    )
    command = ["unshare", "-n", "sh", "-c", script, "sh", sys.executable, *sys.orig_argv[1:]]
    os.environ[_ISOLATED] = "1"
    os.execvp(command[0], command)


class Child:
    """A process, and how it is started again."""

    def __init__(self, role: str, port: int, home: Path, *arguments: str) -> None:
        self.role, self.port = role, port
        self._home = home / f"{role}-{port}"
        self._home.mkdir(mode=0o700)
        self._command = [sys.executable, "-m", "benchmarks.books.children", role, *arguments]
        self.stopped = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self._home), "IRIS_HOME": str(self._home)}
        return subprocess.Popen(self._command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    async def wait_ready(self) -> None:
        """Wait until it is there."""
        assert self.process.stdout is not None
        await trio.to_thread.run_sync(self.process.stdout.readline)

    def kill(self) -> None:
        """Kill it; another one takes its place."""
        self.process.kill()
        self.process.wait()
        self.stopped = False
        self.process = self._start()

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.stopped = number == signal.SIGSTOP
        self.process.send_signal(number)


class Stage:
    """The realm, its processes, and what breaks."""

    def __init__(self, home: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counts = home / "counts"
        self.counts.mkdir()
        realm = create_realm(os.urandom)
        realm, self.credential = self._issue(realm, home, "shop")
        realm, member = self._issue(realm, home, CLUSTER)
        _, gateway = self._issue(realm, home, "gates")
        near, far = f"tcp://127.0.0.1:{_SENDER}", "tcp://127.0.0.1:7040"
        gates = [f"tcp://127.0.0.1:{port}" for port in (7021, 7041, 7043)]

        def child(role: str, port: int, site: str, seed_url: str, credential: Path, *more: str) -> Child:
            listen = f"tcp://127.0.0.1:{port}"
            arguments = ("--credential", str(credential), "--site", site, "--listen", listen, *more)
            return Child(role, port, home, *arguments, *(() if seed_url == listen else ("--seeds", seed_url)))

        self.gateways = [
            child("gateway", 7020, "near", near, gateway, "--between", gates[0]),
            child("gateway", 7040, "far", far, gateway, "--between", gates[1], "--peers", gates[0]),
            child("gateway", 7042, "far", far, gateway, "--between", gates[2], "--peers", gates[0]),
        ]
        counted = ("--counts", str(self.counts))
        self.members = [
            *(child("member", port, "near", near, member, *counted) for port in (7011, 7012, 7013)),
            *(child("member", port, "far", far, member, *counted) for port in (7031, 7032)),
        ]
        self.faults: Counter[str] = Counter()

    def _issue(self, realm: RealmRoot, home: Path, name: str) -> tuple[RealmRoot, Path]:
        wall_now = iris.Environment().wall_clock()
        rights = Rights(serves=(">",), gateway=True)
        realm, credential = issue_cluster(realm, name, entropy=os.urandom, wall_now=wall_now, rights=rights)
        save_credential(home / f"{name}.json", credential)
        return realm, home / f"{name}.json"

    async def break_things(self) -> None:
        """Break something every few seconds, until cancelled; then everything is whole."""
        kinds = (self.stop, self.kill, self.cut, self.part, self.kill_gateway, self.part_sites)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self.chance.uniform(1.0, 4.0))
                    kind = self.chance.choice(kinds)
                    self.faults[kind.__name__.replace("_", " ")] += 1
                    nursery.start_soon(kind)
        finally:
            self._nft("flush", "chain", "inet", "books", "input")
            for member in self.members:
                if member.stopped:
                    member.send(signal.SIGCONT)

    async def stop(self) -> None:
        """A member stands still."""
        member = self.chance.choice(self.members)
        member.send(signal.SIGSTOP)
        await trio.sleep(self.chance.choice((0.5, 2.0, 8.0)))
        if member.stopped:
            member.send(signal.SIGCONT)

    async def kill(self) -> None:
        """A member dies."""
        self.chance.choice(self.members).kill()
        await trio.lowlevel.checkpoint()

    async def kill_gateway(self) -> None:
        """A gateway dies."""
        self.chance.choice(self.gateways).kill()
        await trio.lowlevel.checkpoint()

    async def cut(self) -> None:
        """The sockets to a process are cut."""
        port = self.chance.choice((*(member.port for member in self.members), *range(7020, 7022), 7041, 7043, _SENDER))
        await self._rule((port,), "reject with tcp reset", 0.3)

    async def part(self) -> None:
        """Nothing comes to a member."""
        await self._rule((self.chance.choice(self.members).port,), "drop", self.chance.uniform(0.5, 6.0))

    async def part_sites(self) -> None:
        """Nothing passes between the sites."""
        await self._rule((7021, 7041, 7043), "drop", self.chance.uniform(0.5, 6.0))

    async def _rule(self, ports: tuple[int, ...], verdict: str, seconds: float) -> None:
        chosen = "{ " + ", ".join(map(str, ports)) + " }"
        told = self._nft("--echo", "--handle", "add", "rule", "inet", "books", "input", f"tcp dport {chosen} {verdict}")
        handle = told.rpartition("handle ")[2].split()[0]
        await trio.sleep(seconds)
        self._nft("delete", "rule", "inet", "books", "input", "handle", handle)

    def _nft(self, *arguments: str) -> str:
        return subprocess.run(["nft", *arguments], capture_output=True, check=True, text=True).stdout

    def end(self) -> None:
        """Kill all processes."""
        for child in (*self.members, *self.gateways):
            child.process.kill()
            child.process.wait()


def works_of(node: iris.Node) -> dict[str, tuple[int, Callable[[int], Awaitable[None]]]]:
    """Return for each pattern how many tasks send, and what each of them does again and again."""

    async def publish(number: int) -> None:
        for part in range(200):
            await node.publish(f"news.{(number + part) % 50}", b"x" * 100)

    async def broadcast(_: int) -> None:
        await node.broadcast(CLUSTER, b"news")

    async def request(number: int) -> None:
        await node.request(CLUSTER, number, timeout=3.0, idempotent=bool(number % 2))

    async def survey(number: int) -> None:
        async with node.survey(CLUSTER, number, timeout=3.0) as answers:
            async for _ in answers:
                pass

    async def tunnel(_: int) -> None:
        with trio.move_on_after(10):
            async with node.open_tunnel(CLUSTER, timeout=3.0) as way:
                for _ in range(2_000):
                    await way.send(b"x" * 100)

    return {
        "event": (1, publish), "broadcast": (2, broadcast), "request": (32, request), "survey": (16, survey),
        "tunnel": (4, tunnel),
    }  # fmt: skip


async def send_all(node: iris.Node, messages: int) -> None:
    """Send so many messages of each pattern."""

    async def repeat(work: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        while True:
            number += 1
            with suppress(*_FAILURES):
                await work(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        scopes: dict[str, trio.CancelScope] = {}
        for pattern, (tasks, work) in works_of(node).items():
            scopes[pattern] = trio.CancelScope()

            async def run(scope: trio.CancelScope, tasks: int, work: Callable[[int], Awaitable[None]]) -> None:
                with scope:
                    async with trio.open_nursery() as sending:
                        for _ in range(tasks):
                            sending.start_soon(repeat, work)

            nursery.start_soon(run, scopes[pattern], tasks, work)
        while scopes:
            await trio.sleep(1.0)
            sent: Counter[str] = Counter()
            for row in (await node.books(settle=0.0)).rows:
                sent[row.pattern] += row.sent
            for pattern in [pattern for pattern in scopes if sent[pattern] >= messages]:
                scopes.pop(pattern).cancel()


def closed(books: iris.Books, counts: Path) -> bool:
    """Print the books by pattern, and tell whether they are as they should be."""
    columns = ("sent", "received", "expired", "refused", "in_doubt", "waiting", "difference")
    print("pattern    " + "".join(f"{column:>12}" for column in columns) + "  lost")
    good = books.balanced
    for pattern in sorted({row.pattern for row in books.rows}):
        part = iris.Books(tuple(row for row in books.rows if row.pattern == pattern))
        print(f"{pattern:11}" + "".join(f"{getattr(part, column):12,}" for column in columns) + f"  {dict(part.lost)}")
    late = 0
    for place, counted in enumerate(("broadcast", "event")):
        for file in counts.iterdir():
            rows = [row for row in books.rows if row.pattern == counted and row.receiver == file.name]
            received, doubt = sum(row.received for row in rows), sum(row.in_doubt for row in rows)
            really = int.from_bytes(file.read_bytes()[8 * place : 8 * place + 8], sys.byteorder)
            if not received <= really + 1 <= received + doubt + 1:  # what the member is at when it is killed
                print(f"member {file.name} has had {really} of {counted}: {received} received, {doubt} in doubt")
                good = False
            late += really - received
    print(f"of those in doubt, the members had {late:,} broadcasts and events, and had not reported them yet")
    return good


async def run_faults(messages: int, seed: int) -> int:
    """Send so many messages of each pattern under faults; return 0 if the books are as they should be."""
    with tempfile.TemporaryDirectory(prefix="iris-books-") as home:
        stage = Stage(Path(home), seed)
        os.environ.update(XDG_RUNTIME_DIR=home, IRIS_HOME=home)
        try:
            listen = [f"tcp://127.0.0.1:{_SENDER}"]
            async with iris.open_node(credential=stage.credential, site="near", listen=listen) as node:
                await node.wait_for(CLUSTER, 3, timeout=60)
                for member in stage.members:
                    await member.wait_ready()
                began = trio.current_time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stage.break_things)
                    await send_all(node, messages)
                    nursery.cancel_scope.cancel()
                took = trio.current_time() - began
                await trio.sleep(_HEALED)
                books = await node.books(settle=60.0)
                faults = ", ".join(f"{count} {kind}" for kind, count in stage.faults.items())
                print(f"{took:.0f} s; faults: {faults}; load {os.getloadavg()[0]:.1f}")
                good = closed(books, stage.counts)
        finally:
            stage.end()
    print("every message is in one column" if good else "THE BOOKS DO NOT ADD UP")
    return 0 if good else 1
