"""The nodes of a realm that announce themselves on the local network, as this node knows them."""

from __future__ import annotations

import logging
import math
from typing import Final, final

import trio

from iris.cluster.discovery.mdns_records import MAX_FOLLOWED

_log: Final = logging.getLogger("iris")

_REPEAT_AFTER: Final = 600.0
"""Seconds after which too many announcements are reported once more."""


@final
class LocalNetwork:
    """The nodes that announce themselves on the local network.  Made by ``open_lan``."""

    def __init__(self, mark: str, own: str) -> None:
        self.mark: Final = mark
        self._own = own
        self._found: dict[str, tuple[str, ...]] = {}
        self._reported = -math.inf
        self.left_out = 0
        """Number of announcements of nodes, of this realm as they say, that found no room."""
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<LocalNetwork with {len(self._found)} other nodes>"

    def urls(self) -> list[str]:
        """Return the addresses announced for this realm by others."""
        return [url for urls in self._found.values() for url in urls]

    async def wait_news(self, timeout: float) -> None:
        """Wait until there is something new, at most so many seconds."""
        with trio.move_on_after(timeout):
            await self._news.wait()

    def concerns(self, name: str) -> bool:
        """Return whether an announcement is of this realm and not this node's own."""
        return name.startswith(f"{self.mark}-") and not name.startswith(f"{self.mark}-{self._own}")

    def found(self, name: str, urls: tuple[str, ...]) -> None:
        """Note a node that announces itself."""
        if not self.concerns(name) or not urls:
            return
        if self._found.pop(name, None) == urls:
            self._found[name] = urls
            return
        self._found[name] = urls
        if len(self._found) > MAX_FOLLOWED:
            del self._found[next(iter(self._found))]
        self._notify()

    def lost(self, name: str) -> None:
        """An announcement is taken back, or has run out."""
        if self._found.pop(name, None) is not None:
            self._notify()

    def leave_out(self, count: int) -> None:
        """Count announcements that are not followed, which were too many; the log says so now and then."""
        if not count:
            return
        self.left_out += count
        now = trio.current_time()
        if now >= self._reported + _REPEAT_AFTER:
            self._reported = now
            _log.warning(
                "more than %d nodes of this realm are announced on the local network, or somebody makes them up: "
                "others are passed over; seeds lead to them",
                MAX_FOLLOWED,
                extra={"count": count},
            )

    def pop_left_out(self) -> int:
        """Return how many announcements were left out since the last call."""
        count, self.left_out = self.left_out, 0
        return count

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()
