"""Feed: the realm as pages see it, from one survey a second that all of them share.

Nobody looks: no survey.  A page takes the newest message when it is ready for it; one that does not read misses some,
and nothing waits for it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import trio

from iris.node.node import Node
from iris.node.realm import RealmView, open_survey

INTERVAL: Final = 1.0
"""Seconds between surveys."""

PATIENCE: Final = 0.8
"""Seconds that a view waits: below the interval, so that a node that hangs does not delay the view of others."""

TIMEOUT: Final = 2.0
"""Seconds that a node has to answer; until then it is late."""

MAX_PAGES: Final = 256

MAX_POINTS: Final = 300
"""Points of the charts that are kept: five minutes while somebody looks."""

MAX_SERIES: Final = 24
"""Clusters in a point: those with the highest rates."""


@final
class Feed:
    """Surveys a realm while pages are open.

    Attributes:
        surveys: number of surveys that were made.
    """

    def __init__(self, node: Node) -> None:
        self.surveys = 0
        self._node = node
        self._points: deque[dict[str, object]] = deque(maxlen=MAX_POINTS)
        self._pages = 0
        self._wanted, self._news = trio.Event(), trio.Event()
        self._number, self._message = 0, b""

    @property
    def pages(self) -> int:
        """Number of open pages."""
        return self._pages

    @contextmanager
    def looking(self) -> Iterator[bool]:
        """Have surveys made for the length of the block; its value says whether there is room for one more page."""
        if self._pages >= MAX_PAGES:
            yield False
            return
        self._pages += 1
        self._wanted.set()
        try:
            yield True
        finally:
            self._pages -= 1

    def history(self, allowed: Collection[str]) -> bytes:
        """Return the points of the charts, and what a page has to know of this program, and may do."""
        about = {
            "realm": self._node.realm,
            "site": self._node.site,
            "node": self._node.id,
            "interval": INTERVAL,
            "allowed": list(allowed),
            "points": list(self._points),
        }
        return event("history", json.dumps(about))

    @property
    def number(self) -> int:
        """Number of the newest message."""
        return self._number

    async def next(self, after: int) -> tuple[int, bytes]:
        """Wait for a message that is newer than number ``after``; return its number and the message."""
        while self._number <= after:
            await self._news.wait()
        return self._number, self._message

    async def run(self) -> None:
        """Make surveys while somebody looks; run it in one task."""
        async with open_survey(self._node, timeout=TIMEOUT, patience=PATIENCE) as survey:
            while True:
                self._wanted = trio.Event()
                if not self._pages:
                    await self._wanted.wait()
                survey.forget()
                await survey.collect()  # rates are of the time between two
                due = trio.current_time()
                while self._pages:
                    due = max(due + INTERVAL, trio.current_time())
                    await trio.sleep_until(due)
                    view = await survey.collect()
                    self.surveys += 1
                    now, revocations = trio.current_time(), self._node._parts.revoking.revocations.number
                    point, message = _encode(view, now, revocations)
                    self._points.append(point)
                    self._number, self._message = self._number + 1, message
                    self._news.set()
                    self._news = trio.Event()


def event(kind: str, data: str) -> bytes:
    """Return a server-sent event; ``data`` is one line."""
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _encode(view: RealmView, now: float, revocations: int) -> tuple[dict[str, object], bytes]:
    shown = view.as_object()
    point = _point(shown, now)
    message = {"view": shown, "point": point, "trouble": view.trouble, "revocations": revocations}
    return point, event("view", json.dumps(message))


def _point(shown: dict[str, Any], now: float) -> dict[str, object]:
    busiest = sorted(shown["clusters"], key=lambda of: (-of["rate"], of["cluster"]))[:MAX_SERIES]
    return {
        "t": round(now, 3),
        "clusters": {of["cluster"]: [of["rate"], of["p50"], of["p99"], of["queued"]] for of in busiest},
        "lost": sum(sum(node["lost"].values()) for node in shown["nodes"]),
        "published": sum(node["published_rate"] for node in shown["nodes"]),
    }
