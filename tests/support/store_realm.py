"""A realm of many processes that ask and serve, and what they cost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.support.command import Terminal

RATE: Final = 5.0
"""Requests per second of each caller."""

_MEMBER: Final = """
import sys, trio, iris

service = iris.Service("store")

@service.request("get")
async def get(request):
    await trio.sleep(0.02)
    return request.payload

async def main():
    async with iris.open_node(sys.argv[1]) as node:
        if sys.argv[1] == "store":
            async with node.join("store", service):
                print("up", flush=True)
                await trio.sleep_forever()
        await node.wait_for("store", timeout=60)
        print("up", flush=True)
        due = trio.current_time()
        async with trio.open_nursery() as nursery:
            while True:
                due += 1 / float(sys.argv[2])
                await trio.sleep_until(due)
                nursery.start_soon(ask, node)

async def ask(node):
    try:
        await node.request("store", b"x", operation="get", options=iris.RequestOptions(idempotent=True))
    except iris.DeliveryError:
        pass

trio.run(main)
"""


@contextmanager
def open_store_realm(
    terminal: Terminal, members: int, callers: int
) -> Generator[dict[str, list[subprocess.Popen[bytes]]]]:
    """Run members of ``store`` and callers, ``app``, for the length of the block; return the processes by name."""
    started: dict[str, list[subprocess.Popen[bytes]]] = {"store": [], "app": []}
    with ExitStack() as stack:
        for name, count in (("store", members), ("app", callers)):
            for _ in range(count):
                process = stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", _MEMBER, name, str(RATE)],
                        cwd=terminal.directory,
                        env=terminal.environment,
                        stdout=subprocess.PIPE,
                    )
                )
                started[name].append(process)
                stack.callback(_kill, started)
            for process in started[name]:
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
        yield started


def _kill(started: dict[str, list[subprocess.Popen[bytes]]]) -> None:
    """Kill all, so that none has to notice that the others are gone."""
    for process in (*started["store"], *started["app"]):
        process.kill()


def share_of_core(pids: list[int], seconds: float) -> float:
    """Return what share of a core each of these processes takes, on average."""
    before, began = sum(map(_processor_time, pids)), time.monotonic()
    time.sleep(seconds)
    return (sum(map(_processor_time, pids)) - before) / (time.monotonic() - began) / len(pids)


def _processor_time(pid: int) -> float:
    return sum(int(text.split()[0]) for text in _threads(pid)) / 1e9


def _threads(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield (thread / "schedstat").read_text()
