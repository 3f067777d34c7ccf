"""Requests to the members of ``tests.support.programs.restarted``, and what became of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, final

import trio

import iris

WIDTH: Final = 8
"""Size of a number in bytes, as in ``tests.support.programs.restarted``, which is for processes of its own."""

CALLERS: Final = 16
_TIMEOUT: Final = 30.0


def numbers(directory: Path) -> Counter[int]:
    """Return how often each request ran."""
    data = (directory / "ledger").read_bytes()
    return Counter(int.from_bytes(data[at : at + WIDTH], "big") for at in range(0, len(data), WIDTH))


@final
class Load:
    """Callers that send requests until they are stopped.

    Args:
        node: sends them.
        first: number of the first one; the following ones are each greater by one.
        only_idempotent: True if none is plain; else every second one is.
    """

    def __init__(self, node: iris.Node, *, first: int = 0, only_idempotent: bool = False) -> None:
        self.failed: Counter[str] = Counter()
        self.replied: list[int] = []
        self.plain: list[int] = []
        self.over = False
        self._node = node
        self._number = first
        self._only_idempotent = only_idempotent

    async def run(self) -> None:
        """Ask."""
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(self._call)

    async def _call(self) -> None:
        while not self.over:
            number = self._number
            self._number += 1
            idempotent = self._only_idempotent or number % 2 == 1
            payload = number.to_bytes(WIDTH, "big")
            try:
                reply = await self._node.request(
                    "ledger", payload, timeout=_TIMEOUT, options=iris.RequestOptions(idempotent=idempotent)
                )
            except iris.IrisError as error:
                kind = "idempotent" if idempotent else "plain"
                self.failed[f"{kind}: {type(error).__name__}: {error}"] += 1
            else:
                assert reply == payload
                self.replied.append(number)
            if not idempotent:
                self.plain.append(number)
