"""What federation costs: ``python -m benchmarks.federation``.

The directory is simulated, with every gateway's machines and every message encoded.  Requests and tunnels run over the
real network on loopback, the gateways in processes of their own: what a relayed one costs beside a direct one is the
ratio, not the figures.  It is measured twice: with the answering ends in processes of their own, as nodes mostly are,
and in that of the caller, where a direct request takes half the wake-ups.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import trio

import iris
from benchmarks import failover
from tests.support.site_worlds import World


def directory(sites: int, clusters: int) -> tuple[int, int, int, int]:
    """Return messages and bytes to bring up a ring of sites, bytes for one change, and bytes of memory per gateway."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    world = World()
    share = clusters // sites
    made = [
        world.add(f"site-{number}", clusters=[f"cluster-{number}-{cluster}" for cluster in range(share)])
        for number in range(sites)
    ]
    for number, site in enumerate(made):
        world.link(site, made[(number + 1) % sites])
        if sites > 4:  # a chord, so that paths stay below the limit of 16 gateways
            world.link(site, made[(number + 7) % sites])
    world.settle()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(len(site.directory.clusters()) == share * (sites - 1) for site in made)
    messages, size = world.messages, world.bytes
    made[0].members["one-more"] = {world.node(): b""}
    world.settle()
    return messages, size, world.bytes - size, (after - before) // sites


@contextmanager
def gateways() -> Iterator[None]:
    """Run the gateways of two sites, each in a process of its own."""
    urls = [f"tcp://127.0.0.1:{failover.free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        for site, own, other in (("near", *urls), ("far", *reversed(urls))):
            process = stack.enter_context(failover.start(*failover.gateway_arguments(site, own, [other])))
            stack.callback(process.terminate)
        yield


@asynccontextmanager
async def open_sites(*, apart: bool) -> AsyncIterator[iris.Node]:
    """Bring up a store at each of two sites, in processes of their own or not, and a shop at one; yield the shop."""
    async with AsyncExitStack() as stack:
        stack.enter_context(gateways())
        shop = await stack.enter_async_context(iris.open_node("shop", site="near"))
        for site in ("near", "far"):
            if apart:
                process = stack.enter_context(failover.start("run", "benchmarks.failover:store", "--site", site))
                stack.callback(process.terminate)
            else:
                node = await stack.enter_async_context(iris.open_node("store", site=site))
                await stack.enter_async_context(node.join("store", failover.store))
        await shop.wait_for("store@near", timeout=60)
        await shop.wait_for("store@far", timeout=60)
        yield shop


async def request_times(shop: iris.Node, address: str, count: int) -> float:
    """Return the median time of a request, in microseconds."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await shop.request(address, b"x" * 100, timeout=30)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


async def tunnel_rate(shop: iris.Node, address: str, mib: int) -> float:
    """Return what passes through a tunnel there and back, in MiB per second."""
    piece = bytes(64 * 1024)
    started = time.perf_counter()
    async with shop.open_tunnel(address, timeout=30) as tunnel, trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(mib * 16):
                await tunnel.send(piece)
            await tunnel.send_eof()

        nursery.start_soon(send)
        received = 0
        async for payload in tunnel:
            received += len(payload)
    assert received == mib * 1024 * 1024
    return mib / (time.perf_counter() - started)


async def compare(rounds: int, *, apart: bool) -> None:
    """Print direct and relayed side by side, in turns so that both meet the same load of the machine."""
    print("answered by processes of their own" if apart else "answered in the caller's process")
    async with open_sites(apart=apart) as shop:
        for address in ("store@near", "store@far"):
            await request_times(shop, address, 50)
        direct: list[float] = []
        relayed: list[float] = []
        for _ in range(rounds):
            direct.append(await request_times(shop, "store@near", 200))
            relayed.append(await request_times(shop, "store@far", 200))
        one, other = statistics.median(direct), statistics.median(relayed)
        print(f"request p50: direct {one:.0f} us, relayed {other:.0f} us, ratio {other / one:.2f}")
        direct.clear()
        relayed.clear()
        for _ in range(rounds):
            direct.append(await tunnel_rate(shop, "store@near", 16))
            relayed.append(await tunnel_rate(shop, "store@far", 16))
        one, other = statistics.median(direct), statistics.median(relayed)
        print(f"tunnel there and back: direct {one:.0f} MiB/s, relayed {other:.0f} MiB/s, ratio {other / one:.2f}")


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--only", choices=["directory", "relay", "failover"])
    given = parser.parse_args()
    kept = True
    if given.only in (None, "directory"):
        print("sites clusters messages MiB-sent bytes-for-a-change KiB-per-gateway")
        for sites, clusters in ((4, 1_000), (50, 250), (50, 500), (50, 1_000)):
            messages, size, change, memory = directory(sites, clusters)
            print(f"{sites} {clusters} {messages} {size / 2**20:.2f} {change} {memory / 1024:.0f}")
    if given.only != "directory":
        with tempfile.TemporaryDirectory(prefix="iris-") as home:
            os.environ["IRIS_HOME"] = str(Path(home) / "home")
            os.environ["XDG_RUNTIME_DIR"] = home
            if given.only != "failover":
                for apart in (True, False):
                    trio.run(partial(compare, given.rounds, apart=apart))
            if given.only != "relay":
                kept = failover.conduct(given.kills)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
