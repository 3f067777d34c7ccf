"""Progress: how far a process of the demo is with its stage.  The airport asks each of them for it, again and again."""

from __future__ import annotations

from typing import final

import iris


@final
class Progress:
    """A number that grows while a process works."""

    def __init__(self) -> None:
        self.done = 0

    def advance(self, number: int = 1) -> None:
        """Count ``number`` more."""
        self.done += number

    def report(self, _request: iris.Request) -> object:
        """Answer the operation ``progress``."""
        return self.done
