"""Tasks of taskiq on a bridge, for worker processes: each writes down that it begins and that it ends."""

from __future__ import annotations

import asyncio
import os

from iris.aio.taskiq import BrokerOptions, IrisBroker

broker = IrisBroker("tasks", options=BrokerOptions(lease=2.0, backoff=0.1, timeout=60))


def note(line: str) -> None:
    """Write a line that outlives the process."""
    record = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(record, line.encode() + b"\n")
    os.close(record)


@broker.task("work")
async def work(number: int, seconds: float) -> None:
    """Take some time."""
    note(f"B {number} {os.getpid()}")
    await asyncio.sleep(seconds)
    note(f"D {number} {os.getpid()}")
