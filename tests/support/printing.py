"""Processes that print where they listen."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import trio

_ROOT: Final = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def open_printing(module: str, *arguments: str, **options: Any) -> AsyncIterator[tuple[trio.Process, str]]:
    """Start a module as a process; give it and the line that it prints.  It is killed in the end."""
    command = [sys.executable, "-m", module, *arguments]
    process = await trio.lowlevel.open_process(command, stdout=PIPE, cwd=_ROOT, **options)
    assert process.stdout is not None
    try:
        printed = b""
        with trio.fail_after(60):
            while not printed.endswith(b"\n"):
                printed += await process.stdout.receive_some(1000)
        yield process, printed.decode().strip()
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()
