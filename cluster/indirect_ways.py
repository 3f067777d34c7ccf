"""Ways that are no connections of their own: frames leave as messages over the link to another node.

To the mesh they are connections like any other (``Outgoing``).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from iris.kernel.link import Link


class IndirectWay:
    """What ends such a way.

    Args:
        link: returns the link that frames leave over, if there still is one.
        on_broken: called when the way breaks, for whoever uses it.
        on_closed: called when it ends, for whoever made it.
    """

    def __init__(
        self, link: Callable[[], Link | None], on_broken: Callable[[], None], on_closed: Callable[[], None]
    ) -> None:
        self.closed = False
        self._link = link
        self._on_broken = on_broken
        self._on_closed = on_closed

    def open_link(self) -> Link:
        """Return the link that frames leave over.

        Raises:
            trio.ClosedResourceError: the way has ended, or that link.
        """
        link = None if self.closed else self._link()
        if link is None:
            raise trio.ClosedResourceError("this way out is closed")
        return link

    def break_off(self) -> None:
        """What lies between is gone, or does not reach the node: whoever uses the way is told."""
        if not self.closed:
            self.close()
            self._on_broken()

    def close(self) -> None:
        """See ``Outgoing.close``."""
        if not self.closed:
            self.closed = True
            self._on_closed()
