"""Brokers of the peers, as child processes for the length of a run."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from pathlib import Path

START = 10.0
"""Seconds that a broker may take to accept connections."""


def free_port() -> int:
    """Return a TCP port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Generator[None]:
    """Run ``command`` until the end of the block, which begins when ``port`` accepts connections.

    Raises:
        RuntimeError: it ended, or did not accept within ``START`` seconds; the message says where its log is.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + START
            while not _accepts(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not start, see {log}")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()
            process.wait()


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
