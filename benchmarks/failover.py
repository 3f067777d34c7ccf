"""``kill -9`` of gateways under load, in processes and on the real clock: what is lost, and for how long nothing comes.

Two sites with two gateways each, all linked across.  A store at one site answers callers at the other; one gateway is
killed, and started again when the gap was measured, and then the next one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import trio

import iris

ROOT: Final = Path(__file__).resolve().parents[1]
CALLERS: Final = 10
_PAUSE: Final = 0.02
"""Seconds between an answer and the next request of one caller: about 400 requests/s in all."""

_WATCHED: Final = 3.0
"""Seconds after a kill in which the longest gap between two answers is looked for."""

_PATIENCE: Final = 60.0

store: Final = iris.Service("store")


@store.request
async def reply(request: iris.Request) -> object:
    """Answer with what was asked."""
    return request.payload


@store.tunnel
async def mirror(tunnel: iris.Tunnel) -> None:
    """Send back what comes."""
    async for payload in tunnel:
        await tunnel.send(payload)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """Result of a run."""

    kills: int
    asked: int
    errors: Mapping[str, int]
    """Errors of requests, all of them idempotent, in place of an answer, by name: these were lost."""
    usual: float
    """Seconds between two answers to one caller when nothing is killed: the median."""
    gaps: tuple[float, ...]
    """Longest time between two answers around each kill, for each caller, in seconds, sorted."""

    @property
    def lost(self) -> int:
        """Requests without an answer."""
        return sum(self.errors.values())

    def percentile(self, share: float) -> float:
        """Return the gap, in seconds, below which this share of them is."""
        return self.gaps[min(math.ceil(share * len(self.gaps)), len(self.gaps)) - 1]


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """Start ``iris`` with these arguments."""
    return subprocess.Popen([sys.executable, "-m", "iris", *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)


def gateway_arguments(site: str, own: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a gateway that exports everything."""
    peers = [part for other in others for part in ("--peer", other)]
    return ("gateway", "--site", site, "--listen", own, *peers, "--export", ">", "--export-topic", ">")


@contextmanager
def _processes() -> Iterator[tuple[dict[str, tuple[str, ...]], dict[str, subprocess.Popen[bytes]]]]:
    urls = [f"ws://127.0.0.1:{free_port()}/gateway" for _ in range(4)]
    commands = {
        "near-one": gateway_arguments("near", urls[0], urls[2:]),
        "far-one": gateway_arguments("far", urls[2], ()),
        "near-two": gateway_arguments("near", urls[1], urls[2:]),
        "far-two": gateway_arguments("far", urls[3], ()),
    }
    running = {name: start(*command) for name, command in commands.items()}
    member = start("run", "benchmarks.failover:store", "--site", "far")
    try:
        yield commands, running
    finally:
        for process in (*running.values(), member):
            process.kill()
            process.wait()


async def _wait_whole(node: iris.Node) -> None:
    """Wait until both gateways here lead to both over there."""
    assert node._parts.sites is not None
    directory = node._parts.sites.directory
    with trio.fail_after(_PATIENCE):
        while sum(1 for origin in directory.origins() for _ in directory.ways_to(origin)) < 4:  # noqa: ASYNC110
            await trio.sleep(0.05)  # other processes report it


def longest_gap(answers: Sequence[float], since: float, until: float) -> float:
    """Return the longest time between two answers, of which the later one came after ``since``.

    The last answer before ``since`` counts, and the first one after ``until``; without that one there is no end.
    """
    later = next((at for at in answers if at > until), None)
    if later is None:
        return math.inf
    return max((two - one for one, two in itertools.pairwise(answers) if since < two <= later), default=math.inf)


async def _load(node: iris.Node, kills: int) -> Failover:
    answers: list[list[float]] = [[] for _ in range(CALLERS)]
    asked = 0
    errors: Counter[str] = Counter()

    async def call(own: list[float]) -> None:
        nonlocal asked
        while True:
            payload = asked.to_bytes(100)
            try:
                if await node.request("store", payload, idempotent=True, timeout=20.0) != payload:
                    errors["a wrong answer"] += 1
            except iris.IrisError as error:
                errors[f"{type(error).__name__}: {error}"] += 1
            asked += 1
            own.append(time.monotonic())
            await trio.sleep(_PAUSE)

    killed: list[float] = []
    with _processes() as (commands, running):
        await node.wait_for("store", timeout=_PATIENCE)
        await _wait_whole(node)
        async with trio.open_nursery() as nursery:
            for own in answers:
                nursery.start_soon(call, own)
            await trio.sleep(_WATCHED)
            for name in itertools.islice(itertools.cycle(commands), kills):
                running[name].kill()
                killed.append(time.monotonic())
                running[name].wait()
                await trio.sleep(_WATCHED + 1)
                running[name] = start(*commands[name])
                await _wait_whole(node)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
    quiet = sorted(two - one for own in answers for one, two in itertools.pairwise(own) if two < killed[0])
    gaps = sorted(longest_gap(own, since, since + _WATCHED) for own in answers for since in killed)
    return Failover(kills=kills, asked=asked, errors=errors, usual=quiet[len(quiet) // 2], gaps=tuple(gaps))


async def _run(kills: int) -> Failover:
    async with iris.open_node("shop", site="near") as node:
        return await _load(node, kills)


def conduct(kills: int) -> bool:
    """Run it in the local realm and print what it showed; tell whether nothing was lost and the gap below a second."""
    shown = trio.run(_run, kills)
    print(f"{shown.kills} kills of one of 2 gateways of a site: {shown.lost} of {shown.asked} idempotent requests lost")
    print(
        f"between two answers to one caller: {shown.usual * 1e3:.0f} ms as a rule; longest after a kill: "
        f"p50 {shown.percentile(0.5) * 1e3:.0f} ms, p99 {shown.percentile(0.99) * 1e3:.0f} ms, "
        f"max {shown.gaps[-1] * 1e3:.0f} ms"
    )
    for error, count in shown.errors.items():
        print(f"LOST {count}: {error}")
    return shown.lost == 0 and shown.percentile(0.99) <= 1.0
