"""Links on a way out that tests hold in their hands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, final

import trio
from hypothesis import strategies as st

from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.link.link import Link, LinkOwner
from iris.kernel.names import NodeId
from iris.kernel.wire.kinds import Message
from tests.support.messages import array, arrays

NODE = NodeId("ab" * 16)
SMALL = Config(max_payload=1000, batch_bytes=1000, link_bytes=10_000)


@final
class PlainSession:
    """Seals nothing, but says whose frame it is."""

    def __init__(self, name: bytes = b"S") -> None:
        self.name = name

    def seal(self, body: bytes | bytearray | memoryview) -> bytes:
        return self.name + bytes(body)


@final
class Way:
    """An ``OutgoingConnection`` that takes as many frames as it has room for."""

    def __init__(self, room: int = 1_000_000, taken: Callable[[bytes], None] = lambda _: None) -> None:
        self.room = room
        self.frames: list[bytes] = []
        self.closed = False
        self._taken = taken
        self._news = trio.lowlevel.ParkingLot()

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        if self.closed:
            raise trio.ClosedResourceError
        if not self.room:
            return False
        self.room -= 1
        self.frames.append(bytes(frame))
        self._taken(self.frames[-1])
        return True

    async def wait_writable(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        await self._news.park()
        if self.closed:
            raise trio.ClosedResourceError

    def make_room(self, frames: int) -> None:
        self.room += frames
        self._news.unpark_all()

    def close(self) -> None:
        self.closed = True
        self._news.unpark_all()

    @property
    def batches(self) -> list[list[Any]]:
        return [arrays(frame[1:]) for frame in self.frames]

    @property
    def messages(self) -> list[Any]:
        return [message for batch in self.batches for message in batch]


@final
class Bulk:
    """So many pieces of data, counted as they are taken."""

    def __init__(self, name: str, pieces: int, size: int = 100) -> None:
        self.name = name
        self.pieces = pieces
        self.size = size
        self.limits: list[int] = []
        self.shared: list[bool] = []

    def pop(self, limit: int, *, shared: bool) -> tuple[Message, int] | None:
        self.limits.append(limit)
        self.shared.append(shared)
        if not self.pieces:
            return None
        self.pieces -= 1
        return array(9, self.name, self.pieces), self.size


@asynccontextmanager
async def open_link(
    config: Config = SMALL, way: Way | None = None, owner: LinkOwner | None = None
) -> AsyncIterator[Link]:
    """A link with its flusher; with a route it is up."""
    link = Link(NODE, config, owner)
    if way is not None:
        link.use(PlainSession())
        link.attach(way)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        link.close("the test is over")


def check(link: Link, posted: int) -> None:
    statistics = link.statistics()
    assert posted == statistics.posted == statistics.sent + statistics.lost + statistics.waiting
    assert statistics.bytes_waiting == link.waiting_bytes <= SMALL.link_bytes


def fill(link: Link, size: int) -> int:
    """Post until the link takes no more; return how many it took."""
    posted = 0
    while True:
        try:
            link.post(array(1, b""), size)
        except NotSent:
            return posted
        posted += 1


# -- everything at once ------------------------------------------------------------------------------------

steps = st.lists(
    st.sampled_from(["post", "post", "post", "large", "grow", "room", "run", "detach", "attach", "session", "bulk"]),
    max_size=60,
)
