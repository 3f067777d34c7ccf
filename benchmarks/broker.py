"""Brokers of the peers, as child processes for the length of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import final

START = 10.0
"""Seconds that a broker may take to accept connections."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker that runs.

    Attributes:
        address: where its clients connect to.
        pid: its process, whose processor time is part of what a message costs.
    """

    address: str
    pid: int


def find_program(name: str) -> str | None:
    """Return the path of a program: beside the interpreter, where pip puts it, or on the ``PATH``. None if neither."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))


def program_version(path: str) -> str:
    """Return the version that a program says with ``--version``, as in ``2.15.1``; empty if it says none."""
    said = subprocess.run([path, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"\bv?=?(\d+(?:\.\d+)+)", said)
    return found[1] if found else ""


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Generator[int]:
    """Run ``command`` until the end of the block, which begins when ``port`` accepts connections.

    The value is its process ID.

    Raises:
        RuntimeError: it ended, or did not accept within ``START`` seconds; the message says where its log is.
    """
    program, *arguments = command
    with log.open("wb") as output:
        process = subprocess.Popen(
            [find_program(program) or program, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            deadline = time.monotonic() + START
            while not _accepts(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{program} did not start, see {log}")
                time.sleep(0.02)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
