"""One request at a time between two processes, by ipc and by TCP in turns.

::

    python -m benchmarks.requests.ipc [PAIRS]

Both are nodes of one local realm.  By ipc they share a runtime directory; by TCP each has its own, and meets by a seed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import trio

import iris

REQUESTS = 2000


async def answer(*listen: str) -> None:
    service = iris.Service("echo")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    async with iris.open_node("echo", listen=listen) as node, node.join("echo", service):
        print(node.addresses[-1], flush=True)
        await trio.sleep_forever()


async def ask(*seeds: str) -> None:
    async with iris.open_node("asker", seeds=seeds, listen=["tcp://127.0.0.1:0"] if seeds else ()) as node:
        await node.wait_for("echo", timeout=30)
        taken: list[float] = []
        for _ in range(REQUESTS):
            began = time.perf_counter()
            await node.request("echo", b"x" * 100)
            taken.append(time.perf_counter() - began)
    print(statistics.median(taken[REQUESTS // 10 :]) * 1e6)


def measure(scheme: str) -> float:
    """Return the median of one run, in microseconds."""
    with tempfile.TemporaryDirectory() as directory:
        places = {name: f"{directory}/{name}" for name in ("home", "one", "other")}
        for place in places.values():
            os.mkdir(place, mode=0o700)  # noqa: PTH102
        by_ipc = scheme == "ipc"
        near = {**os.environ, "IRIS_HOME": places["home"], "XDG_RUNTIME_DIR": places["one"]}
        far = {**near, "XDG_RUNTIME_DIR": places["one" if by_ipc else "other"]}
        command = [sys.executable, "-m", "benchmarks.requests.ipc"]
        listen = [] if by_ipc else ["tcp://127.0.0.1:0"]
        with subprocess.Popen([*command, "answer", *listen], env=near, stdout=subprocess.PIPE, text=True) as member:
            assert member.stdout is not None
            seed = member.stdout.readline().strip()
            seeds = [] if by_ipc else [seed]
            done = subprocess.run([*command, "ask", *seeds], env=far, capture_output=True, text=True, check=True)
            member.terminate()
        return float(done.stdout)


def main(pairs: int) -> None:
    figures: dict[str, list[float]] = {"ipc": [], "tcp": []}
    for number in range(pairs):
        for scheme in sorted(figures, reverse=bool(number % 2)):
            figures[scheme].append(measure(scheme))
    for scheme, all_of_it in figures.items():
        low, middle, high = min(all_of_it), statistics.median(all_of_it), max(all_of_it)
        print(f"{scheme}: p50 {middle:.0f} us (runs: {low:.0f} - {high:.0f})")
    ratio = statistics.median(one / other for one, other in zip(figures["ipc"], figures["tcp"], strict=True))
    print(f"ipc / tcp, median of {pairs} pairs: {ratio:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["answer"]:
        trio.run(answer, *sys.argv[2:])
    elif sys.argv[1:2] == ["ask"]:
        trio.run(ask, *sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
