"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of loopback at which nobody listened a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
