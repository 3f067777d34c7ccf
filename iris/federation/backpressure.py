"""Backpressure across sites (explicit congestion notification): a gateway asks senders to pause for a congested link.

A gateway cannot let frames stand: frames of others would stand behind them, and gateways in a ring would wait for each
other.  So above an eighth of a link's bound the gateway sends BUSY once to each sender of frames for that link, and a
little below it READY.  The room between the eighth and the bound is for what is in flight, in the buffers of TCP too:
with a quarter, 1 event in 36 was lost to a subscriber that was short of processor time.

Both notices are hints that may be lost.  A pause ends by itself (``iris.cluster.routes.gateway.PAUSE``), and is asked
for again while the link is busy.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, final

import trio

from iris.cluster.routes import PAUSE
from iris.kernel.link import Link
from iris.kernel.tasks import Wakeup

_MAX_FLOWS: Final = 4096
"""Senders and receivers that one link holds up.  What further ones send is dropped when the link is full."""


class FrameFlow(NamedTuple):
    """Frames of one node for another; fields as they travel."""

    source_site: str
    source: bytes
    site: str
    target: bytes


class PressureNotices(Protocol):
    """Notifies senders.  Called with a frame of the sender, or in the task that waits for links; must not block."""

    def report_pressure(self, flow: FrameFlow, *, busy: bool) -> None:
        """Notify the sender of a flow that the route is busy, or ready again."""
        ...


@final
class Backpressure:
    """The congested links out of one gateway, and the senders that were asked to pause for them.

    Args:
        limit: bytes that may wait on a link.
        notices: notifies the senders.
    """

    def __init__(self, limit: int, notices: PressureNotices) -> None:
        self.held = 0
        """Number of times that a sender was asked to pause."""
        self._high = limit // 8
        # Drained in less than the time after which publishers take a link for stalled, down to 1 MiB/s.
        self._low = self._high - limit // 64
        self._notices = notices
        self._busy: dict[Link, dict[FrameFlow, float]] = {}
        self._fresh: list[Link] = []
        self._news = Wakeup()

    def __repr__(self) -> str:
        return f"<Backpressure: {len(self._busy)} links busy>"

    def is_high(self, link: Link) -> bool:
        """Return whether senders to a link are to wait."""
        return link.waiting_bytes > self._high

    def hold(self, link: Link, flow: FrameFlow, now: float) -> None:
        """A frame of a flow was posted to a link that is busy."""
        flows = self._busy.get(link)
        if flows is None:
            flows = self._busy[link] = {}
            self._fresh.append(link)
            self._news.wake()
        reported = flows.get(flow)
        if reported is None and len(flows) >= _MAX_FLOWS:
            return
        if reported is None or now - reported > PAUSE / 2:
            flows[flow] = now
            self.held += 1
            self._notices.report_pressure(flow, busy=True)

    async def run(self) -> None:
        """Let senders go on when links have drained; run it in exactly one task."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._news.wait()
                fresh, self._fresh = self._fresh, []
                for link in fresh:
                    nursery.start_soon(self._release, link)

    async def _release(self, link: Link) -> None:
        await link.wait_drained(self._low)
        for flow in self._busy.pop(link):
            self._notices.report_pressure(flow, busy=False)
