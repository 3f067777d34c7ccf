"""Host loop: the event loop that a trio run is the guest of, for what needs no task of trio's to be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import trio


class HostLoop(Protocol):
    """An event loop with a trio run as its guest: ``Guest`` of ``iris.aio``.  It calls in the thread of that run."""

    def watch(self, descriptor: int, readable: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``readable`` again and again while a descriptor can be read, outside of trio's tasks.

        Returns:
            What ends that, to be called before the descriptor is closed.  None if the loop cannot watch it.
        """
        ...

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function after what else the loop has to do now, outside of trio's tasks.

        Of a loop that is closed, when the rest of the run is done, or never.
        """
        ...


host_loop: Final[trio.lowlevel.RunVar[HostLoop | None]] = trio.lowlevel.RunVar("host_loop", None)
"""Host of the present trio run.  None if it has a thread for itself."""
