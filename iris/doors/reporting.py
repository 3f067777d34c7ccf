"""Statistics of doors, in the metrics of their node."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import iris.aio


@contextmanager
def reporting(node: iris.aio.Node, protocol: str, statistics: Callable[[], object]) -> Generator[None]:
    """Have the statistics of a door in the metrics of its node for the length of the block.

    Args:
        node: node whose place is lent.
        protocol: protocol of the door.  Of several doors of one protocol, the last that was opened is shown.
        statistics: returns a snapshot, which another thread may read.
    """
    reports, name = node._inner._reports, f"door.{protocol}"
    reports[name] = statistics
    try:
        yield
    finally:
        if reports.get(name) is statistics:
            del reports[name]
