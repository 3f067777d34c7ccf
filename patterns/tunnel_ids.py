"""Which tunnels a peer has opened, so that an opening that comes twice opens one tunnel.

A peer counts its tunnels, so all numbers up to the highest seen are used, but for those whose opening was lost on the
way and may still come.  These gaps are few and the only thing to remember, for as long as the peer lives.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.errors import RemoteProtocolError

_MAX_GAPS: Final = 1024
"""Openings of one peer that may be missing; the oldest are given up, and refused if they come after all."""

_MAX_STEP: Final = 65536
"""A number so far beyond the highest is not counted but invented."""


@final
class OpenedIds:
    """The numbers of tunnels that one peer has opened."""

    __slots__ = ("_gaps", "_highest")

    def __init__(self) -> None:
        self._highest = 0
        self._gaps: dict[int, None] = {}

    def add(self, number: int) -> bool:
        """Note a number from 1 up; False if it was seen before, or missing for too long.

        Raises:
            RemoteProtocolError: it leaves out more than 65,536 numbers after one that was seen.
        """
        if number <= self._highest:
            return self._gaps.pop(number, 0) is None
        if self._highest and number - self._highest > _MAX_STEP:  # the first one follows what this node has forgotten
            raise RemoteProtocolError(f"tunnel {number} is opened after tunnel {self._highest}")
        for missing in range(max(self._highest + 1, number - _MAX_GAPS), number):
            self._gaps[missing] = None
        self._highest = number
        while len(self._gaps) > _MAX_GAPS:
            del self._gaps[next(iter(self._gaps))]
        return True
