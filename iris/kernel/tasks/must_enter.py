"""Blocks that users forget to enter: ``node.join(...)`` without ``async with`` would do nothing, and say nothing."""

from __future__ import annotations

import sys
import warnings
from typing import Final


class MustEnter:
    """Base of what opens a block.  Until it is entered, using or dropping it says what to write.

    Args:
        opener: name of the function that returned it.
        statement: ``async with`` or ``with``.
    """

    __slots__ = ("_entered", "_opener", "_statement", "_unused")

    def __init__(self, opener: str, statement: str) -> None:
        self._opener: Final = opener
        self._statement: Final = statement
        self._unused = True
        self._entered = False

    def _enters(self) -> None:
        """Note that it is being entered; raise RuntimeError if it was before."""
        if self._entered:
            raise RuntimeError(f"this block was entered before: call {self._opener} once for each block")
        self._entered, self._unused = True, False

    def _warned(self) -> None:
        """Note that its user was warned how to enter it."""
        self._unused = False

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # copy, pickle and inspect ask for such names
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"{self._opener}(...) opens a block, which has no {name!r}: write '{self._statement} {self._opener}(...) "
            f"as opened', and use what that gives",
            name=name,
            obj=self,
        )

    def __del__(self) -> None:
        if getattr(self, "_unused", False) and not sys.is_finalizing():
            warnings.warn(
                f"{self._opener}(...) was never entered, so nothing was done: use '{self._statement}'",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
