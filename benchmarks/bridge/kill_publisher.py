"""The publisher of the kills: ``python -m benchmarks.bridge.kill_publisher FIRST FILE RATE``.

Publishes the numbers from FIRST on, each confirmed, and writes into FILE how many are; until SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys

import trio

import iris
from iris import IrisError

_WIDTH = 12
_TURN = 0.02


async def _publish(first: int, file: int, rate: float) -> None:
    stopped = trio.Event()
    each = max(1, int(rate * _TURN))
    async with iris.open_node("publisher") as node, trio.open_nursery() as nursery:
        nursery.start_soon(_stop_at_signal, stopped)
        await node.wait_for("bridge", timeout=60)
        print("publishing", file=sys.stderr, flush=True)
        async with node.confirming(timeout=120) as events:
            while not stopped.is_set():
                for _ in range(each):
                    await events.publish("in", b"%d" % (first + events.published))
                _write_down(file, events.confirmed)
                with trio.move_on_after(_TURN):
                    await stopped.wait()
        _write_down(file, events.confirmed)
        nursery.cancel_scope.cancel()


def _write_down(file: int, confirmed: int) -> None:
    # One write of a few bytes: a kill of this process leaves the old figure or the new one.
    os.pwrite(file, b"%0*d" % (_WIDTH, confirmed), 0)


async def _stop_at_signal(stopped: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            stopped.set()


if __name__ == "__main__":
    descriptor = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
    try:
        trio.run(_publish, int(sys.argv[1]), descriptor, float(sys.argv[3]))
    except* IrisError as group:
        sys.exit(f"the publisher gives up: {group.exceptions}")
