"""The ``boards`` cluster of the demo: each member shows every gate change that is broadcast."""

from __future__ import annotations

import hashlib
from typing import Any, final

import iris

boards = iris.Service("boards")


@final
class DepartureBoard:
    """Gates that one board shows, and a digest of everything that it has received."""

    def __init__(self) -> None:
        self.gates: dict[str, str] = {}
        self._changes = 0
        self._digest = hashlib.sha256()

    def show(self, change: dict[str, Any]) -> None:
        """Show a gate change."""
        self.gates[change["flight"]] = change["gate"]
        self._changes += 1
        self._digest.update(f"{change['number']} {change['flight']} {change['gate']}\n".encode())

    def summary(self) -> dict[str, object]:
        """Return how many changes were shown, and a digest that only the same changes in the same order have."""
        return {"changes": self._changes, "digest": self._digest.hexdigest()}


_board = DepartureBoard()


@boards.broadcast
async def change_gate(message: iris.Message) -> None:
    """Show a gate change."""
    _board.show(message.payload)


@boards.request
async def summarize(_request: iris.Request) -> object:
    """Say what was shown so far; surveys ask this."""
    return _board.summary()
