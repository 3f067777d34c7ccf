"""``python -m tests.support.programs.books_faults MESSAGES SECONDS SEED``: the books under faults.

Five members at two sites, all patterns at a time, and something breaks every few seconds.  Messages of each pattern are
sent at an even rate, so that each meets all faults; what a fault has held up is made up for at full speed.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

import iris
from iris.node.open import open_parts
from iris.patterns.observer import Pattern
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import RealmRoot, create_realm
from iris.security.files import save_credential
from iris.security.identity import Rights
from tests.support.processes import Child
from tests.support.programs.books_children import CLUSTER

_ISOLATED = "IRIS_BOOKS_ISOLATED"
_SENDER = 7000
_FAILURES = (iris.DeliveryError, iris.TunnelBroken, trio.BrokenResourceError)
_PAUSE = (3.0, 9.0)
"""Seconds between two faults."""
_TICK = 0.25
"""Seconds between two looks at how many messages are due."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The books of a member at the moment when it was killed.

    Attributes:
        node: the member.
        sent: to it, by pattern.
        waiting: in flight to it, or to a member that is not known yet.
        doubted: in doubt already, because a tunnel broke while the member lived.
    """

    node: str
    sent: Counter[str]
    waiting: Counter[str]
    doubted: Counter[str]


class Place:
    """A process that listens at a port; when it is killed another one takes its place."""

    def __init__(self, role: str, port: int, home: Path, *arguments: str) -> None:
        self.port = port
        own = home / f"{role}-{port}"
        own.mkdir(mode=0o700)
        self.process = Child(
            [sys.executable, "-m", "tests.support.programs.books_children", role, *arguments],
            ready="ready",
            log=own / "log",
            environment={"XDG_RUNTIME_DIR": str(own), "IRIS_HOME": str(own)},
        )
        self.stopped = False
        self.process.launch()

    def kill(self) -> None:
        """Kill it; another one takes its place."""
        self.process.end()
        self.stopped = False
        self.process.launch()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.stopped = number == signal.SIGSTOP
        self.process.send(number)


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

        def child(role: str, port: int, site: str, seed_url: str, credential: Path, *more: str) -> Place:
            listen = f"tcp://127.0.0.1:{port}"
            arguments = ("--credential", str(credential), "--site", site, "--listen", listen, *more)
            return Place(role, port, home, *arguments, *(() if seed_url == listen else ("--seeds", seed_url)))

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
        self.deaths: list[Death] = []
        self.books: Callable[[], iris.Books] | None = None
        """Returns those of the sender, as they are."""

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
                    await trio.sleep(self.chance.uniform(*_PAUSE))
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
        member = self.chance.choice(self.members)
        number = member.process.pid
        member.kill()
        for file in self.counts.glob(f"{number}-*"):  # none if it had not come up yet
            self.deaths.append(self._death(file.name.partition("-")[2]))
        await trio.lowlevel.checkpoint()

    def _death(self, node: str) -> Death:
        assert self.books is not None
        sent: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        doubted: Counter[str] = Counter()
        for row in self.books().rows:
            if row.receiver == node:
                sent[row.pattern] += row.sent
                doubted[row.pattern] += row.in_doubt
            if row.receiver in (node, None):
                waiting[row.pattern] += row.waiting
        return Death(node=node, sent=sent, waiting=waiting, doubted=doubted)

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
            child.process.end()


@dataclass(frozen=True, slots=True)
class Work:
    """Repeated work that sends messages of a pattern.

    Attributes:
        tasks: number of tasks that do it at a time.
        messages: number of messages that it sends.
        run: does the work; called with a number that grows.
    """

    tasks: int
    messages: int
    run: Callable[[int], Awaitable[None]]


def works_of(node: iris.Node) -> dict[Pattern, Work]:
    """Return what sends messages of each pattern to five members."""

    async def publish(number: int) -> None:
        for part in range(200):
            await node.publish(f"news.{(number + part) % 10}", b"x" * 100)

    async def broadcast(_: int) -> None:
        await node.broadcast(CLUSTER, b"news")

    async def request(number: int) -> None:
        await node.request(CLUSTER, number, timeout=3.0, options=iris.RequestOptions(idempotent=bool(number % 2)))

    async def survey(number: int) -> None:
        async with node.survey(CLUSTER, number, timeout=3.0) as answers:
            async for _ in answers:
                pass

    async def tunnel(_: int) -> None:
        with trio.move_on_after(10):
            async with node.open_tunnel(CLUSTER, timeout=3.0) as way:
                for _ in range(500):
                    await way.send(b"x" * 100)

    return {
        "event": Work(1, 1000, publish), "broadcast": Work(64, 5, broadcast), "request": Work(256, 1, request),
        "survey": Work(256, 5, survey), "tunnel": Work(8, 500, tunnel),
    }  # fmt: skip


class Flow:
    """Messages of a pattern, sent at an even rate."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._due = 0.0
        self._news = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Send what is due, until it is ended."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for _ in range(self._work.tasks):
                    nursery.start_soon(self._repeat)

    async def _repeat(self) -> None:
        number = 0
        while True:
            while self._due <= 0:
                await self._news.park()
            self._due -= self._work.messages
            number += 1
            with suppress(*_FAILURES):
                await self._work.run(number)
            await trio.lowlevel.checkpoint()

    def go_on(self, due: float) -> None:
        """Send so many now."""
        self._due = due
        if due > 0:
            self._news.unpark_all()

    def end(self) -> None:
        """Send no more."""
        self._scope.cancel()


async def send_all(node: iris.Node, books: Callable[[], iris.Books], messages: int, seconds: float) -> None:
    """Send so many messages of each pattern, in so many seconds or as many more as the faults take."""
    began = trio.current_time()
    flows = {pattern: Flow(work) for pattern, work in works_of(node).items()}
    async with trio.open_nursery() as nursery:
        for flow in flows.values():
            nursery.start_soon(flow.run)
        while flows:
            await trio.sleep(_TICK)
            wanted = messages * min(1.001, (trio.current_time() - began) / seconds)
            sent: Counter[str] = Counter()
            for row in books().rows:
                sent[row.pattern] += row.sent
            for pattern, flow in list(flows.items()):
                if sent[pattern] >= messages:
                    print(f"{sent[pattern]:,} of {pattern} in {trio.current_time() - began:.0f} s", flush=True)
                    flows.pop(pattern).end()
                else:
                    flow.go_on(wanted - sent[pattern])


def closed(books: iris.Books, stage: Stage) -> bool:
    """Print the books by pattern, and tell whether they are as they should be."""
    columns = ("sent", "received", "expired", "refused", "in_doubt", "waiting", "difference")
    print("pattern    " + "".join(f"{column:>12}" for column in columns) + "  lost")
    for pattern in sorted({row.pattern for row in books.rows}):
        part = iris.Books(tuple(row for row in books.rows if row.pattern == pattern))
        print(f"{pattern:11}" + "".join(f"{getattr(part, column):12,}" for column in columns) + f"  {dict(part.lost)}")
    return all(
        (
            books.balanced,
            counted_alike(books, stage.counts),
            doubted_rightly(books, stage.deaths),
            living_vouched(books, stage),
        )
    )


def counted_alike(books: iris.Books, counts: Path) -> bool:
    """Return whether what the members counted for themselves fits to the books."""
    good, late = True, 0
    for place, pattern in enumerate(("broadcast", "event")):
        for file in counts.iterdir():
            node = file.name.partition("-")[2]
            rows = [row for row in books.rows if row.pattern == pattern and row.receiver == node]
            received, doubt = sum(row.received for row in rows), sum(row.in_doubt for row in rows)
            really = int.from_bytes(file.read_bytes()[8 * place : 8 * place + 8], sys.byteorder)
            if not received <= really + 1 <= received + doubt + 1:  # what the member is at when it is killed
                print(f"member {node} has had {really} of {pattern}: {received} received, {doubt} in doubt")
                good = False
            late += really - received
    print(f"of those in doubt, the members had {late:,} broadcasts and events, and had not reported them yet")
    return good


def doubted_rightly(books: iris.Books, deaths: list[Death]) -> bool:
    """Return whether no more is in doubt of a member than was in flight when it died, or sent before that was known."""
    good = True
    for pattern in sorted({row.pattern for row in books.rows}):
        flight = later = doubted = 0
        for death in deaths:
            rows = [row for row in books.rows if row.pattern == pattern and row.receiver == death.node]
            doubt = sum(row.in_doubt for row in rows) - death.doubted[pattern]
            after = sum(row.sent for row in rows) - death.sent[pattern]
            if doubt > death.waiting[pattern] + after:
                print(
                    f"{doubt} of {pattern} in doubt of {death.node}: {death.waiting[pattern]} in flight, {after} later"
                )
                good = False
            flight, later, doubted = flight + death.waiting[pattern], later + after, doubted + doubt
        before = sum(row.in_doubt for row in books.rows if row.pattern == pattern) - doubted
        print(
            f"{pattern}: {doubted:,} in doubt of {len(deaths)} members killed, with {flight:,} in flight then and "
            f"{later:,} sent before it was known; {before:,} when they were given up before, or of broken tunnels"
        )
    return good


def living_vouched(books: iris.Books, stage: Stage) -> bool:
    """Return whether nothing of that of which receivers report is in doubt of a member that lives."""
    living = {
        file.name.partition("-")[2] for child in stage.members for file in stage.counts.glob(f"{child.process.pid}-*")
    }
    doubted = [
        row for row in books.rows if row.receiver in living and row.pattern in ("broadcast", "event") and row.in_doubt
    ]
    for row in doubted:
        print(f"{row.in_doubt} of {row.pattern} {row.name} in doubt of {row.receiver}, which lives")
    return not doubted


async def interrupted(scope: trio.CancelScope) -> None:
    """Send no more after Ctrl-C: the books of what was sent are closed all the same."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def run_faults(messages: int, seconds: float, seed: int) -> int:
    """Send so many messages of each pattern under faults; return 0 if the books are as they should be."""
    with tempfile.TemporaryDirectory(prefix="iris-books-") as home:
        stage = Stage(Path(home), seed)
        os.environ.update(XDG_RUNTIME_DIR=home, IRIS_HOME=home)
        try:
            listen = [f"tcp://127.0.0.1:{_SENDER}"]
            async with open_parts(credential=stage.credential, site="near", listen=listen) as (node, parts):
                stage.books = partial(parts.patterns.books.books, lambda _: True)
                await node.wait_for(CLUSTER, 3, timeout=60)
                for member in stage.members:
                    await trio.to_thread.run_sync(member.process.wait_ready)
                began = trio.current_time()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stage.break_things)
                    nursery.start_soon(interrupted, nursery.cancel_scope)
                    await send_all(node, stage.books, messages, seconds)
                    nursery.cancel_scope.cancel()
                took = trio.current_time() - began
                await trio.sleep(_HEALED)
                books = await node.books(settle=60.0)
                faults = ", ".join(f"{count} {kind}" for kind, count in stage.faults.items())
                print(f"{took:.0f} s; faults: {faults}; load {os.getloadavg()[0]:.1f}")
                good = closed(books, stage)
        finally:
            stage.end()
    print("every message is in one column" if good else "THE BOOKS DO NOT ADD UP")
    return 0 if good else 1


def main() -> None:
    """Run it: messages of each pattern, seconds, seed."""
    isolate()
    messages, seconds, seed = sys.argv[1:]
    sys.exit(trio.run(run_faults, int(messages), float(seconds), int(seed)))


if __name__ == "__main__":
    main()
