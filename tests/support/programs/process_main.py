"""A program whose handler is in its ``__main__``: ``python process_main.py FILE [unguarded]``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from itertools import repeat
from pathlib import Path

import trio

import iris

service = iris.Service("main")


@service.request("spin", process=True)
def spin(file: str) -> None:
    """Hold the interpreter in C code, with a program started before."""
    child = subprocess.Popen(["sleep", "300"])
    Path(file).write_text(f"{os.getpid()} {child.pid}")
    deque(repeat(0), maxlen=0)


async def main() -> None:
    """Serve, and ask for what never ends."""
    async with iris.open_node("main") as node, node.join("main", service):
        await node.request("main", sys.argv[1], operation="spin", timeout=300)


if __name__ == "__main__" or "unguarded" in sys.argv:
    trio.run(main)
