"""Many unauthenticated peers at a node.

One process is the node.  Another one is the crowd of these peers:

- half of ``half_open`` connect and say nothing at all,
- the other half greet as nng does, or ask for an upgrade where the node listens by WebSocket, and then say nothing,
- ``slow`` writers claim a frame of 1 MiB and send a byte of it now and then,
- one claims a frame of 8 GiB, when all others are there.

They come in any order, so many a second.  Meanwhile this process dials the node as an honest node does, again and
again: a connection, a handshake, a link.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, final

import trio

from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.sp import GREETING
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.files.credential_file import load_credential, save_credential
from iris.security.identity.credential import Credential
from tests.support.admission import open_reading_mesh

_SLOW_FRAME: Final = 1024 * 1024
_DRIP: Final = 0.5

AGAIN: Final = 0.25
"""Seconds after which an honest node that was turned away comes again, as membership does."""

_PATIENCE: Final = 60.0

SCHEMES: Final = {"tcp": "tcp://127.0.0.1:0", "ws": "ws://127.0.0.1:0/iris"}
"""Addresses at which the node may listen, by scheme."""

SORTS: Final = ("silent", "greeted", "slow", "huge")
"""Behaviours of the crowd: send nothing, only greet, write a frame slowly, claim a frame of 8 GiB."""

RATE: Final = 1000.0
"""Connections of the crowd in a second, by default."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run.  Times are seconds."""

    grown: int
    """Growth of the node's memory, in bytes: the most that was seen after a dial."""
    dials: tuple[float, ...]
    """Dials of the honest node, sorted."""
    quiet_dials: tuple[float, ...]
    """Dials of the honest node before the crowd came, sorted."""
    stays: dict[str, tuple[float, ...]]
    """Time until each of the crowd was disconnected, sorted, by behaviour: one of ``SORTS``."""
    left: int
    """Number of the crowd's connections that were still open at the end."""


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of all do not exceed."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def wall_clock() -> float:
    """Return the date."""
    return time.time()


# -- the node ---------------------------------------------------------------------------------------------------


async def be_node(credential: Credential, url: str) -> None:
    """Accept links at ``url`` until standard input ends; print where, and at the end what was refused."""
    transport = NetworkTransport(Config())
    listening = await transport.listen([url])
    identity = credential.new_identity(os.urandom, wall_clock())
    async with open_reading_mesh(
        identity, transport, listening, config=Config(), entropy=os.urandom, wall_clock=wall_clock
    ) as mesh:
        print(listening[0], flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        print(json.dumps(mesh.refusals), flush=True)


# -- the crowd --------------------------------------------------------------------------------------------------


async def be_crowd(url: str, half_open: int, slow: int, addresses: int, rate: float) -> None:
    """Be all of the crowd; print the time of each connection, by sort, as JSON."""
    port = int(url.split(":")[2].partition("/")[0])
    hello, claim = (GREETING, struct.Struct(">Q").pack) if url.startswith("tcp") else (_upgrade(url), _web_claim)
    stays: dict[str, list[float | None]] = {sort: [] for sort in SORTS}
    coming = half_open // 2 * 2 + slow
    all_there = trio.Event()

    async def knock(number: int, sort: str, greeting: bytes, frame: bytes) -> None:
        nonlocal coming
        stream = trio.socket.socket()
        with stream:
            await stream.bind((f"127.9.{number % addresses // 250}.{1 + number % addresses % 250}", 0))
            began = trio.current_time()
            stays[sort].append(None)
            place = len(stays[sort]) - 1
            with trio.move_on_after(_PATIENCE) as scope:
                async with trio.open_nursery() as nursery:
                    with contextlib.suppress(OSError):  # it was sent away in the middle of a word
                        try:
                            await stream.connect(("127.0.0.1", port))
                        finally:
                            coming -= 1
                            if not coming:
                                all_there.set()
                        began = trio.current_time()
                        await stream.send(greeting)
                        if frame and await stream.recv(4096):
                            await stream.send(frame)
                            nursery.start_soon(dribble, stream)
                        while await stream.recv(64):
                            pass
                    nursery.cancel_scope.cancel()
            if not scope.cancelled_caught:
                stays[sort][place] = trio.current_time() - began

    async def dribble(stream: trio.socket.SocketType) -> None:
        with contextlib.suppress(OSError):
            while True:
                await trio.sleep(_DRIP)
                await stream.send(b"x")

    everybody = [
        *[("silent", b"", b""), ("greeted", hello, b"")] * (half_open // 2),
        *[("slow", hello, claim(_SLOW_FRAME))] * slow,
    ]
    random.Random(1).shuffle(everybody)
    async with trio.open_nursery() as nursery:
        begin = trio.current_time()
        for number, (sort, greeting, frame) in enumerate(everybody):
            await trio.sleep_until(begin + number / rate)
            nursery.start_soon(knock, number, sort, greeting, frame)
        await all_there.wait()
        nursery.start_soon(knock, 0, "huge", hello, claim(8 << 30))
    print(json.dumps(stays))


def _upgrade(url: str) -> bytes:
    from iris.kernel.transport.websocket import PULL, ClientUpgrade

    return ClientUpgrade(url, PULL, _SLOW_FRAME).request


def _web_claim(size: int) -> bytes:
    return struct.pack(">BBQ4s", 0x82, 0xFF, size, b"mask")  # RFC 6455, 5.2: a binary message


# -- the honest node --------------------------------------------------------------------------------------------


async def dial(credential: Credential, url: str) -> float:
    """Link to the node once; return how long it took, with all attempts."""
    transport = NetworkTransport(Config())
    listening = await transport.listen(["tcp://127.0.0.1:0"])
    identity = credential.new_identity(os.urandom, wall_clock())
    async with open_reading_mesh(
        identity, transport, listening, config=Config(), entropy=os.urandom, wall_clock=wall_clock
    ) as mesh:
        began = trio.current_time()
        while not mesh.peers:
            with contextlib.suppress(NotSent):
                await mesh.connect([url])
                break
            await trio.sleep(AGAIN)
        took = trio.current_time() - began
        await mesh.barrier(next(iter(mesh.peers)))  # the link is of use
    return took


def resident(pid: int) -> int:
    """Return how much memory a process has in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def open_process(*arguments: str) -> AsyncIterator[trio.Process]:
    """Run a part of this as a process of its own."""
    command = [sys.executable, "-m", "tests.support.programs.strangers", *arguments]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        await process.wait()


async def read_all(stream: trio.abc.ReceiveStream, until: bytes = b"") -> bytes:
    """Return what comes, up to a line's end or the stream's."""
    read = b""
    while not (until and until in read):
        chunk = await stream.receive_some()
        if not chunk:
            break
        read += chunk
    return read


async def measure(
    *, half_open: int, slow: int, addresses: int, rate: float = RATE, pause: float = 0.05, scheme: str = "tcp"
) -> Outcome:
    """Let the crowd come to a node, and dial it for as long as the crowd is there.

    Args:
        addresses: number of addresses of the crowd; the honest node has another one.
        rate: connections of the crowd in a second.
        pause: seconds between two dials.
        scheme: one of ``SCHEMES``.
    """
    realm, credential = issue_cluster(create_realm(os.urandom), "door", entropy=os.urandom, wall_now=wall_clock())
    del realm
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "door.iris"
        save_credential(file, credential)
        async with open_process("node", str(file), SCHEMES[scheme]) as node:
            assert node.stdout is not None
            assert node.stdin is not None
            url = (await read_all(node.stdout, b"\n")).decode().strip()
            quiet = sorted([await dial(credential, url) for _ in range(40)])
            before = worst = resident(node.pid)
            dials: list[float] = []
            answer: list[bytes] = []
            arguments = [url, str(half_open), str(slow), str(addresses), str(rate)]
            async with open_process("crowd", *arguments) as crowd, trio.open_nursery() as nursery:
                stdout = crowd.stdout
                assert stdout is not None

                async def collect() -> None:
                    answer.append(await read_all(stdout))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(collect)
                while True:
                    dials.append(await dial(credential, url))
                    worst = max(worst, resident(node.pid))
                    await trio.sleep(pause)
            await node.stdin.send_all(b"\n")
            await read_all(node.stdout)
    stays: dict[str, list[float | None]] = json.loads(answer[0])
    return Outcome(
        grown=worst - before,
        dials=tuple(sorted(dials)),
        quiet_dials=tuple(quiet),
        stays={sort: tuple(sorted(stay for stay in of if stay is not None)) for sort, of in stays.items()},
        left=sum(stay is None for of in stays.values() for stay in of),
    )


def main(arguments: Sequence[str]) -> None:
    """Be the node or the crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if arguments[0] == "node":
        trio.run(be_node, load_credential(Path(arguments[1])), arguments[2])
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
        half_open, slow, addresses = map(int, arguments[2:5])
        trio.run(be_crowd, arguments[1], half_open, slow, addresses, float(arguments[5]))


if __name__ == "__main__":
    main(sys.argv[1:])
