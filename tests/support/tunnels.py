"""Links in memory for tests of tunnels: in order, and losing messages on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.link.bulk import BulkSource
from iris.kernel.names import NodeId
from iris.kernel.tasks.wakeup import Wakeup
from iris.kernel.wire import kinds
from iris.kernel.wire.codec import MAX_MESSAGES, encode_batch
from iris.kernel.wire.kinds import Message
from iris.patterns.books import SendLedger
from iris.patterns.messages import Sender
from iris.patterns.tunnel.endpoint import TunnelEndpoint
from iris.patterns.tunnel.messages import Refusal
from iris.patterns.tunnel.table import TunnelTable
from iris.patterns.tunnel.tunnel import Tunnel
from tests.support.messages import decoded

FRAME = 64 * 1024


@dataclass
class FakeMesh:
    """The links of one node; frames go to the tables of the others."""

    node: NodeId
    others: dict[NodeId, TunnelTable] = field(default_factory=dict)
    posted: deque[tuple[NodeId, Message]] = field(default_factory=deque)
    sources: dict[BulkSource, NodeId] = field(default_factory=dict)
    news: Wakeup = field(default_factory=Wakeup)
    lose: Callable[[list[Message]], bool] = lambda _: False
    """Decides for each frame whether it is lost; the link then notices a gap."""
    down: bool = False
    """No route to any peer: posting fails."""
    held: bool = False
    """The link takes nothing more for now."""
    delivered: list[Message] = field(default_factory=list)
    keep_delivered: bool = False
    frames: int = 0
    bytes: int = 0

    def post(self, node: NodeId, message: Message, size: int) -> None:
        if self.down:
            raise NotSent("down")
        self.posted.append((node, message))
        self.news.wake()

    def add_bulk_source(self, node: NodeId, source: BulkSource) -> None:
        if self.down:
            raise NotSent("down")
        self.sources.setdefault(source, node)
        self.news.wake()

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False
        self.news.wake()

    def next_frame(self) -> tuple[NodeId, list[Message]] | None:
        if self.posted:
            node, most = self.posted[0][0], min(len(self.posted), MAX_MESSAGES)
            return node, [self.posted.popleft()[1] for _ in range(most) if self.posted[0][0] == node]
        if not self.sources:
            return None
        node, size, frame = next(iter(self.sources.values())), 0, list[Message]()
        while self.sources and size < FRAME and len(frame) < MAX_MESSAGES:
            source = next(iter(self.sources))
            if self.sources[source] != node:
                break
            del self.sources[source]
            piece = source.pop(FRAME - size, shared=False)
            if piece is not None:
                frame.append(piece[0])
                size += piece[1] + 24
                self.sources[source] = node
        return node, frame

    async def run(self) -> None:
        gap: set[NodeId] = set()
        while True:
            frame = None if self.held else self.next_frame()
            if frame is None:
                await self.news.wait()
                continue
            node, messages = frame
            await trio.lowlevel.checkpoint()
            if not messages or node not in self.others:
                continue
            if self.lose(messages):
                gap.add(node)
                continue
            table = self.others[node]
            if node in gap:
                gap.discard(node)
                table.link_reset(self.node)
            batch = bytes(encode_batch(messages))
            self.frames += 1
            self.bytes += len(batch)
            for message in decoded(batch):
                if self.keep_delivered:
                    self.delivered.append(message)
                if isinstance(message, kinds.TunnelMarked):
                    table.receive_marked(self.node, message.mark)
                else:
                    table.receive(self.node, message)


class TunnelNode:
    """A node that has tunnels and nothing else.  Tunnels opened to it come out of ``accepted``."""

    def __init__(self, name: str, config: Config) -> None:
        self.node = NodeId(name.encode().hex().ljust(32, "0"))
        self.config = config
        self.mesh = FakeMesh(self.node)
        self.table = TunnelTable(self.mesh, config, SendLedger(self), self)
        self.refusal: Refusal | None = None
        self.send_accepted, self.accepted = trio.open_memory_channel[Tunnel](10_000)

    def is_linked(self, node: NodeId) -> bool:
        return True

    def owner_of(self, node: NodeId) -> str:
        return "realm"

    def is_at_remote_site(self, node: NodeId) -> bool:
        return False

    def now(self) -> float:
        return trio.current_time()

    def accept(self, opening: kinds.TunnelOpen, end: TunnelEndpoint) -> Refusal | None:
        if self.refusal is None:
            self.send_accepted.send_nowait(self.wrap(end, opening.cluster))
        return self.refusal

    def wrap(self, end: TunnelEndpoint, cluster: str = "c") -> Tunnel:
        return Tunnel(
            end,
            limit=self.config.max_payload,
            sender=Sender("c", end.node),
            cluster=cluster,
            operation=None,
            headers={},
        )

    async def run(self) -> None:
        while True:
            self.table.expire()
            await trio.sleep(self.config.tunnel_retry / 2)

    async def open(self, other: TunnelNode) -> tuple[Tunnel, Tunnel]:
        """Open a tunnel and return both ends."""
        end = self.table.open(other.node, "c", None, None)
        await end.wait(lambda: end.machine.state.value != "opening")
        return self.wrap(end), await other.accepted.receive()


@asynccontextmanager
async def open_nodes(*configs: Config) -> AsyncIterator[tuple[TunnelNode, TunnelNode]]:
    """Two nodes with a link between them; one config is for both, and none is the default one."""
    near = TunnelNode("near", configs[0] if configs else Config())
    far = TunnelNode("far", configs[-1] if configs else Config())
    near.mesh.others[far.node] = far.table
    far.mesh.others[near.node] = near.table
    async with trio.open_nursery() as nursery:
        for node in (near, far):
            nursery.start_soon(node.run)
            nursery.start_soon(node.mesh.run)
        yield near, far
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_pair(*configs: Config) -> AsyncIterator[tuple[Tunnel, Tunnel]]:
    """Two ends of one tunnel."""
    async with open_nodes(*configs) as (near, far):
        yield await near.open(far)
