"""Set-up that the nodes of all cases share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

import iris

CLUSTER = "streams"
LOOPBACK = ("tcp://127.0.0.1:0",)


def tcp_address(node: iris.Node) -> str:
    """Return the address that others dial."""
    return next(address for address in node.addresses if address.startswith("tcp://"))


async def wait_told() -> None:
    """Wait until the conducting process says that it goes on."""
    await trio.to_thread.run_sync(input, abandon_on_cancel=True)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest rank: a value that occurred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
