"""Open run: a message in an open batch that may still grow, as an open record batch of Kafka does."""

from __future__ import annotations


class OpenRun:
    """A message in the open batch of one link or several that may still grow: its owner appends to a field of it.

    Attributes:
        is_open: True if it may; False once a link has begun to encode it, or another message grows.
        grown: bytes by which it has grown.
        room: bytes by which it may grow.
    """

    __slots__ = ("grown", "is_open", "room")

    def __init__(self, room: int) -> None:
        self.is_open = True
        self.grown = 0
        self.room = room

    def end(self) -> None:
        """Let it grow no more.  The link calls this, too; it may be called twice."""
        self.is_open = False
