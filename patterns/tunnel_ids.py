"""Which tunnels a peer has opened, so that an opening that comes twice opens one tunnel.

A peer counts its tunnels, so all numbers up to the highest seen are used, but for those whose opening was lost on the
way and may still come.  These gaps are few and the only thing to remember, for as long as the peer lives.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, final

from iris.kernel.errors import RemoteProtocolError

_MAX_GAPS: Final = 1024
"""Openings of one peer that may be missing; the oldest are given up, and refused if they come after all."""

_MAX_STEP: Final = 65536
"""A number so far beyond the highest is not counted but invented."""


@final
class OpenedIds:
    """The numbers of tunnels that one peer has opened."""

    __slots__ = ("_begins", "_ends", "_highest", "missing")

    def __init__(self) -> None:
        self._highest = 0
        self._begins: list[int] = []
        self._ends: list[int] = []
        """The gaps, in order: each from a number, and up to but without another one."""
        self.missing = 0
        """Numbers in them."""

    def add(self, number: int) -> bool:
        """Note a number from 1 up; False if it was seen before, or missing for too long.

        Raises:
            RemoteProtocolError: it leaves out more than 65,536 numbers after one that was seen.
        """
        if number <= self._highest:
            return self._fill(number)
        if self._highest and number - self._highest > _MAX_STEP:  # the first one follows what this node has forgotten
            raise RemoteProtocolError(f"tunnel {number} is opened after tunnel {self._highest}")
        begin = max(self._highest + 1, number - _MAX_GAPS)
        self._highest = number
        if begin < number:
            self._begins.append(begin)
            self._ends.append(number)
            self.missing += number - begin
            self._give_up()
        return True

    def _give_up(self) -> None:
        """Give up the oldest of too many missing numbers, by whole gaps: a peer can make large ones."""
        while self.missing > _MAX_GAPS:
            size = min(self._ends[0] - self._begins[0], self.missing - _MAX_GAPS)
            self.missing -= size
            self._begins[0] += size
            if self._begins[0] == self._ends[0]:
                del self._begins[0], self._ends[0]

    def _fill(self, number: int) -> bool:
        """Take a number out of the gap that it is in, if it is in one."""
        at = bisect_right(self._begins, number) - 1
        if at < 0 or number >= self._ends[at]:
            return False
        begin, end = self._begins[at], self._ends[at]
        parts = [(begin, number)] * (begin < number) + [(number + 1, end)] * (number + 1 < end)
        self._begins[at : at + 1] = [first for first, _ in parts]
        self._ends[at : at + 1] = [last for _, last in parts]
        self.missing -= 1
        return True
