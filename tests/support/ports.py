"""Ports of this machine."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_CHOICE = range(10_000, 32_768)
"""Below those that Linux gives out when any port will do: one of them may be another process's before it is used."""

_random = random.SystemRandom()


def free_port() -> int:
    """Return a port of loopback at which nobody listened a moment ago."""
    while True:
        port = _random.choice(_CHOICE)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
