"""The ``boards`` cluster of the demo: each member shows every gate change that is broadcast.

The ``archive`` cluster of the demo: takes tables through tunnels and says what arrived.

The ``weather`` cluster of the demo: ``iris run iris.demo.services:weather`` is one member.
"""

from __future__ import annotations

import hashlib
import tempfile
from typing import Any, Final, final

import iris
from iris.demo.data import Hour, Observation, read_observations

boards = iris.Service("boards")


@final
class DepartureBoard:
    """What one board shows, and proof of everything it has been told."""

    def __init__(self) -> None:
        self.gates: dict[str, str] = {}
        self._changes = 0
        self._digest = hashlib.sha256()

    def show(self, change: dict[str, Any]) -> None:
        """Show a gate change."""
        self.gates[change["flight"]] = change["gate"]
        self._changes += 1
        self._digest.update(f"{change['number']} {change['flight']} {change['gate']}\n".encode())

    def summary(self) -> dict[str, Any]:
        """Return how many changes were shown, and a digest that only the same changes in the same order have."""
        return {"changes": self._changes, "digest": self._digest.hexdigest()}


_board = DepartureBoard()


@boards.broadcast
async def change_gate(message: iris.Message) -> None:
    """Show a gate change."""
    _board.show(message.payload)


@boards.request
async def summarize(request: iris.Request) -> object:  # noqa: ARG001 - there is only one question
    """Say what was shown so far; surveys ask this."""
    return _board.summary()


archive = iris.Service("archive")


@archive.tunnel
async def store(tunnel: iris.Tunnel) -> None:
    """Write what comes to a file, then read that and reply with its size and SHA-256."""
    with tempfile.TemporaryFile() as file:
        async for piece in tunnel:
            file.write(piece)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        await tunnel.send({"bytes": file.tell(), "sha256": digest.hexdigest()})
        await tunnel.send_eof()


weather = iris.Service("weather")

# Read before the node opens: a member that has joined answers at once.
_observations: Final[dict[Hour, Observation]] = read_observations()


@weather.request
async def observe(request: iris.Request) -> object:
    """Return the observation for ``{"airport": ..., "hour": ...}``; None if there is none."""
    asked = request.payload
    return _observations.get((asked["airport"], asked["hour"]))
